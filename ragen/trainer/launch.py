"""Starts a run: Ray, veRL's task runner with RAGEN's trainer, signals, and the end of every process.

On a CPU the task runner lives in this process: one import of torch and veRL less, and progress bars and signals reach
it directly. On GPUs it is veRL's own Ray actor.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ragen.trainer.startup import say
from ragen.trainer.stop import STOP_FILE
from ragen.trainer.verl_plugin import RUN_ID

_TASK_RUNNER = "ragen.trainer.task_runner"

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


def run(config: DictConfig) -> int:
    """Train as `config` (from `ragen.config.to_verl`) says; blocks until the end.

    Returns:
        The process's exit code: 0 when finished, or stopped by SIGTERM or SIGUSR1 with the state saved; 130 after
        Ctrl-C, which saves nothing.
    """
    _prepare_environment(config)
    here = config.trainer.device == "cpu"
    if here:
        # torch and veRL take as long to import as Ray takes to start: both at once
        threading.Thread(target=importlib.import_module, args=(_TASK_RUNNER,), daemon=True).start()
    logs = _start_ray(config, _cpu_worker_environment(config) if here else _gpu_worker_environment(config))
    try:
        with _stop_file(config.ragen.run_dir):  # after Ray's start, which takes the signals for itself
            if here:
                _run_here(config)
            else:
                _run_as_actor(config)
    except KeyboardInterrupt:
        print("\ninterrupted: the last checkpoint is where the same command continues", file=sys.stderr)
        return 128 + signal.SIGINT
    except Exception:
        print(f"the run failed; what its workers printed is in {logs}", file=sys.stderr)
        raise
    finally:
        import ray

        ray.shutdown()
    return 0


def _prepare_environment(config: DictConfig) -> None:
    """What must be set before torch, veRL and vLLM are imported anywhere."""
    if config.ragen.cuda_visible_devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(config.ragen.cuda_visible_devices)
    # two runs of one machine must not meet at a socket: see ragen.trainer.verl_plugin
    os.environ[RUN_ID] = uuid.uuid4().hex[:12]
    if config.trainer.device == "cpu":  # the start-up's own lines say enough
        os.environ.setdefault("VERL_LOGGING_LEVEL", "WARNING")
        # more threads than cores would be a warning at every transfer
        os.environ.setdefault("TQ_NUM_THREADS", str(len(os.sched_getaffinity(0))))
    backends = config.trainer.logger
    run_dir = config.ragen.run_dir
    if run_dir is not None:
        os.environ.setdefault("TENSORBOARD_DIR", str(Path(run_dir) / "tensorboard"))
        if "wandb" in backends:
            os.environ.setdefault("WANDB_DIR", str(run_dir))
            # veRL calls wandb.init plainly: the id makes a resumed run continue its curve
            os.environ.setdefault("WANDB_RUN_ID", _wandb_id(Path(run_dir)))
            os.environ.setdefault("WANDB_RESUME", "allow")
    if "wandb" in backends and not _wandb_key() and os.environ.get("WANDB_MODE") is None:
        os.environ["WANDB_MODE"] = "offline"
        print("wandb: no API key found; logging offline (`wandb login`, or `wandb sync` the folder later)")


def _wandb_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    netrc = Path(os.environ.get("NETRC", Path.home() / ".netrc"))
    with contextlib.suppress(OSError):
        return "api.wandb.ai" in netrc.read_text()
    return False


def _wandb_id(run_dir: Path) -> str:
    path = run_dir / "wandb_id.txt"
    if not path.exists():
        path.write_text(os.urandom(4).hex())
    return path.read_text().strip()


@contextlib.contextmanager
def _stop_file(run_dir: str | None) -> Iterator[None]:
    """SIGTERM and SIGUSR1 ask the trainer, wherever it runs, to save and end: it looks for the file between polls."""
    if run_dir is None:
        yield
        return
    path = Path(run_dir) / STOP_FILE
    path.unlink(missing_ok=True)

    def request_stop(signum: int, frame: Any) -> None:
        path.touch()
        os.write(2, f"\n{signal.Signals(signum).name}: saving, then ending\n".encode())

    previous = {number: signal.signal(number, request_stop) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        path.unlink(missing_ok=True)


def _ray_init(**settings: Any) -> Any:
    """`ray.init`, tried again where the machine was too busy: Ray gives its node half a minute to come up."""
    import ray
    import tenacity

    def once_more(state: tenacity.RetryCallState) -> None:
        ray.shutdown()
        say("Ray did not come up in time on this busy machine; once more")

    again = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(4),
        retry=tenacity.retry_if_exception_message(match=".*timed out during startup"),
        before_sleep=once_more,
        reraise=True,
    )
    return again(ray.init, **settings)


def _start_ray(config: DictConfig, env_vars: dict[str, str]) -> Path:
    """Start or join Ray as `ray_kwargs.ray_init` says. Returns the folder of its workers' logs."""
    settings: dict[str, Any] = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)  # type: ignore[assignment]
    runtime_env = settings.pop("runtime_env", None) or {}
    runtime_env = {**runtime_env, "env_vars": {**env_vars, **(runtime_env.get("env_vars") or {})}}
    # Without an address of a cluster a Ray of its own: `local` never joins another run's.
    address = settings.pop("address", None) or os.environ.get("RAY_ADDRESS") or "local"
    context = _ray_init(address=address, runtime_env=runtime_env, **settings)
    logs = _link_logs(config.ragen.run_dir, context.address_info["session_dir"])
    say(f"Ray is up; what its workers print is in {logs}")
    return logs


