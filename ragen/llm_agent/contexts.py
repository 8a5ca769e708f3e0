"""What the policy of one episode reads before each of its replies: `agent_proxy.context_window_mode` and its kin.

A context is the rules with the state of one turn, and then, for each turn from there on, its reply and what followed
it. Which turn it begins with is the window's affair; whether replies keep their thoughts is `history_thinking`'s. Each
piece is tokenised by itself and once, and a reply is never decoded and tokenised again, unless its thoughts are left
out. So the context of a turn begins with that of the turn before, reply included, or is another one altogether.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ragen.env.isolation import EnvDescription
    from ragen.llm_agent.ctx_manager import ContextManager

__all__ = ["HISTORY_THINKING", "OVERFLOWS", "WINDOW_MODES", "EpisodeContext"]

#: Values of `agent_proxy.context_window_mode`, `context_overflow` and `history_thinking`.
WINDOW_MODES = ("full", "limited_multi_turn", "single_turn")
OVERFLOWS = ("end", "drop_oldest")
HISTORY_THINKING = ("all", "last", "none")


@dataclass
class _Turn:
    observation: str
    actions_left: int
    suffix: str
    """What the template writes between the reply before and this turn's; empty for the first."""
    reply_ids: list[int] | None = None
    """As sampled; None: the turn has yet to be answered."""
    without_thoughts: str | None = None
    """The reply's text less its thoughts and its end token; None: it has none, or they are shown for ever."""


class EpisodeContext:
    """The contexts of one episode, turn by turn: `begin_turn`, `ids`, `add_reply`, and again.

    Args:
        ctx: writes and tokenises; its config says which context each turn gets.
        description: of the episode's environment.
        reply_room: tokens that `drop_oldest` keeps free for a reply.
    """

    def __init__(self, ctx: ContextManager, description: EnvDescription, reply_room: int):
        self._ctx, self._description, self._reply_room = ctx, description, reply_room
        self._turns: list[_Turn] = []
        self._first = 0
        self._encoded: dict[tuple[int, bool, bool], list[int]] = {}

    def begin_turn(self, observation: str, actions_left: int, suffix: str = "") -> None:
        """The environment shows its state.

        Args:
            observation: the state.
            actions_left: actions that the episode may still take.
            suffix: `ContextManager.suffix_text` of the same state, for every turn but the first.
        """
        self._turns.append(_Turn(observation, actions_left, suffix))

    def add_reply(self, reply_ids: list[int]) -> None:
        """The policy has answered."""
        turn = self._turns[-1]
        turn.reply_ids = reply_ids
        if self._ctx.config.history_thinking != "all":
            turn.without_thoughts = self._ctx.without_thoughts(reply_ids)

    def ids(self) -> list[int]:
        """All that the policy reads before its next reply. It may be longer than `max_model_len`."""
        config, present = self._ctx.config, len(self._turns) - 1
        if config.context_window_mode == "single_turn":
            self._first = present
        elif config.context_window_mode == "limited_multi_turn":
            self._first = max(self._first, present - config.max_context_window)
        ids = self._from(self._first)
        if config.context_overflow == "drop_oldest":
            while self._first < present and len(ids) + self._reply_room > config.max_model_len:
                self._first += 1
                ids = self._from(self._first)
        return ids

    def _from(self, first: int) -> list[int]:
        """The context that begins with the state of turn `first`."""
        present = len(self._turns) - 1
        ids: list[int] = []
        for k in range(first, present + 1):
            turn = self._turns[k]
            shown = None if self._keeps_thoughts(k) else turn.without_thoughts
            piece = self._encode_state(k, opens=k == first, thinks=shown is None)
            # the end of the reply was sampled already where its last id is the one that the template puts there
            ids += piece[1:] if ids and ids[-1] == piece[0] else piece
            if k < present:
                ids += turn.reply_ids if shown is None else self._ctx.encode(shown)
        return ids

    def _keeps_thoughts(self, k: int) -> bool:
        kept = self._ctx.config.history_thinking
        return kept == "all" or (kept == "last" and k >= len(self._turns) - 2)

    def _encode_state(self, k: int, *, opens: bool, thinks: bool) -> list[int]:
        """The state of turn k up to where its reply begins; `thinks`: with the thought that the template opens."""
        key = (k, opens, thinks)
        if key not in self._encoded:
            turn = self._turns[k]
            text = turn.suffix
            if opens:
                text = self._ctx.prompt_text(
                    self._description, turn.observation, turn=k, actions_left=turn.actions_left
                )
            self._encoded[key] = self._ctx.encode(text if thinks else self._ctx.without_opened_thought(text))
        return self._encoded[key]
