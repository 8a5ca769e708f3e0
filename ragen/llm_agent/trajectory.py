"""The one record between rollout and trainer: `Trajectory`, its invariants, and the training samples read off it.

A trajectory is a list of token ids that only ever grows. Every token knows who wrote it (the policy or not) and
in which turn; masks, turn ends and per-token rewards are read off those two columns, never searched for in text.

What the policy reads need not grow with it. Each turn says where its context begins: where the turn before it began
(the context grew), or at the turn's own first token (it was written anew, and the policy saw nothing before it). Turns
that share a beginning are one training sample.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

Status = Literal["finished", "truncated", "failed"]
STATUSES: tuple[str, ...] = ("finished", "truncated", "failed")

#: Version of the JSON form of `Trajectory.to_json`. 2 added `luck` and `final_observation`, 3 `context_starts`.
SCHEMA_VERSION = 3
#: Versions that `Trajectory.from_json` reads. What an older one lacks is None; its contexts all begin at 0.
READABLE_VERSIONS = (1, 2, 3)


class TrajectoryError(ValueError):
    """A broken invariant of a `Trajectory`; the message names it."""


@dataclass(frozen=True)
class Turn:
    """What one turn said and did, for people: nothing here reaches the update."""

    observation: str
    """The environment's observation that the policy answered."""
    reply: str
    """The policy's reply, decoded, special tokens kept."""
    actions: tuple[str, ...]
    """Names of the actions that were executed, in order."""
    reward: float
    """Sum of the environment's rewards of this turn plus its format penalty."""
    format_penalty: float = 0.0
    """The part of `reward` that is a penalty (zero or negative)."""
    notes: tuple[str, ...] = ()
    """What the parser or a limit changed: unknown actions dropped, surplus actions not executed."""


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One episode, token-exact. T tokens, K turns.

    A turn k owns the tokens that are written for the policy to read before it (the first prompt, the suffix after reply
    k-1, or a whole new context) and the tokens that it then samples. In a new context the earlier replies that it holds
    are tokens like any other that the policy reads. An episode that failed before its first reply has K = 0 and only a
    prompt, or none.
    """

    token_ids: np.ndarray
    """(T,) int64. Everything the policy read and wrote, in order."""
    policy_mask: np.ndarray
    """(T,) bool. True: this token was sampled by the policy."""
    turn_ids: np.ndarray
    """(T,) int64. The turn that reads (False above) or wrote (True above) the token; starts at 0, never falls."""
    log_probs: np.ndarray
    """(T,) float32, natural log. The sampler's log-probability of each sampled token; 0 elsewhere."""
    turn_rewards: np.ndarray
    """(K,) float64. Reward of each turn that has a reply."""
    context_starts: np.ndarray
    """(K,) int64. Reply k was sampled after reading exactly `token_ids[context_starts[k] : reply_starts()[k]]`. The
    value of turn k-1, or the index of turn k's first token."""
    turns: tuple[Turn, ...]
    """(K,) The same turns, as text."""
    tag: str
    """The entry of `config/envs.yaml`."""
    group: int
    """Number of the group within the rollout: members of a group start from the same state."""
    member: int
    """Number of this episode within its group."""
    seed: int
    """The group's environment seed: `reset(seed)`."""
    status: Status = "finished"
    """finished: the task ended. truncated: a limit ended it. failed: no part of the loss."""
    end_reason: str = "terminated"
    """terminated, env_truncated, max_turn, max_actions, context; or, when failed, what failed."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Episode metrics without the tag: success, num_actions, action_is_effective, action_is_valid, …"""
    model_version: tuple[int, int] = (0, 0)
    """Least and greatest weight version (training step) that sampled the episode's tokens."""
    luck: int | None = None
    """The member's own luck: `reset(seed, luck=luck)` and the actions give the episode again. None: not recorded."""
    final_observation: str | None = None
    """What the environment showed after the last action. None: not recorded, or the environment never started."""

    @property
    def num_turns(self) -> int:
        """K, the number of replies."""
        return len(self.turn_rewards)

    @property
    def episode_return(self) -> float:
        """The undiscounted return: the sum of all turn rewards."""
        return float(self.turn_rewards.sum())

    @property
    def usable(self) -> bool:
        """Whether the episode may be trained on and scored."""
        return self.status != "failed"

    def reply_starts(self) -> np.ndarray:
        """(K,) int64. Index of the first sampled token of each turn."""
        sampled = np.flatnonzero(self.policy_mask)
        return sampled[np.searchsorted(self.turn_ids[sampled], np.arange(self.num_turns))]

    def turn_ends(self) -> np.ndarray:
        """(K,) int64. Index of the last sampled token of each turn."""
        sampled = np.flatnonzero(self.policy_mask)
        return sampled[np.searchsorted(self.turn_ids[sampled], np.arange(self.num_turns), side="right") - 1]

    def validate(self) -> Trajectory:
        """Check every invariant; returns self.

        Raises:
            TrajectoryError: names the episode, the invariant and the values that break it.
        """
        length = len(self.token_ids)
        for name in ("token_ids", "policy_mask", "turn_ids", "log_probs"):
            column = getattr(self, name)
            if column.shape != (length,):
                self._broken(f"{name} must have shape ({length},) like token_ids, has {column.shape}")
        if self.policy_mask.dtype != np.bool_:
            self._broken(f"policy_mask must be bool, is {self.policy_mask.dtype}")
        if length and self.token_ids.min() < 0:
            self._broken(f"token ids must be non-negative, least is {self.token_ids.min()}")
        if length and (
            self.turn_ids[0] != 0 or (np.diff(self.turn_ids) < 0).any() or (np.diff(self.turn_ids) > 1).any()
        ):
            self._broken("turn_ids must start at 0 and rise by at most one")
        if length and self.policy_mask[0]:
            self._broken("the first token must not be the policy's: an episode starts with a prompt")
        if len(self.turns) != self.num_turns:
            self._broken(f"{len(self.turns)} turns as text but {self.num_turns} turn rewards")
        if not np.isfinite(self.turn_rewards).all():
            self._broken(f"turn rewards must be finite, are {self.turn_rewards.tolist()}")
        sampled_turns = self.turn_ids[self.policy_mask]
        if not np.array_equal(np.unique(sampled_turns), np.arange(self.num_turns)):
            self._broken(
                f"turns 0..{self.num_turns - 1} must each hold sampled tokens, found turns {np.unique(sampled_turns)}"
            )
        starts = self.policy_mask[1:] & ~self.policy_mask[:-1]
        if int(starts.sum()) != self.num_turns:
            self._broken(
                f"each turn's sampled tokens must be one run: {int(starts.sum())} runs, {self.num_turns} turns"
            )
        if self.context_starts.shape != (self.num_turns,):
            self._broken(f"{self.context_starts.shape} context starts for {self.num_turns} turns")
        if self.num_turns:
            own = np.searchsorted(self.turn_ids, np.arange(self.num_turns))
            before = np.concatenate([[0], self.context_starts[:-1]])
            if not ((self.context_starts == before) | (self.context_starts == own)).all():
                self._broken(
                    "a context must begin where that of the turn before does or at the turn's first token: starts are "
                    f"{self.context_starts.tolist()}, first tokens {own.tolist()}"
                )
        if (self.log_probs[~self.policy_mask] != 0).any():
            self._broken("log_probs must be 0 where the policy did not write")
        own = self.log_probs[self.policy_mask]
        if not np.isfinite(own).all() or (own > 1e-4).any():
            self._broken("log_probs of sampled tokens must be finite and at most 0")
        if self.status not in STATUSES:
            self._broken(f"status must be one of {STATUSES}, is {self.status!r}")
        if self.usable and self.num_turns == 0:
            self._broken(f"an episode with status {self.status!r} must hold at least one reply")
        return self

    def _broken(self, what: str) -> None:
        raise TrajectoryError(f"trajectory {self.tag} seed {self.seed} member {self.member}: {what}")

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dict with `schema_version`; `from_json` reads it back exactly."""
        record = asdict(self)
        for name in _COLUMNS:
            record[name] = getattr(self, name).tolist()
        record["policy_mask"] = [int(bit) for bit in record["policy_mask"]]
        return {"schema_version": SCHEMA_VERSION, **record, "return": self.episode_return}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Trajectory:
        """Read what `to_json` wrote, or an older release did.

        Raises:
            TrajectoryError: another schema version, a missing column, or a broken invariant.
        """
        record = dict(record)
        version = record.pop("schema_version", None)
        if version not in READABLE_VERSIONS:
            readable = ", ".join(map(str, READABLE_VERSIONS))
            raise TrajectoryError(f"schema_version {version!r} cannot be read, this release reads {readable}")
        record.pop("return")
        if version < 3:
            record["context_starts"] = [0] * len(record["turn_rewards"])
        elif record.get("context_starts") is None:
            raise TrajectoryError(f"a record of schema_version {version} holds context_starts")
        for name, dtype in _COLUMNS.items():
            record[name] = np.asarray(record[name], dtype=dtype)
        record["turns"] = tuple(
            Turn(**{**turn, "actions": tuple(turn["actions"]), "notes": tuple(turn["notes"])})
            for turn in record["turns"]
        )
        record["model_version"] = tuple(record["model_version"])
        return cls(**record).validate()


_COLUMNS = {
    "token_ids": np.int64,
    "policy_mask": np.bool_,
    "turn_ids": np.int64,
    "log_probs": np.float32,
    "turn_rewards": np.float64,
    "context_starts": np.int64,
}


class TrajectoryBuilder:
    """The only writer of token columns: ids, mask, turn ids and log-probs grow together in one place."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self._policy_mask: list[bool] = []
        self._turn_ids: list[int] = []
        self._log_probs: list[float] = []
        self._context_starts: list[int] = []
        self._start = 0
        self._turn = 0

    @property
    def context(self) -> list[int]:
        """What the policy has before it: the ids since the present context began, its own replies included."""
        return self.token_ids[self._start :]

    def add_context(self, ids: list[int]) -> None:
        """Append tokens that the policy reads (prompt, or suffix after a reply) for the present turn."""
        self._extend(ids, False, [0.0] * len(ids))

    def new_context(self, ids: list[int]) -> None:
        """Begin another context, of which these are all that the policy reads; only at the beginning of a turn."""
        self._start = len(self.token_ids)
        self.add_context(ids)

    def read(self, ids: list[int]) -> None:
        """The policy is about to reply to exactly `ids`: what the present context lacks of them is appended, or all of
        them as a new context where they do not begin with the present one."""
        held = self.context
        if ids[: len(held)] == held:
            self.add_context(ids[len(held) :])
        else:
            self.new_context(ids)

    def add_reply(self, ids: list[int], log_probs: list[float]) -> None:
        """Append one turn's sampled tokens with their log-probabilities (same length, at least one)."""
        if not ids or len(ids) != len(log_probs):
            raise TrajectoryError(
                f"a reply needs as many log-probs as ids and at least one: {len(ids)}, {len(log_probs)}"
            )
        self._extend(ids, True, log_probs)
        self._context_starts.append(self._start)

    def next_turn(self) -> None:
        """What follows belongs to the next turn."""
        self._turn += 1

    def _extend(self, ids: list[int], by_policy: bool, log_probs: list[float]) -> None:
        self.token_ids.extend(ids)
        self._policy_mask.extend([by_policy] * len(ids))
        self._turn_ids.extend([self._turn] * len(ids))
        self._log_probs.extend(log_probs)

    def build(self, *, turn_rewards: list[float], turns: list[Turn], **identity: Any) -> Trajectory:
        """Freeze and check. `identity`: the remaining fields of `Trajectory`."""
        return Trajectory(
            token_ids=np.asarray(self.token_ids, dtype=np.int64),
            policy_mask=np.asarray(self._policy_mask, dtype=np.bool_),
            turn_ids=np.asarray(self._turn_ids, dtype=np.int64),
            log_probs=np.asarray(self._log_probs, dtype=np.float32),
            turn_rewards=np.asarray(turn_rewards, dtype=np.float64),
            context_starts=np.asarray(self._context_starts, dtype=np.int64),
            turns=tuple(turns),
            **identity,
        ).validate()


