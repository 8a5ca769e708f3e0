"""The Gymnasium adapter against Gymnasium itself, step by step."""

import pickle

import gymnasium
import numpy as np
import pytest

from ragen.env import EnvConfigError, MissingDependency, make_env
from ragen.env.gymnasium.planning import best_actions
from ragen.env.gymnasium.toy_text import blackjack_policy, cliff_walking, taxi
from tests.env.tags import all_specs

SPECS = all_specs()
TAGS = ["TaxiGym", "CliffWalkingGym", "BlackjackGym"]


@pytest.mark.parametrize("tag", TAGS)
def test_every_step_is_gymnasiums(tag):
    env = SPECS[tag].make()
    theirs = gymnasium.make(env.config.id, **env.config.kwargs)
    names, values = zip(*env.action_lookup().items(), strict=True)
    assert list(names) == env.config.actions and list(values) == list(range(theirs.action_space.n))
    rng = np.random.default_rng(0)
    for seed in range(20):
        text, _ = env.reset(seed, luck=3)
        state, _ = theirs.reset(seed=seed)
        luck = np.random.default_rng(np.random.SeedSequence([seed, 2, 3]))
        theirs.unwrapped.np_random = luck
        assert text == env._read(state)
        over = False
        while not over:
            action = int(rng.integers(len(values)))
            state, reward, terminated, truncated, _ = theirs.step(action)
            text, ours, *ends, info = env.step(action)
            assert (text, ours, ends) == (env._read(state), reward, [terminated, truncated and not terminated])
            assert env.reward_range[0] <= ours <= env.reward_range[1]
            goal = {"TaxiGym": 20, "CliffWalkingGym": -1, "BlackjackGym": 1}[tag]
            assert info["success"] == (terminated and reward == goal)
            over = terminated or truncated
        with pytest.raises(RuntimeError, match="call reset first"):
            env.step(0)


def test_states_read_as_they_are():
    unwrapped = gymnasium.make("Taxi-v4").unwrapped
    assert taxi(unwrapped.encode(3, 1, 2, 0)) == "Taxi: (3,1). Passenger: Y (4,0). Destination: R (0,0)."
    assert taxi(unwrapped.encode(0, 4, 4, 3)) == "Taxi: (0,4). Passenger: in the taxi. Destination: B (4,3)."
    assert cliff_walking(36).splitlines() == ["_" * 12] * 3 + ["PCCCCCCCCCCG"]
    assert cliff_walking(13).splitlines()[1] == "_P__________"
    assert SPECS["BlackjackGym"].make()._read((14, 10, 0)) == "Your sum: 14. Dealer shows: 10. Usable ace: 0."


def test_oracles():
    for seed in range(20):
        for tag, longest in (("TaxiGym", 30), ("CliffWalkingGym", 13)):
            env = SPECS[tag].make()
            env.reset(seed)
            taken = 0
            while taken < longest:
                taken += 1
                _, _, terminated, _, info = env.step(env.action_lookup()[env.oracle_action()])
                if terminated:
                    break
            assert info["success"] and (tag == "TaxiGym" or taken == 13) and env.oracle_action() is None


def test_planning_is_value_iteration():
    # From 0: action 0 pays 1 and stays for ever; action 1 pays 0, then ends with 200 half the time.
    transitions = {
        0: {0: [(1.0, 0, 1.0, False)], 1: [(1.0, 1, 0.0, False)]},
        1: {0: [(0.5, 1, 400.0, True), (0.5, 1, 0.0, True)], 1: [(1.0, 0, 0.0, False)]},
    }
    assert best_actions(transitions).tolist() == [1, 0]


def test_the_blackjack_policy_is_the_best():
    """Expected reward of sticking and of hitting, by recursion over the infinite deck."""
    cards = [(card, 1 / 13) for card in range(1, 10)] + [(10, 4 / 13)]

    def add(total, ace, card):
        total, ace = (total + 11, True) if card == 1 and total + 11 <= 21 else (total + card, ace)
        return (total - 10, False) if total > 21 and ace else (total, ace)

    def dealer(total, ace, cache):
        if total >= 17:
            return {min(total, 22): 1.0}
        if (total, ace) not in cache:
            found = {}
            for card, chance in cards:
                for end, share in dealer(*add(total, ace, card), cache).items():
                    found[end] = found.get(end, 0) + chance * share
            cache[total, ace] = found
        return cache[total, ace]

    for shown in range(1, 11):
        ends, values = dealer(*add(0, False, shown), {}), {}

        def stick(total, ends=ends):
            return sum(p * ((end > 21 or total > end) - (end <= 21 and end > total)) for end, p in ends.items())

        def hit(total, ace):
            return sum(p * value(*add(total, ace, card)) for card, p in cards)

        def value(total, ace, values=values, stick=stick, hit=hit):
            if total > 21:
                return -1.0
            if (total, ace) not in values:
                values[total, ace] = max(stick(total), hit(total, ace))
            return values[total, ace]

        for ace in (False, True):
            for total in range(12, 22):
                gain = stick(total) - hit(total, ace)
                if abs(gain) > 0.02:  # close calls turn on who holds a natural, which counts for more than 21
                    best = "Stick" if gain > 0 else "Hit"
                    assert blackjack_policy((total, shown, ace)) == best, (total, shown, ace, gain)


