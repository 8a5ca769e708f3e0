"""Starts a training whose trainer checks itself, for the end-to-end tests.

    python run_probe.py RUN_DIR CONFIG_NAME [overrides …]

RUN_DIR/probe.jsonl gets one line per update: whether every row of the update holds exactly the ids that were sampled,
and nothing else is trained. PROBE_SKIP_SYNC=k leaves out the weight sync after step k.
"""

import json
import os
import sys
from pathlib import Path

import transfer_queue as tq
from verl.trainer.ppo.v1.trainer_base import register_trainer

from ragen.config.compose import load
from ragen.config.to_verl import to_verl
from ragen.trainer.launch import run
from ragen.trainer.trainer import RagenTrainerSync


@register_trainer("ragen_probe")
class ProbeTrainer(RagenTrainerSync):
    """The real trainer, looking over its own shoulder."""

    def _update_actor(self, batch, metrics):
        fields = ["input_ids", "response_mask", "prompts"]
        rows = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        trained = []
        for tag, ids, mask, prompt in zip(batch.tags, *(rows[field].unbind() for field in fields), strict=True):
            if not tag.get("is_padding"):
                response = ids[len(prompt) :]
                trained.append((ids.tolist(), response[mask.bool()].tolist()))
        sampled = []
        for episode in self._episodes:
            if episode.usable:
                end = episode.turn_ends()[-1] + 1
                sampled.append((episode.token_ids[:end].tolist(), episode.token_ids[episode.policy_mask].tolist()))
        record = {
            "step": self.global_steps,
            "rows": len(trained),
            "exact": all(row in sampled for row in trained),
            "whole": sorted(trained) == sorted(sampled),
        }
        with (Path(self._run_dir) / "probe.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
        return super()._update_actor(batch, metrics)

    def on_step_end(self):
        if self.global_steps != int(os.environ.get("PROBE_SKIP_SYNC", 0)):
            super().on_step_end()


if __name__ == "__main__":
    run_dir, config_name, *overrides = sys.argv[1:]
    cfg = to_verl(load(config_name, overrides), config_name=config_name, run_dir=run_dir)
    cfg.trainer.v1.trainer_mode = "ragen_probe"
    raise SystemExit(run(cfg))
