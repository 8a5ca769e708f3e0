"""RAGEN's trainer: a mixin over veRL 0.9.1's V1 trainers that plays episodes, validates and stops the RAGEN way.

Every override names the veRL phase it replaces and why. Log-probs, values and losses are veRL's own; advantages are in
`advantage_phase.py`.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import ray
import torch
import transfer_queue as tq
from omegaconf import open_dict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.debug import marked_timer

from ragen.llm_agent.seeds import adjust_seed
from ragen.llm_agent.trajectory import Trajectory
from ragen.trainer import run_logger
from ragen.trainer.advantage_phase import AdvantagePhase
from ragen.trainer.batch_adjust import adjust, is_padding, spread_padding
from ragen.trainer.collapse.phase import CollapsePhase
from ragen.trainer.llm_client import AbortableClient, ResumingClient, SeparateClient
from ragen.trainer.metrics import episode_metrics, failure_summary, log_prob_difference, offline_metrics, successes
from ragen.trainer.panels import Panels
from ragen.trainer.startup import say
from ragen.trainer.stop import STOP_FILE, StopTraining

logger = logging.getLogger(__name__)

#: In `<checkpoints>/best`: which metric, its value, and the step.
BEST_FILE = "best.json"


class RagenTrainerMixin(AdvantagePhase, CollapsePhase):
    """The RAGEN side of a veRL trainer; put it before veRL's class.

    `verl_mode` is the veRL trainer mode that the class extends. veRL treats every name but `sync` as asynchronous, so
    the config carries veRL's own name while `super().__init__` runs and after.
    """

    verl_mode: str
    #: How replies are asked for; the asynchronous modes interrupt them.
    client_cls: type[AbortableClient] = AbortableClient

    def __init__(self, config):
        with open_dict(config):
            config.trainer.v1.trainer_mode = self.verl_mode
        super().__init__(config)
        self._own = config.ragen
        self._run_dir: str | None = config.ragen.run_dir
        self._saved_step = 0
        self._empty_steps = 0
        self._panels = Panels(self._run_dir)
        self._init_collapse()
        self.replay_buffer.before_poll = self._between_polls

    # --- doors ------------------------------------------------------------------------------------

    def _init_tokenizer(self):
        super()._init_tokenizer()
        say("tokenizer loaded; starting the training workers")

    def on_init_end(self):
        """The last part of the start: the first sync of the weights."""
        super().on_init_end()
        say("weights are in the rollout engine")

    def get_llm_client(self):
        """A client that can abort a single request and balances by itself: veRL's balancing actor is not needed."""
        manager = self.llm_server_manager
        ray.kill(manager.global_load_balancer)
        servers = dict(zip(manager.server_addresses, manager.server_handles, strict=True))
        return manager.get_client(client_cls=self.client_cls, servers=servers)

    @property
    def logger(self):
        """veRL sets this once, in `fit`; the setter puts `metrics.jsonl` beside its backends."""
        return self._logger

    @logger.setter
    def logger(self, tracking):
        self._logger = run_logger.RunLogger(tracking, self._run_dir, last_step=self.global_steps)
        self._replay_collapse()  # now that the file holds this run's past and nothing else

    # --- a step -----------------------------------------------------------------------------------

    def on_step_begin(self):
        """Between two steps is where a run can stop."""
        super().on_step_begin()
        self._episodes: list[Trajectory] = []
        if self._stop_requested():
            self._save_and_stop()
        if self._collapsed:
            self._save_and_stop(f"; the policy has collapsed: {'; '.join(map(str, self._collapsed))}; {self._best()}")

    def _step_once(self, metrics: dict, timing_raw: dict, sample_batch_size: int) -> KVBatchMeta:
        """veRL's `_step_once` with the update left out where the filter kept nothing: its balancing needs a batch."""
        self._sampled_metrics: dict[str, float] = {}
        try:
            batch = super()._step_once(metrics, timing_raw, sample_batch_size)
            self._empty_steps = 0
        except _EmptyBatch as empty:
            self._empty_steps += 1
            limit = int(self._own.rollout_filter.empty_stop_steps)
            logger.warning("step %d: no group left to train on, the update is skipped", self.global_steps)
            if limit and self._empty_steps >= limit:
                raise RuntimeError(
                    f"{self._empty_steps} steps in a row had no group to train on "
                    f"(rollout_filter_empty_stop_steps={limit}): {failure_summary(self._episodes) or 'no spread'}"
                ) from None
            batch = empty.batch
        metrics.update(self._sampled_metrics)
        return batch

    def on_sample_end(self):
        """Groups have ended and left the replay buffer: gather their episodes, failed ones included."""
        super().on_sample_end()
        taken = self.agent_loop_manager.take(self.replay_buffer.take_left())
        self._episodes += taken.played  # a step of separate_async samples several times
        played = {}
        if taken.played or not taken.recorded:
            played = episode_metrics(taken.played, group_size=self.agent_loop_manager.group_size("train"))
        recorded = offline_metrics(
            [d.episodes for d in taken.recorded], [d.round for d in taken.recorded], self.global_steps
        )
        self._sampled_metrics = {
            **{f"train/{key}": value for key, value in played.items()},
            **recorded,
            **self.agent_loop_manager.counters(),
        }
        if failures := failure_summary(taken.played):
            logger.warning("step %d: episodes failed: %s", self.global_steps, failures)

    def _balance_batch(self, batch: KVBatchMeta, metrics, **kwargs) -> KVBatchMeta:
        """The first phase that needs a batch: leave the step here if there is none. veRL's padding is spread out."""
        if not batch.keys:
            raise _EmptyBatch(batch)
        batch = super()._balance_batch(batch, metrics, **kwargs)
        batch.reorder(spread_padding(is_padding(batch), self._actor_ranks()))
        return batch

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """Adds `agent_proxy.batch_adjust_mode`: what fills up the batch, or leaves it, from here on."""
        batch = super()._compute_advantage(batch, metrics)
        mode, before = self._own.agent_proxy.batch_adjust_mode, is_padding(batch).count(False)
        rng = np.random.default_rng(adjust_seed(self._own.seed.train, self.global_steps))
        adjusted = adjust(batch, mode, self._get_required_batch_multiple(self._actor_ranks()), rng)
        after = is_padding(adjusted).count(False)
        metrics["training/samples"] = float(after)
        metrics["training/samples_deleted"] = float(before - after)
        metrics["training/samples_filled"] = float(len(adjusted.keys) - after)
        return batch if adjusted is batch else self._balance_batch(adjusted, metrics)

    def _actor_ranks(self) -> int:
        """Data-parallel ranks of the actor; veRL's `_balance_batch` has asked the workers for them."""
        return max(self.actor_rollout_wg._dispatch_info["actor"]) + 1

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """Adds the check that rollout engine and actor are the same model: see `log_prob_difference`."""
        batch = super()._compute_old_log_prob(batch, metrics)
        if self._own.enable_response_mask:  # otherwise the mask covers tokens that nobody sampled
            fields = ["old_log_probs", "rollout_log_probs", "response_mask"]
            data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
            columns = [data[field].to_padded_tensor(0) if data[field].is_nested else data[field] for field in fields]
            recorded = torch.tensor([bool(tag.get("recorded", 0)) for tag in batch.tags])
            metrics.update(log_prob_difference(*(column[~recorded] for column in columns)))
            metrics.update(log_prob_difference(*(column[recorded] for column in columns), prefix="offline/actor"))
        return batch

    def _compute_metrics(self, batch: KVBatchMeta, metrics, timing_raw, global_steps, epoch):
        """veRL's metrics are over the batch; a skipped update has none."""
        if batch.keys:
            super()._compute_metrics(batch, metrics, timing_raw, global_steps=global_steps, epoch=epoch)
        else:
            metrics.update({"training/global_step": global_steps, "training/epoch": epoch})
            metrics.update({f"timing_s/{name}": value for name, value in timing_raw.items()})
        metrics["training/update_skipped"] = float(not batch.keys)
        self._watch_for_collapse(self._episodes, metrics)

    def _log_rollout_data(self, batch: KVBatchMeta, timing_raw: dict, rollout_data_dir: str):
        """Every episode of the step as `Trajectory` records, where veRL writes decoded text of the kept ones."""
        with marked_timer("dump_rollout_generations", timing_raw, color="green"):
            path = Path(rollout_data_dir) / f"{self.global_steps}.jsonl"
            run_logger.write_episodes(path, self._episodes, self.global_steps)

    # --- validation -------------------------------------------------------------------------------

    def _validate(self) -> dict[str, float]:
        """Play the fixed panel through the agent proxy; veRL's version knows one sample a prompt and no episodes."""
        with marked_timer("validation", getattr(self, "timing_raw", {}), color="green"):
            trajectories = self.agent_loop_manager.validate(self._own.validation_steps)
        group_size = self.agent_loop_manager.group_size("val")
        metrics = {f"val-env/{k}": v for k, v in episode_metrics(trajectories, group_size=group_size).items()}
        self._panels.add(self.global_steps, successes(trajectories))
        if failures := failure_summary(trajectories):
            logger.warning("validation at step %d: episodes failed: %s", self.global_steps, failures)
        self._log_val_generations(trajectories)
        if self.config.trainer.validation_data_dir:
            path = Path(self.config.trainer.validation_data_dir) / f"{self.global_steps}.jsonl"
            run_logger.write_episodes(path, trajectories, self.global_steps)
        self._keep_best(metrics)
        return metrics

    def _log_val_generations(self, trajectories: Sequence[Trajectory]) -> None:
        """The table `val/generations`: whole episodes, decoded."""
        count = int(self._own.generations_to_log["val"])
        rows = [
            (t.turns[0].observation, self.tokenizer.decode(t.token_ids.tolist()), t.episode_return)
            for t in trajectories[:count]
            if t.usable
        ]
        if rows:
            self.validation_generations_logger.log(self.config.trainer.logger, rows, self.global_steps)

    def panel_table(self) -> str:
        """Success on the validation panel before and after; empty without two panels."""
        return self._panels.table()

    # --- checkpoints and stopping -----------------------------------------------------------------

    def _load_checkpoint(self):
        say("training workers and rollout engine are up")
        super()._load_checkpoint()
        self._saved_step = self.global_steps

    def _save_checkpoint(self):
        super()._save_checkpoint()
        self._saved_step = self.global_steps

    def _keep_best(self, metrics: dict[str, float]) -> None:
        """`trainer.keep_best`: keep the checkpoint with the highest validation metric in `<checkpoints>/best`.

        The start is kept only for a run that the collapse watch may stop: there must be something to go back to.
        """
        name = self._own.keep_best
        if not name or (self.global_steps == 0 and self._own.collapse_detection.action != "stop"):
            return
        if name not in metrics:
            raise KeyError(f"trainer.keep_best: no validation metric {name!r}; there are {sorted(metrics)}")
        root = Path(self.config.trainer.default_local_dir)
        target, fresh = root / "best", root / ".best"
        if (target / BEST_FILE).exists():  # a resumed run knows what it has to beat
            best = json.loads((target / BEST_FILE).read_text())
            if best["metric"] == name and metrics[name] <= best["value"]:
                return
        if self._saved_step != self.global_steps or self.global_steps == 0:  # a run begins as if step 0 were saved
            self._save_checkpoint()
        shutil.rmtree(fresh, ignore_errors=True)
        # hard links: veRL may prune the numbered folder, and weights are large
        shutil.copytree(root / f"global_step_{self.global_steps}", fresh, copy_function=os.link)
        record = {"metric": name, "value": metrics[name], "step": self.global_steps}
        (fresh / BEST_FILE).write_text(json.dumps(record) + "\n")
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)

    def _best(self) -> str:
        """What `_keep_best` kept, in words."""
        folder = Path(self.config.trainer.default_local_dir) / "best"
        best = json.loads((folder / BEST_FILE).read_text())
        return f"best checkpoint: {folder} ({best['metric']} {best['value']:.3g} at step {best['step']})"

    def _stop_requested(self) -> bool:
        return self._run_dir is not None and (Path(self._run_dir) / STOP_FILE).exists()

    def _between_polls(self) -> None:
        """While the step's episodes are played: surface our own faults, and heed a request to stop."""
        self.agent_loop_manager.raise_if_broken()
        if self._stop_requested():
            self.agent_loop_manager.abandon()
            self._save_and_stop()

    def _save_and_stop(self, why: str = "") -> None:
        """Save the state after the last whole step, then leave `fit`.

        why: ends the message.
        """
        self.global_steps -= 1
        if self._saved_step != self.global_steps:
            self._save_checkpoint()
        raise StopTraining(f"stopped after step {self.global_steps}, state saved{why}")


class _EmptyBatch(Exception):
    """The step has no episode to train on."""

    def __init__(self, batch: KVBatchMeta):
        self.batch = batch


@register_trainer("ragen_sync")
class RagenTrainerSync(RagenTrainerMixin, PPOTrainerSync):
    """Synchronous PPO/GRPO: rollout and update take turns on the same devices."""

    verl_mode = "sync"


@register_trainer("ragen_colocate_async")
class RagenTrainerColocateAsync(RagenTrainerMixin, PPOTrainerColocateAsync):
    """Rollout and update take turns on the same devices, but no step waits for its slowest episodes.

    Batches are played ahead; a step trains on the first groups that end, and the others go on after the weight sync.
    """

    verl_mode = "colocate_async"
    client_cls = ResumingClient


@register_trainer("ragen_separate_async")
class RagenTrainerSeparateAsync(RagenTrainerMixin, PPOTrainerSeparateAsync):
    """Rollout and update at the same time, each on devices of its own."""

    verl_mode = "separate_async"

    def get_llm_client(self):
        """Of the servers apart from the trainer; their balancing actor stays, since the trainer's own come and go."""
        return self.standalone_server_manager.get_client(client_cls=SeparateClient)
