"""What a run sets up around itself, without Ray."""

import os
import signal
import time

import pytest
from omegaconf import OmegaConf
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

from ragen.trainer import launch, verl_plugin


@pytest.fixture(autouse=True)
def no_wandb(monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_RUN_ID", "WANDB_DIR", "WANDB_RESUME", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    yield
    left = ("WANDB_MODE", "WANDB_RUN_ID", "WANDB_DIR", "WANDB_RESUME", "TENSORBOARD_DIR", "TQ_NUM_THREADS")
    for name in (*left, verl_plugin.RUN_ID):
        os.environ.pop(name, None)


def config(run_dir, logger=("console",), device="cpu", gpus=1):
    own = {"run_dir": str(run_dir), "cuda_visible_devices": None}
    return OmegaConf.create(
        {"trainer": {"device": device, "logger": list(logger), "n_gpus_per_node": gpus}, "ragen": own}
    )


def test_the_worker_environment_is_verls_so_far_as_it_matters_on_a_cpu(monkeypatch, tmp_path):
    for name in launch.VERL_WORKER_ENV:
        monkeypatch.delenv(name, raising=False)
    verls = get_ppo_ray_runtime_env(None)["env_vars"]
    of_other_devices = ("NCCL_", "HCCL_", "HSA_")
    off = {
        "VERL_FULL_DETERMINISM",
        "VLLM_BATCH_INVARIANT",
        "VERL_RL_INSIGHT_ENABLE",
    }  # "0", which is also their default
    expected = {k: v for k, v in verls.items() if not k.startswith(of_other_devices) and k not in off}
    assert launch.VERL_WORKER_ENV == expected
    assert {verls[name] for name in off} == {"0"}


@pytest.mark.parametrize(("gpus", "cores", "threads"), [(1, 4, "4"), (2, 4, "2"), (4, 2, "1")])
def test_ranks_share_the_cores(monkeypatch, tmp_path, gpus, cores, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(cores))
    monkeypatch.setenv(verl_plugin.RUN_ID, "r")
    env = launch._cpu_worker_environment(config(tmp_path, gpus=gpus))
    assert (env["OMP_NUM_THREADS"], env[verl_plugin.RUN_ID]) == (threads, "r")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert launch._cpu_worker_environment(config(tmp_path))["OMP_NUM_THREADS"] == "7"


def test_wandb_without_a_key_is_offline_and_its_id_survives_a_resume(tmp_path, capsys):
    launch._prepare_environment(config(tmp_path, logger=["console", "wandb"]))
    assert os.environ["WANDB_MODE"] == "offline"
    assert capsys.readouterr().out.count("no API key found") == 1
    first = os.environ.pop("WANDB_RUN_ID")
    launch._prepare_environment(config(tmp_path, logger=["console", "wandb"]))
    assert os.environ["WANDB_RUN_ID"] == first and len(first) == 8


def test_a_wandb_key_keeps_it_online(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    launch._prepare_environment(config(tmp_path, logger=["wandb"]))
    assert "WANDB_MODE" not in os.environ and capsys.readouterr().out == ""


@pytest.mark.parametrize("number", launch.STOP_SIGNALS)
def test_a_stop_signal_leaves_a_note_for_the_trainer(tmp_path, number):
    before = signal.getsignal(number)
    (tmp_path / launch.STOP_FILE).touch()  # left by an earlier run
    with launch._stop_file(str(tmp_path)):
        assert not (tmp_path / launch.STOP_FILE).exists()
        os.kill(os.getpid(), number)
        time.sleep(0.05)
        assert (tmp_path / launch.STOP_FILE).exists()
    assert not (tmp_path / launch.STOP_FILE).exists()
    assert signal.getsignal(number) == before


def test_two_runs_have_different_sockets(monkeypatch):
    address = "ipc:///tmp/rl-colocate-zmq-01000000-replica-0-rank-0.sock"
    names = set()
    for run_id in ("a", "b"):
        monkeypatch.setenv(verl_plugin.RUN_ID, run_id)
        names.add(verl_plugin.own_socket(address))
    assert len(names) == 2 and all(name.endswith("-01000000-replica-0-rank-0.sock") for name in names)


@pytest.mark.wide
def test_both_ends_of_the_weight_transfer_are_adapted(monkeypatch):
    from verl.workers.rollout.vllm_rollout import utils, vllm_rollout

    monkeypatch.setenv(verl_plugin.RUN_ID, "mine")
    sender = type(
        "ServerAdapter", (), {"__init__": lambda self: setattr(self, "zmq_handle", "ipc:///tmp/rl-colocate-zmq-1")}
    )
    receiver = type("Extension", (), {"_get_zmq_handle": lambda self: "ipc:///tmp/rl-colocate-zmq-1"})
    monkeypatch.setattr(vllm_rollout, "ServerAdapter", sender)
    monkeypatch.setattr(utils, "vLLMColocateWorkerExtension", receiver)
    verl_plugin.install()
    assert sender().zmq_handle == receiver()._get_zmq_handle() == "ipc:///tmp/rl-colocate-zmq-mine-1"


@pytest.mark.parametrize("slow_starts, came_up", [(2, True), (9, False)])
def test_ray_gets_another_chance_on_a_busy_machine(monkeypatch, slow_starts, came_up):
    calls = []

    def init(**settings):
        calls.append(settings)
        if len(calls) <= slow_starts:
            raise Exception("The current node timed out during startup. This could happen because …")
        return "up"

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("ray.shutdown", lambda: calls.append("shutdown"))
    if came_up:
        assert launch._ray_init(address="local") == "up"
        assert (
            calls
            == [{"address": "local"}, "shutdown", {"address": "local"}, "shutdown", {"address": "local"}][: len(calls)]
        )
    else:
        with pytest.raises(Exception, match="timed out during startup"):
            launch._ray_init(address="local")


def test_another_fault_of_ray_is_told_at_once(monkeypatch):
    calls = []

    def init(**settings):
        calls.append(settings)
        raise ConnectionError("no cluster there")

    monkeypatch.setattr("ray.init", init)
    with pytest.raises(ConnectionError):
        launch._ray_init(address="1.2.3.4:6379")
    assert len(calls) == 1