def test_members_start_alike_and_have_their_own_luck():
    for seed in range(5):
        starts, ends = set(), set()
        for luck in range(12):
            env = SPECS["BlackjackGym"].make()
            starts.add(env.reset(seed, luck=luck)[0])
            ends.add(env.step(1)[0])
        assert len(starts) == 1 and len(ends) > 1


@pytest.mark.parametrize("action", ["", "x" * 100_000, "South", "<|im_end|>", None, 6, -1, True, 1.0, [0], np.int64(0)])
def test_absurd_actions(action):
    env = SPECS["TaxiGym"].make()
    start, _ = env.reset(1)
    assert env.step(action) == (
        start, 0.0, False, False, {"action_is_valid": False, "action_is_effective": False, "success": False},
    )  # fmt: skip


def test_ansi_drawings_and_random_actions():
    env = make_env("gymnasium", {"id": "FrozenLake-v1", "kwargs": {"is_slippery": False}, "instruction": "Walk."})
    assert env.reset(0)[0].splitlines()[-4:] == ["[S]FFF", "FHFH", "FFFH", "HFFG"]
    assert list(env.action_lookup()) == ["0", "1", "2", "3"] and env.instruction() == "Walk."
    taxi_env = SPECS["TaxiGym"].make()
    _, info = taxi_env.reset(4)
    allowed = {name for name, bit in zip(taxi_env.action_lookup(), info["action_mask"], strict=True) if bit}
    rng = np.random.default_rng(0)
    assert {taxi_env.random_action(rng) for _ in range(100)} == allowed


def test_actions_by_value_and_success_of_the_whole_episode():
    config = {
        "id": "Pendulum-v1", "actions": {"Left": [-2.0], "Right": [2.0]}, "state": "cos {0:.2f}, sin {1:.2f}",
        "kwargs": {"max_episode_steps": 5}, "success_when": "ended", "success_reward": "total", "success_above": -1000,
    }  # fmt: skip
    env = make_env("gymnasium", config)
    assert env.reset(0)[0].startswith("cos ")
    copy = pickle.loads(pickle.dumps(env))
    assert env.step([2.0]) == copy.step([2.0])
    for _ in range(4):
        _, _, terminated, truncated, info = env.step([-2.0])
    assert (terminated, truncated, info["success"]) == (False, True, True)


@pytest.mark.parametrize(
    "config, message",
    [
        ({}, "id is ''"),
        ({"id": "Taxi-v99"}, "Taxi-v99' is no environment of Gymnasium"),
        ({"id": "Taxi-v4", "actions": ["A", "B"]}, "2 names, but Taxi-v4 has 6 actions"),
        ({"id": "Taxi-v4", "actions": ["a", "A"]}, "upper and lower case"),
        ({"id": "Pendulum-v1"}, "give env_config.actions as name → value"),
        ({"id": "Taxi-v4", "state": "taxi"}, "write package.module:function"),
        ({"id": "Taxi-v4", "state": "ragen.env.gymnasium.toy_text:bus"}, "cannot be loaded"),
        ({"id": "Blackjack-v1", "state": "ansi"}, "has no ansi drawing"),
        ({"id": "Taxi-v4", "kwargs": {"render_mode": "human"}}, "kwargs has render_mode"),
        ({"id": "Taxi-v4", "reward_range": [1, 0]}, "reward_range"),
        ({"id": "Taxi-v4", "success_when": "always"}, "success_when"),
    ],
)
def test_faulty_configs(config, message):
    with pytest.raises((EnvConfigError, MissingDependency), match=message):
        make_env("gymnasium", config)
    if config == {}:
        with pytest.raises(EnvConfigError, match="lacks its instruction"):
            make_env("gymnasium", {"id": "Taxi-v4"}).instruction()
