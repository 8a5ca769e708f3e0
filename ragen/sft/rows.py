"""From episodes, chats and prompt-response pairs to rows of token ids, each with the tokens that are trained.

What is trained is what a rollout would have sampled: the policy's tokens, the end of its turn included, and nothing
that the chat template or an environment writes. Episodes keep their own tokens. A chat is cut and tokenised in the
pieces in which a rollout tokenises it; where the template shows an earlier turn in other words (thinking models), a new
row begins, as a new context does in a rollout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ragen.llm_agent.control_texts import ControlTexts
from ragen.llm_agent.ctx_manager import PLAIN_TEMPLATE
from ragen.llm_agent.trajectory import Trajectory, samples_of

__all__ = ["ChatEncoder", "Row", "RowError", "episode_rows", "is_tokenized_by"]

# Plain letters, which no template alters.
_REPLY, _NEXT = "RAGENREPLYHERE", "RAGENNEXTHERE"


class RowError(ValueError):
    """An example that cannot be learned from; the message says why."""


@dataclass(frozen=True, eq=False)
class Row:
    """One sequence to learn from. T tokens."""

    input_ids: np.ndarray
    """(T,) int64."""
    loss_mask: np.ndarray
    """(T,) bool. True: a token that the policy is taught to write. Never the first one."""


def episode_rows(trajectory: Trajectory) -> list[Row]:
    """One row for each context of a usable episode: its own tokens and its own response mask."""
    rows = []
    for sample in samples_of(trajectory, use_turn_scores=False):
        ids = np.concatenate([sample.prompt_ids, sample.response_ids])
        mask = np.concatenate([np.zeros(len(sample.prompt_ids), dtype=bool), sample.response_mask.astype(bool)])
        rows.append(Row(ids, mask))
    return rows


def is_tokenized_by(trajectory: Trajectory, tokenizer: Any) -> bool:
    """Whether the episode's replies, decoded by `tokenizer`, are the recorded texts."""
    if trajectory.token_ids.max(initial=0) >= len(tokenizer):
        return False
    ids, mask, turns = trajectory.token_ids, trajectory.policy_mask, trajectory.turn_ids
    decoded = (
        tokenizer.decode(ids[mask & (turns == k)].tolist(), skip_special_tokens=False)
        for k in range(trajectory.num_turns)
    )
    return all(text == turn.reply for text, turn in zip(decoded, trajectory.turns, strict=True))


class ChatEncoder:
    """Tokenises chats as rollouts do.

    Args:
        tokenizer: a Hugging Face tokenizer; without a chat template `PLAIN_TEMPLATE` is used.
        template_kwargs: passed to the template (`agent_proxy.chat_template_kwargs`).

    Raises:
        RowError: the template does not keep a reply verbatim.
    """

    def __init__(self, tokenizer: Any, template_kwargs: Mapping[str, Any] | None = None):
        self._tokenizer, self._kwargs = tokenizer, dict(template_kwargs or {})
        self._template = tokenizer.chat_template or PLAIN_TEMPLATE
        self._controls = ControlTexts(tokenizer)
        chat = [{"role": "user", "content": "x"}, {"role": "assistant", "content": _REPLY}]
        last, answered = self._render(chat), self._render([*chat, {"role": "user", "content": _NEXT}])
        if last.count(_REPLY) != 1 or answered.count(_REPLY) != 1:
            raise RowError("the chat template does not keep an assistant message verbatim")
        #: What the template writes after the last reply, and the id that ends a reply.
        self._closing = last.split(_REPLY)[1]
        following = answered.split(_REPLY)[1]
        self._end = self._controls.encode(following)[:1]

    def rows(self, messages: Sequence[Mapping[str, str]]) -> list[Row]:
        """The rows of one chat: every assistant message is trained, in exactly one of them.

        Args:
            messages: {role, content}, the system message first if there is one; what follows the last assistant message
                is left out.

        Raises:
            RowError: no assistant message, one that nothing precedes, or one that the template rewrites.
        """
        rows: list[Row] = []
        ids: list[int] = []
        mask: list[bool] = []
        written = ""
        for k, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            if k == 0:
                raise RowError("a chat cannot begin with an assistant message")
            context = self._render(messages[:k], generation=True)
            reply = self._reply(messages[: k + 1], context)
            if ids and context.startswith(written):
                piece = self._controls.encode(context[len(written) :])
                piece = piece[1:] if piece[:1] == ids[-1:] else piece
            else:
                if ids:
                    rows.append(_row(ids, mask))
                ids, mask = [], []
                piece = self._controls.encode(context)
            said = self._controls.encode(reply) + self._end
            ids += [*piece, *said]
            mask += [*[False] * len(piece), *[True] * len(said)]
            written = context + reply
        if not ids:
            raise RowError("no assistant message to learn from")
        return [*rows, _row(ids, mask)]

    def rendered(self, prompt: str, response: str) -> Row:
        """A prompt with its control tokens, and the reply to it, end token included."""
        context, said = (self._tokenizer(t, add_special_tokens=False)["input_ids"] for t in (prompt, response))
        if not context or not said:
            raise RowError("an empty prompt or response")
        return _row([*context, *said], [*[False] * len(context), *[True] * len(said)])

    def asks(self, prompt: str) -> bool:
        """Whether a prompt ends as the template ends one, with the opening of a reply."""
        opening = self._render([{"role": "user", "content": _NEXT}], generation=True).split(_NEXT)[1]
        return bool(opening.strip()) and prompt.endswith(opening)

    def _reply(self, messages: Sequence[Mapping[str, str]], context: str) -> str:
        """The text that the policy writes after `context`, without the end token."""
        whole = self._render(messages)
        if not whole.startswith(context):
            raise RowError(
                f"the template does not write assistant message {len(messages)} after its own opening of a reply; "
                "begin the content with what the template opens a reply with, such as <think>"
            )
        reply = whole[len(context) :]
        if not reply.endswith(self._closing):
            raise RowError(f"the template rewrites assistant message {len(messages)}")
        return reply.removesuffix(self._closing)

    def _render(self, messages: Iterable[Mapping[str, str]], *, generation: bool = False) -> str:
        hidden = [
            {**message, "content": message["content"] or ""}
            if message["role"] == "assistant"
            else {**message, "content": self._controls.hide(message["content"])}
            for message in messages
        ]
        return self._tokenizer.apply_chat_template(
            hidden, chat_template=self._template, tokenize=False, add_generation_prompt=generation, **self._kwargs
        )


def _row(ids: list[int], mask: list[bool]) -> Row:
    return Row(np.asarray(ids, dtype=np.int64), np.asarray(mask, dtype=bool))


def fitting(rows: Iterable[Row], max_length: int) -> Iterator[Row]:
    """The rows of at most `max_length` tokens."""
    return (row for row in rows if len(row.input_ids) <= max_length)
