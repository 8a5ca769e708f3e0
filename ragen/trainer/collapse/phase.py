"""The trainer's side of the collapse watch: it looks at each step's episodes and metrics, and asks the run to stop."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ragen.llm_agent.trajectory import Trajectory
from ragen.trainer.collapse.signals import step_signals
from ragen.trainer.collapse.watch import PREFIX, Alarm, CollapseWatch

logger = logging.getLogger(__name__)

#: In the run's folder: one line for each alarm as it begins, and for a stop.
ALARMS_FILE = "collapse.jsonl"


class CollapsePhase:
    """Mixin over veRL's trainer. `config.ragen.collapse_detection` is the config's node."""

    config: Any
    agent_loop_manager: Any
    global_steps: int

    def _init_collapse(self) -> None:
        own = self.config.ragen
        settings = own.collapse_detection
        self._collapse_settings = settings
        self._collapse_run_dir = Path(own.run_dir) if own.run_dir else None
        self._collapse_watch: CollapseWatch | None = None
        if settings.action != "none":
            self._collapse_watch = CollapseWatch(
                settings.thresholds, patience=settings.patience, baseline_steps=settings.baseline_steps
            )
        #: Why the run is to stop; empty while it may go on.
        self._collapsed: list[Alarm] = []

    def _replay_collapse(self) -> None:
        """A resumed run knows what was normal: its steps so far are those that `metrics.jsonl` holds by now."""
        path = self._collapse_run_dir / "metrics.jsonl" if self._collapse_run_dir else None
        if self._collapse_watch is not None and path is not None and path.exists():
            with path.open() as file:
                self._collapse_watch.replay(json.loads(line) for line in file)

    def _watch_for_collapse(self, episodes: Sequence[Trajectory], metrics: dict[str, Any]) -> None:
        """Add the step's signals and alarms to `metrics`, which hold veRL's own by now."""
        own, ctx = self.config.ragen, self.agent_loop_manager.ctx
        signals = step_signals(
            episodes,
            reply_limits={
                tag: entry.get("max_tokens") or own.response_length for tag, entry in own.custom_envs.items()
            },
            max_model_len=own.max_model_len,
            end_ids=ctx.end_ids,
            ngram=self._collapse_settings.ngram,
        )
        metrics.update({f"{PREFIX}{name}": value for name, value in signals.items()})
        if "actor/grad_norm" in metrics:
            metrics[f"{PREFIX}all/grad_norm"] = float(metrics["actor/grad_norm"])
        if self._collapse_watch is None:
            return
        counts, alarms = self._collapse_watch.observe(metrics)
        metrics.update(counts)
        stops = bool(alarms) and self._collapse_settings.action == "stop"
        metrics[f"{PREFIX}stop"] = float(stops)
        if stops:
            self._collapsed = alarms
        began = alarms if stops else [alarm for alarm in alarms if alarm.looks == self._collapse_settings.patience]
        for alarm in began:
            logger.warning("step %d: signs of a collapse: %s", self.global_steps, alarm)
        if self._collapse_run_dir is not None and began:
            self._record(began, "stop" if stops else "warn")

    def _record(self, alarms: Sequence[Alarm], action: str) -> None:
        with (self._collapse_run_dir / ALARMS_FILE).open("a") as file:
            for alarm in alarms:
                file.write(json.dumps({"step": self.global_steps, "action": action, **vars(alarm)}) + "\n")