def _run_here(config: DictConfig) -> None:
    """The task runner in this process."""
    # engines of veRL that nobody asked for, one warning each
    warnings.filterwarnings("ignore", message=".* engine is not available", module="verl")
    runner = importlib.import_module(_TASK_RUNNER).RagenTaskRunner()
    say("veRL is imported")
    runner.run(config)


def _run_as_actor(config: DictConfig) -> None:
    """veRL's own layout: the task runner is an actor."""
    import ray
    from verl.trainer.main_ppo import run_ppo

    runner = importlib.import_module(_TASK_RUNNER).RagenTaskRunner
    run_ppo(config, task_runner_class=ray.remote(num_cpus=1)(runner))


def _link_logs(run_dir: str | None, session_dir: str) -> Path:
    """`<run>/logs` → the logs of this Ray session."""
    logs = Path(session_dir) / "logs"
    if run_dir is None:
        return logs
    link = Path(run_dir) / "logs"
    link.unlink(missing_ok=True)
    link.symlink_to(logs)
    return link


#: What veRL's `get_ppo_ray_runtime_env` sets for every worker, so far as it matters on a CPU (a test compares).
VERL_WORKER_ENV = {
    "TOKENIZERS_PARALLELISM": "true",
    "VLLM_LOGGING_LEVEL": "WARN",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "true",
    "VLLM_DISABLE_COMPILE_CACHE": "1",
}


def _cpu_worker_environment(config: DictConfig) -> dict[str, str]:
    """Environment variables of every Ray worker on a CPU; what the shell has set stays."""
    # Ray gives a worker one thread. Ranks compute at the same time; rollout and update never do.
    threads = max(1, len(os.sched_getaffinity(0)) // config.trainer.n_gpus_per_node)
    ours = {**VERL_WORKER_ENV, "TRANSFER_QUEUE_ENABLE": "1", "OMP_NUM_THREADS": str(threads)}
    shell = {key: os.environ[key] for key in (RUN_ID, "TQ_NUM_THREADS") if key in os.environ}
    return {key: os.environ.get(key, value) for key, value in ours.items()} | shell


def _gpu_worker_environment(config: DictConfig) -> dict[str, str]:
    """veRL's own, which asks the device."""
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    return {
        **get_ppo_ray_runtime_env(config)["env_vars"],
        "TRANSFER_QUEUE_ENABLE": "1",
        RUN_ID: os.environ[RUN_ID],
    }


if __name__ == "__main__":
    sys.exit("start a run with `python train.py --config-name quickstart`")
