"""veRL's task runner with RAGEN's trainer registered, a clean stop, and the table at the end."""

from __future__ import annotations

import importlib
import time
from concurrent.futures import ThreadPoolExecutor

from omegaconf import DictConfig, OmegaConf
from verl.trainer.main_ppo import TaskRunnerV1
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.utils.logging_utils import configure_verl_logging

import ragen.trainer.trainer  # noqa: F401  registers `ragen_*`
from ragen.trainer.run_logger import mark_finished
from ragen.trainer.stop import StopTraining


class RagenTaskRunner(TaskRunnerV1.__ray_metadata__.modified_class):  # the actor itself cannot be subclassed
    """Runs in the launcher's process, or as a Ray actor."""

    def run(self, config: DictConfig) -> None:
        """Train to the end, or to the first whole step after a request to stop.

        Replaces veRL 0.9.1's `TaskRunnerV1.run`, which prints the whole resolved config (kept in the run's folder
        instead) and knows no request to stop.
        """
        import transfer_queue as tq

        configure_verl_logging()
        config.transfer_queue.enable = True
        OmegaConf.resolve(config)
        self.config = config
        exit_code = 1
        try:
            # The queue's processes, and vLLM's modules, are needed only after the training workers are up.
            with ThreadPoolExecutor() as meanwhile:
                queue = meanwhile.submit(tq.init, config.transfer_queue)
                meanwhile.submit(importlib.import_module, "verl.workers.rollout.vllm_rollout.vllm_async_server")
                self.trainer = get_trainer_cls(config.trainer.v1.trainer_mode)(config=config)
                self.trainer.init()
                queue.result()
            self.init_agent_loop_manager()
            started = time.monotonic()
            self.trainer.fit(self.agent_loop_manager)
            exit_code = 0
        except StopTraining as stop:
            exit_code = 0
            print(stop, flush=True)
            return
        finally:
            if self.agent_loop_manager is not None:
                self.agent_loop_manager.close()
            if getattr(self.trainer, "logger", None) is not None:
                self.trainer.logger.finish(exit_code=exit_code)
            tq.close()
        self._report(time.monotonic() - started)

    def _report(self, seconds: float) -> None:
        table = self.trainer.panel_table()
        steps = self.trainer.total_training_steps
        if self.config.ragen.run_dir is not None:
            mark_finished(self.config.ragen.run_dir, {"step": steps, "seconds": seconds, "panel": table.splitlines()})
        print(f"\n{table}\n" if table else "", end="")
        print(f"finished {steps} steps in {seconds / 60:.1f} minutes: {self.config.ragen.run_dir}", flush=True)
