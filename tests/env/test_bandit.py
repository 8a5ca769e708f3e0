"""Bandit: payouts, the order of the arms, luck."""

import numpy as np
import pytest

from ragen.env.bandit.env import Bandit, BanditConfig
from ragen.env.registry import make_env


def pull(env, arm, seed, luck):
    env.reset(seed, luck=luck)
    return env.step(env.action_lookup()[arm])


def test_the_low_arm_always_pays_its_small_sum():
    env = Bandit()
    for luck in range(50):
        _, reward, terminated, truncated, info = pull(env, "Phoenix", 10_000, luck)
        assert (reward, terminated, truncated, info["success"]) == (0.1, True, False, False)


def test_the_high_arm_pays_one_in_four():
    env = Bandit()
    rewards = [pull(env, "Dragon", 10_000, luck)[1] for luck in range(4000)]
    assert set(rewards) == {0.0, 1.0}
    assert abs(np.mean(rewards) - 0.25) < 0.03  # four standard errors
    assert pull(env, "Dragon", 10_000, 0)[4]["success"]


def test_the_seed_decides_the_order_and_either_comes_first_as_often():
    env = Bandit()
    firsts = []
    for seed in range(400):
        observation, _ = env.reset(seed)
        names = list(env.action_lookup())
        assert observation == f"Arms: {names[0]}, {names[1]}"
        firsts.append(names[0])
    assert 150 < firsts.count("Dragon") < 250


def test_the_instruction_gives_neither_name_away():
    assert "Dragon" not in Bandit().instruction() and "Phoenix" not in Bandit().instruction()


def test_other_names_and_payouts():
    env = make_env("bandit", {"low_arm": "tea", "high_arm": "rum", "high_reward": 3.0, "high_probability": 1.0})
    assert pull(env, "rum", 1, 1)[1] == 3.0 and env.reward_range == (0.0, 3.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"low_arm": "Dragon"}, "both 'Dragon'"),
        ({"high_probability": 1.5}, "high_probability 1.5"),
        ({"low_reward": 0.5}, "no more than low_reward"),
    ],
)
def test_senseless_configs_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        BanditConfig(**values)
