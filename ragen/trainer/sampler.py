"""veRL's sampler door: waits for the step's groups, then applies the rollout filter.

Group status and what the filter ranks by travel as TransferQueue tags: nothing has to be fetched to choose groups.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync

from ragen.trainer.rollout_filter import GroupFilter, Member, group_score, select_groups

logger = logging.getLogger(__name__)

#: Seconds between two looks at the queue; veRL's 2 s would be most of a fast step.
POLL_S = 0.05


class RagenReplayBuffer(ReplayBufferAsync):
    """veRL's replay buffer with a rollout filter.

    It is the asynchronous one in every mode: a synchronous step has no group of an earlier one in it, so that nothing
    is stale there. What is older than `max_off_policy_threshold` steps is dropped and replaced, or waited for, as veRL
    does. A group without a usable episode is not replaced: where an environment is broken, that would never end.

    `trainer.v1.sampler.sampler_kwargs` carries the keys `rollout_filter_*` without their prefix, `min_members`, the
    least number of usable episodes of a group, and `max_batches`, how many batches a step may play to fill one (1: no
    refills). `before_poll`, set by the trainer, is called between polls and may raise to abandon the step. `kept_share`
    is the share of the last step's groups that the filter kept.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs, poll_interval=POLL_S)
        self.before_poll: Callable[[], None] = lambda: None
        self.group_filter = GroupFilter.from_keys(self.sampler_kwargs)
        self.kept_share = 1.0
        self._left: set[str] = set()

    def take_left(self) -> set[str]:
        """The groups that have left the buffer since the last call, chosen or dropped as stale."""
        left, self._left = self._left, set()
        return left

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict]:
        """Wait until `batch_size` groups ended and return the episodes of those that the filter keeps.

        With refills, as many further groups are played as were dropped, judged among themselves, and so on until
        `batch_size` are kept or `max_batches` batches were played.

        Returns:
            The kept episodes' keys (none, where every group failed or the filter kept none; the trainer skips the
            update) and the filter's metrics.
        """
        tally, keys, tags = _Tally(), [], []
        metrics: dict = {}
        played, wanted = 0, batch_size
        while wanted:
            if played:
                self.refill_fn(wanted)
            chosen = self._filter(self._wait(global_steps, partition_id, wanted, metrics), tally)
            keys += chosen.keys
            tags += chosen.tags
            played += wanted
            wanted = batch_size - sum(tally.kept)
            if played + wanted > self.sampler_kwargs["max_batches"] * batch_size:
                if wanted and played > batch_size:
                    logger.warning("%d of %d groups kept after %d were played", sum(tally.kept), batch_size, played)
                break
        self.kept_share = sum(tally.kept) / played
        metrics |= {"rollout/groups_played": float(played), **tally.metrics()}
        return KVBatchMeta(partition_id=partition_id, keys=keys, tags=tags), metrics

    def _wait(self, global_steps: int, partition_id: str, count: int, metrics: dict) -> KVBatchMeta:
        """The episodes of `count` groups, the oldest of those that have ended, once so many have."""
        self.before_poll()
        ended, evicted = self.wait_for_sampleable(global_steps, partition_id, count)
        metrics.update(evicted)
        uids, partition, _ = self._select_prompt_uids(partition_id, ended, count)
        self._left.update(uids)
        return self._materialize_batch(partition_id, uids, partition)

    def _terminal_eviction_reasons(self, global_steps: int, partition_id: str):
        """Groups that are too old, and no others: see the class."""
        return self._stale_terminal_keys(global_steps, partition_id), set(), set(), Counter()

    def _clear_groups(self, partition_id: str, uids: set[str]) -> None:
        super()._clear_groups(partition_id, uids)
        self._left.update(uids)

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        time.sleep(self.poll_interval)
        self.before_poll()
        return last_debug_time

    def _filter(self, batch: KVBatchMeta, tally: _Tally) -> KVBatchMeta:
        """The episodes of the groups that are kept; the others leave TransferQueue."""
        members: dict[str, dict[str, Member]] = defaultdict(dict)
        # in the order of the seed stream, not in that in which groups ended: ties are settled alike in every run
        for key, tag in sorted(zip(batch.keys, batch.tags, strict=True), key=lambda item: item[1]["env_group"]):
            uid, member, _ = key.split("_")  # the samples of an episode carry the same figures: it counts once
            members[uid][member] = Member(tag["episode_return"], tag["episode_entropy"], tag["episode_length"])
        groups = {uid: list(by_member.values()) for uid, by_member in members.items()}
        # a group estimator has no baseline for a member whose siblings all failed
        compared = {uid: group for uid, group in groups.items() if len(group) >= self.sampler_kwargs["min_members"]}
        scores = {uid: group_score(group, self.group_filter.metric) for uid, group in compared.items()}
        kept = set(select_groups(scores, self.group_filter))
        tally.add(groups, scores, kept)
        dropped = [key for key in batch.keys if key.split("_")[0] not in kept]
        if dropped:
            tq.kv_clear(keys=dropped, partition_id=batch.partition_id)
        keep = [i for i, key in enumerate(batch.keys) if key.split("_")[0] in kept]
        return KVBatchMeta(
            partition_id=batch.partition_id, keys=[batch.keys[i] for i in keep], tags=[batch.tags[i] for i in keep]
        )


@dataclass
class _Tally:
    """What a step's groups were like, before and after the filter."""

    groups: list[list[Member]] = field(default_factory=list)
    """Every group with a usable episode."""
    kept: list[bool] = field(default_factory=list)
    """Of each of them, whether it is trained on."""
    scores: list[float] = field(default_factory=list)
    """Of the groups that were compared."""
    kept_scores: list[float] = field(default_factory=list)

    def add(self, groups: dict[str, list[Member]], scores: dict[str, float], kept: set[str]) -> None:
        self.groups += groups.values()
        self.kept += [uid in kept for uid in groups]
        self.scores += scores.values()
        self.kept_scores += [score for uid, score in scores.items() if uid in kept]

    def metrics(self) -> dict[str, float]:
        metrics = {"rollout/groups": float(len(self.scores)), "rollout/groups_kept": float(sum(self.kept))}
        metrics |= _spread_metrics("rollout/in_group", self.groups)
        chosen = [group for group, kept in zip(self.groups, self.kept, strict=True) if kept]
        metrics |= _spread_metrics("rollout/chosen_in_group", chosen)
        metrics |= _score_metrics("rollout/filter_score", self.scores)
        return metrics | _score_metrics("rollout/chosen_filter_score", self.kept_scores)


def _spread_metrics(prefix: str, groups: list[list[Member]]) -> dict[str, float]:
    """Standard deviation, maximum and mean of returns within a group, averaged over groups."""
    if not groups:
        return {}
    returns = [[member.episode_return for member in group] for group in groups]
    return {
        f"{prefix}_std": float(np.mean([np.std(values) for values in returns])),
        f"{prefix}_max": float(np.mean([np.max(values) for values in returns])),
        f"{prefix}_mean": float(np.mean([np.mean(values) for values in returns])),
    }


def _score_metrics(prefix: str, scores: list[float]) -> dict[str, float]:
    """Mean, least and greatest of what the filter ranks groups by."""
    if not scores:
        return {}
    return {f"{prefix}/mean": float(np.mean(scores)), f"{prefix}/min": min(scores), f"{prefix}/max": max(scores)}