@dataclass(frozen=True, eq=False)
class TrainingSample:
    """One row of the update: the turns of an episode that share a context. P prompt tokens, R response tokens."""

    prompt_ids: np.ndarray
    """(P,) int64. The context up to the first of these turns' sampled tokens."""
    response_ids: np.ndarray
    """(R,) int64. From there to the last token that was sampled in this context."""
    response_mask: np.ndarray
    """(R,) int64. 1: carries loss."""
    turn_ids: np.ndarray
    """(R,) int64. Turn of each token, counted in the episode."""
    rewards: np.ndarray
    """(R,) float32. Each reward sits on a sampled token; the sum over an episode's samples is its return."""
    log_probs: np.ndarray
    """(R,) float32. The sampler's log-probabilities; 0 on tokens that it did not sample."""


def samples_of(
    trajectory: Trajectory, *, use_turn_scores: bool, mask_all_after_prompt: bool = False
) -> list[TrainingSample]:
    """The training samples of an episode, in turn order: one for each context; every sampled token is in one of them.

    Args:
        trajectory: a usable episode.
        use_turn_scores: True: each turn's reward sits on that turn's last sampled token. False: the return sits on
            the episode's last sampled token, in its last sample.
        mask_all_after_prompt: True: every token after a sample's prompt carries loss (`enable_response_mask: False`);
            the default is exactly the sampled tokens.

    Raises:
        TrajectoryError: a failed episode.
    """
    if not trajectory.usable:
        raise TrajectoryError(f"{trajectory.tag} seed {trajectory.seed}: a failed episode has no training sample")
    ends = trajectory.turn_ends()
    rewards = np.zeros(len(trajectory.token_ids), dtype=np.float32)
    if use_turn_scores:
        rewards[ends] = trajectory.turn_rewards
    else:
        rewards[ends[-1]] = trajectory.episode_return
    mask = np.ones_like(trajectory.policy_mask) if mask_all_after_prompt else trajectory.policy_mask
    starts = trajectory.context_starts
    first_turns = np.flatnonzero(np.diff(starts, prepend=-1))
    last_turns = np.append(first_turns[1:], trajectory.num_turns) - 1
    samples = []
    for begin, first, last in zip(
        starts[first_turns], trajectory.reply_starts()[first_turns], ends[last_turns], strict=True
    ):
        response = slice(first, last + 1)
        samples.append(
            TrainingSample(
                prompt_ids=trajectory.token_ids[begin:first],
                response_ids=trajectory.token_ids[response],
                response_mask=mask[response].astype(np.int64),
                turn_ids=trajectory.turn_ids[response],
                rewards=rewards[response],
                log_probs=trajectory.log_probs[response],
            )
        )
    return samples
