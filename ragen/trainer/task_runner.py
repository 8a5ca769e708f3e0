"""veRL's task runner with RAGEN's trainer registered, a clean stop, and the table at the end."""

from __future__ import annotations

from omegaconf import DictConfig
from verl.trainer.main_ppo import TaskRunnerV1

import ragen.trainer.trainer  # noqa: F401  registers `ragen_sync`
from ragen.trainer.run_logger import mark_finished
from ragen.trainer.stop import StopTraining


class RagenTaskRunner(TaskRunnerV1.__ray_metadata__.modified_class):  # the actor itself cannot be subclassed
    """Runs in the launcher's process, or as a Ray actor."""

    def run(self, config: DictConfig) -> None:
        """Train to the end, or to the first whole step after a request to stop."""
        try:
            super().run(config)
        except StopTraining as stop:
            print(stop)
            return
        finally:
            if self.agent_loop_manager is not None:
                self.agent_loop_manager.close()
        table = self.trainer.panel_table()
        if config.ragen.run_dir is not None:
            mark_finished(
                config.ragen.run_dir, {"step": self.trainer.total_training_steps, "panel": table.splitlines()}
            )
        print(f"\n{table}" if table else "finished")
