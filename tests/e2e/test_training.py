"""End to end on a CPU: the warm-started tiny model, vLLM, veRL on Ray, at a large learning rate.

Each run is a process of its own, two to three minutes long, most of it imports.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: Mean |Δ log-prob| between rollout engine and actor when they hold the same float32 weights.
SAME = 1e-5
LARGE_STEPS = ["actor_rollout_ref.actor.optim.lr=1e-3", "critic.optim.lr=1e-3"]


def train(run_dir: Path, *overrides: str, steps: int = 3, skip_sync: int = 0) -> list[dict]:
    """Run a probe training; returns its metrics by step."""
    run_dir.mkdir(exist_ok=True)
    command = [sys.executable, str(HERE / "run_probe.py"), str(run_dir), "quickstart-short"]
    command += [f"trainer.total_training_steps={steps}", f"trainer.rollout_data_dir={run_dir / 'rollouts'}", *overrides]
    env = {
        **os.environ,
        "PROBE_SKIP_SYNC": str(skip_sync),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "verl"), str(HERE)]),  # HERE: hostile_frozen_lake
    }
    with (run_dir / "output.log").open("a") as log:
        done = subprocess.run(command, cwd=ROOT, env=env, stdout=log, stderr=subprocess.STDOUT, timeout=1400)
    assert done.returncode == 0, (run_dir / "output.log").read_text()[-4000:]
    return records(run_dir / "metrics.jsonl")


def records(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def difference(metrics: list[dict]) -> dict[int, float]:
    key = "training/rollout_log_prob_diff_mean"
    return {record["step"]: record[key] for record in metrics if key in record}


def seeds(run_dir: Path, step: int) -> set[int]:
    return {record["seed"] for record in records(run_dir / "rollouts" / f"{step}.jsonl")}


@pytest.fixture(scope="module")
def ppo(tmp_path_factory):
    """Three PPO steps; the sync after step 2 is left out."""
    run_dir = tmp_path_factory.mktemp("ppo")
    return run_dir, train(run_dir, *LARGE_STEPS, skip_sync=2)


def test_every_update_uses_exactly_the_sampled_ids(ppo):
    probes = records(ppo[0] / "probe.jsonl")
    assert [probe["step"] for probe in probes] == [1, 2, 3]
    assert all(probe["exact"] and probe["whole"] and probe["rows"] == 64 for probe in probes)


def test_rollout_and_actor_agree_after_each_sync_and_not_without_one(ppo):
    by_step = difference(ppo[1])
    assert by_step[1] <= SAME and by_step[2] <= SAME
    assert by_step[3] >= 10 * SAME and by_step[3] >= 10 * max(by_step[1], by_step[2])


def test_each_step_is_logged_once_and_every_part_worked(ppo):
    steps = [record["step"] for record in ppo[1]]
    assert steps == [0, 1, 2, 3]
    for record in ppo[1][1:]:
        assert record["actor/grad_norm"] > 0 and record["critic/vf_loss"] >= 0
        assert record["train/failed"] == 0 and record["train/episodes"] == 64
    assert ppo[1][1]["train/FrozenLake/action_is_valid"] > 0.9  # before the first update


def test_a_resumed_run_continues_with_the_next_seeds(ppo):
    run_dir, _ = ppo
    assert [min(seeds(run_dir, step)) for step in (1, 2, 3)] == [10000, 10004, 10008]
    metrics = train(run_dir, *LARGE_STEPS, steps=4)
    assert [record["step"] for record in metrics] == [0, 1, 2, 3, 4]
    assert seeds(run_dir, 4) == set(range(10012, 10016))
    assert difference(metrics)[4] <= SAME


def test_lora_weights_reach_the_rollout_engine(tmp_path):
    by_step = difference(train(tmp_path, *LARGE_STEPS, "lora.rank=8", skip_sync=2))
    assert by_step[1] <= SAME and by_step[2] <= SAME
    assert by_step[3] >= 10 * SAME


def test_two_ranks_with_grpo_and_the_filter(tmp_path):
    """Half of the groups trained on by two training ranks, each with its own rollout engine."""
    small = ["actor_rollout_ref.rollout.rollout_filter_ratio=0.5", "ppo_mini_batch_size=16"]
    metrics = train(
        tmp_path, *LARGE_STEPS, *small, "algorithm.adv_estimator=grpo", "trainer.n_gpus_per_node=2", skip_sync=2
    )
    by_step = difference(metrics)
    assert by_step[1] <= SAME and by_step[2] <= SAME
    assert by_step[3] >= 10 * SAME
    probes = records(tmp_path / "probe.jsonl")
    assert all(probe["exact"] and probe["rows"] == 32 for probe in probes)
    assert all(record["rollout/groups_kept"] == 2 for record in metrics[1:])


def test_an_environment_that_raises_and_hangs_costs_its_own_episodes_alone(tmp_path):
    """On the task that the model knows: who never gives a valid action never meets a fault."""
    hostile = [
        "custom_envs.FrozenLake.env_type=hostile_frozen_lake:HostileFrozenLake",
        "+custom_envs.FrozenLake.step_timeout_s=2",
        "+custom_envs.FrozenLake.env_config={raises: 0.1, hangs: 0.05}",
    ]
    metrics = train(tmp_path, *hostile, "trainer.val_before_train=false", steps=2)
    for record in metrics:
        failed = {key: value for key, value in record.items() if key.startswith("train/failed/")}
        assert 0 < record["train/failed"] < 64 and sum(failed.values()) == record["train/failed"]
        assert record["actor/grad_norm"] > 0
    assert metrics[-1]["env/hangs"] > 0
    probes = records(tmp_path / "probe.jsonl")
    assert all(probe["exact"] and probe["whole"] for probe in probes)  # every usable episode, and no failed one
