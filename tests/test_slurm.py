"""scripts/slurm.sbatch, run for real in a folder of its own: Slurm, Ray and train.py are small programs that say what
they were asked for."""

import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from ragen.config.compose import verl_config_dir

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "slurm.sbatch"


class Job:
    """A job of two nodes with four GPUs each. `said(name)`: the words of each call of a program."""

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "calls").mkdir()
        self.program("bin/scontrol", 'case "$1" in show) printf "n1\\nn2\\n" ;; esac')
        self.program("bin/hostname", "echo 10.0.0.1 10.0.0.9")
        self.program("bin/srun", "exec sleep 60")
        self.train("exit 0")

    def program(self, name: str, body: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/bash\necho "$RAY_ADDRESS $*" >>{self.folder}/calls/{path.name}\n{body}\n')
        path.chmod(0o755)

    def train(self, body: str, join: str = "exit 0") -> None:
        self.program(".venv/bin/python", f'if [ "$1" = - ]; then {join}; fi\n{body}')

    def said(self, name: str) -> list[list[str]]:
        path = self.folder / "calls" / name
        return [shlex.split(line) for line in path.read_text().splitlines()] if path.exists() else []

    def start(self, *words: str) -> subprocess.Popen:
        env = {
            "PATH": f"{self.folder / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin",
            "SLURM_SUBMIT_DIR": str(self.folder),
            "SLURM_JOB_ID": "1234567",
            "SLURM_JOB_NODELIST": "n[1-2]",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_GPUS_ON_NODE": "4",
            "SLURM_CPUS_PER_TASK": "32",
        }
        return subprocess.Popen(["bash", str(SCRIPT), *words], env=env, stdout=subprocess.PIPE, text=True)

    def signalled(self, number: signal.Signals) -> int:
        """The exit status of a job that gets this signal while it trains."""
        job = self.start("--config-name", "base")
        end = time.monotonic() + 10
        while not (self.folder / "training").exists() and time.monotonic() < end:
            time.sleep(0.02)
        job.send_signal(number)
        return job.wait(10)


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


#: A train.py that saves and ends with status 0 when asked, as the real one does.
SAVES = """trap 'echo USR1 >signal; exit 0' USR1
trap 'echo TERM >signal; exit 0' TERM
touch training
while true; do sleep 0.05; done"""


def test_it_is_bash():
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)


def test_ray_runs_on_every_node_and_train_py_gets_keys_that_exist(job):
    ran = job.start("--config-name", "_2_sokoban", "seed=3")
    assert ran.wait(10) == 0
    head, workers = sorted(job.said("srun"), key=lambda words: "--head" not in words)
    assert "--nodelist=n1" in head and "--node-ip-address=10.0.0.1" in head and "--port=24567" in head
    assert {"--exclude=n1", "--nodes=1", "--address=10.0.0.1:24567", "--num-gpus=4"} <= set(workers)
    joined, train = sorted(job.said("python"), key=len)
    assert joined == ["-", "10.0.0.1:24567", "2", "300"]
    assert train[:4] == ["10.0.0.1:24567", "train.py", "--config-name", "_2_sokoban"]
    given = dict(word.split("=") for word in train[4:])
    assert given.pop("seed") == "3"
    assert given == {"trainer.nnodes": "2", "trainer.n_gpus_per_node": "4", "trainer.resume_mode": "auto"}
    known = yaml.safe_load((verl_config_dir() / "ppo_trainer.yaml").read_text())["trainer"]
    assert {key.removeprefix("trainer.") for key in given} <= set(known)
    assert [words for words in job.said("scontrol") if words[0] == "requeue"] == []


def test_near_the_time_limit_the_run_saves_and_the_job_is_queued_again(job):
    job.train(SAVES)
    assert job.signalled(signal.SIGUSR1) == 0
    assert (job.folder / "signal").read_text() == "USR1\n"
    assert ["requeue", "1234567"] in job.said("scontrol")


def test_a_signal_before_train_py_listens_queues_again_as_well(job):
    job.train("touch training; exec sleep 30")
    assert job.signalled(signal.SIGUSR1) == 0
    assert ["requeue", "1234567"] in job.said("scontrol")


def test_other_ends_are_final(job):
    job.train(SAVES)
    assert job.signalled(signal.SIGTERM) == 0
    assert (job.folder / "signal").read_text() == "TERM\n"
    job.train("exit 2")
    assert job.start().wait(10) == 2
    job.train("exit 0", join="exit 1")
    assert job.start().wait(10) == 1
    assert ["requeue", "1234567"] not in job.said("scontrol")
