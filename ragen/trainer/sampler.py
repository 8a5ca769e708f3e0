"""veRL's sampler door: waits for the step's groups, then applies the rollout filter.

Group status and episode returns travel as TransferQueue tags, so that nothing has to be fetched to choose groups.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from ragen.trainer.rollout_filter import select_groups

#: Seconds between two looks at the queue; veRL's 2 s would be most of a fast step.
POLL_S = 0.05


class RagenReplayBuffer(ReplayBuffer):
    """The sync replay buffer with a rollout filter.

    `trainer.v1.sampler.sampler_kwargs` carries the filter's settings, `ratio` and `type`, and `min_members`, the least
    number of usable episodes of a group. `before_poll`, set by the trainer, is called between polls and may raise to
    abandon the step.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs, poll_interval=POLL_S)
        self.before_poll: Callable[[], None] = lambda: None

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict]:
        """Wait until `batch_size` groups ended and return the episodes of those that the filter keeps.

        Returns:
            The kept episodes' keys (none, where every group failed or the filter kept none; the trainer skips the
            update) and the filter's metrics.
        """
        while True:
            self.before_poll()
            self._sync_metadata_from_transfer_queue()
            ended = self.finished_keys[partition_id] | self.failure_keys[partition_id]
            if len(ended) >= batch_size:
                break
            time.sleep(self.poll_interval)
        uids, partition, _ = self._select_prompt_uids(partition_id, ended, batch_size)
        batch = self._materialize_batch(partition_id, uids, partition)
        return self._filter(batch)

    def _filter(self, batch: KVBatchMeta) -> tuple[KVBatchMeta, dict]:
        returns: dict[str, list[float]] = defaultdict(list)
        for key, tag in zip(batch.keys, batch.tags, strict=True):
            returns[key.split("_")[0]].append(tag["episode_return"])
        # a group estimator has no baseline for a member whose siblings all failed
        compared = {uid: values for uid, values in returns.items() if len(values) >= self.sampler_kwargs["min_members"]}
        kept = set(select_groups(compared, ratio=self.sampler_kwargs["ratio"], order=self.sampler_kwargs["type"]))
        dropped = [key for key in batch.keys if key.split("_")[0] not in kept]
        if dropped:
            tq.kv_clear(keys=dropped, partition_id=batch.partition_id)
        keep = [i for i, key in enumerate(batch.keys) if key.split("_")[0] in kept]
        metrics = {"rollout/groups": float(len(compared)), "rollout/groups_kept": float(len(kept))}
        metrics |= _spread_metrics("rollout/in_group", list(returns.values()))
        metrics |= _spread_metrics(
            "rollout/chosen_in_group", [values for uid, values in returns.items() if uid in kept]
        )
        chosen = KVBatchMeta(
            partition_id=batch.partition_id, keys=[batch.keys[i] for i in keep], tags=[batch.tags[i] for i in keep]
        )
        return chosen, metrics


def _spread_metrics(prefix: str, groups: list[list[float]]) -> dict[str, float]:
    """Standard deviation, maximum and mean of returns within a group, averaged over groups."""
    if not groups:
        return {}
    return {
        f"{prefix}_std": float(np.mean([np.std(values) for values in groups])),
        f"{prefix}_max": float(np.mean([np.max(values) for values in groups])),
        f"{prefix}_mean": float(np.mean([np.mean(values) for values in groups])),
    }
