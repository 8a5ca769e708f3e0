"""The trainer's phase between values and updates: from the rewards of a batch's samples to their advantages."""

from __future__ import annotations

import functools
from typing import Any

import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.protocol import DataProto
from verl.trainer.ppo.ray_trainer import apply_kl_penalty
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.workers.utils.padding import response_to_nested

from ragen.trainer.advantages.episodes import Episodes
from ragen.trainer.advantages.estimate import AdvantageSettings, Samples, estimate, shape_rewards

#: Read where they are there: one number per response token each.
_FIELDS = (
    "response_mask",
    "rm_scores",
    "turn_ids",
    "state_ids",
    "rollout_log_probs",
    "old_log_probs",
    "ref_log_prob",
    "values",
)


class AdvantagePhase:
    """Mixin over veRL's trainer: advantages of whole episodes, whatever number of samples they became."""

    config: Any
    replay_buffer: Any

    @functools.cached_property
    def advantage_settings(self) -> AdvantageSettings:
        """What the config says about advantages."""
        return AdvantageSettings.from_nodes(self.config.ragen.advantages)

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """veRL 0.9.1's phase with our estimators: no door of its hands a registered one values, turns or episodes.

        KL penalty and rollout correction are veRL's. A rejected token leaves the loss, not the estimate: the reward
        that sits on it was earned all the same.
        """
        fetched = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(_FIELDS))
        mask = fetched["response_mask"]  # nested: its row lengths are the samples'
        data = DataProto(batch=fetched.to_padded_tensor())
        samples = self._samples(batch, mask, data.batch)
        raw_returns = samples.episodes.join(data.batch["rm_scores"]).sum(dim=1)
        shaped = shape_rewards(self.advantage_settings, samples, data.batch["rm_scores"])
        data.batch["token_level_scores"] = data.batch["token_level_rewards"] = shaped
        written = ["advantages", "returns", "token_level_rewards"]

        algorithm = self.config.algorithm
        if algorithm.use_kl_in_reward:
            data, found = apply_kl_penalty(data, kl_ctrl=self.kl_ctrl_in_reward, kl_penalty=algorithm.kl_penalty)
            metrics.update(found)
        correction = algorithm.get("rollout_correction", None)
        if correction is not None and not correction.get("bypass_mode", False) and "rollout_log_probs" in data.batch:
            data, found = compute_rollout_correction_and_add_to_batch(data, correction)
            metrics.update(found)
            written += ["response_mask", *(["rollout_is_weights"] if "rollout_is_weights" in data.batch else [])]

        data.batch["advantages"], data.batch["returns"] = estimate(
            self.advantage_settings,
            samples,
            data.batch["token_level_rewards"],
            raw_returns=raw_returns,
            kept_share=self.replay_buffer.kept_share,
        )
        fields = {field: response_to_nested(data.batch[field], mask) for field in written}
        return tq.kv_batch_put(
            keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(fields, batch_size=len(batch))
        )

    def _samples(self, batch: KVBatchMeta, mask: Any, columns: TensorDict) -> Samples:
        padding = [bool(tag.get("is_padding", False)) for tag in batch.tags]
        width = columns["response_mask"].shape[1]
        episodes = Episodes(batch.keys, mask.offsets().diff().tolist(), padding, width)
        tags = [batch.tags[row]["env_tag"] for row in episodes.first_row]
        own = self.config.ragen
        limits = [own.custom_envs[tag].get("max_tokens") or own.response_length for tag in tags]
        return Samples(
            episodes=episodes,
            mask=columns["response_mask"],
            turn_ids=columns["turn_ids"],
            tags=tags,
            reply_limits=limits,
            values=columns.get("values", None),
            state_ids=columns.get("state_ids", None),
        )
