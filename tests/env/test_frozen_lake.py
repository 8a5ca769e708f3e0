"""FrozenLake: transitions equal Gymnasium's, lakes are solvable, slips follow the stated chances."""

from collections import Counter, deque

import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

from ragen.env.frozen_lake.env import ACTIONS, FrozenLake, FrozenLakeConfig


def gymnasium_table(env):
    """Gymnasium's own transitions on the lake of `env`: state → action → {(next, reward, terminated): chance}."""
    size = env.config.size
    rows = [["F" if env.frozen[r, c] else "H" for c in range(size)] for r in range(size)]
    rows[env.goal[0]][env.goal[1]] = "G"
    rows[env.player[0]][env.player[1]] = "S"
    original = FrozenLakeEnv(
        desc=["".join(row) for row in rows],
        is_slippery=env.config.is_slippery,
        success_rate=1 / 3 if env.config.success_rate is None else env.config.success_rate,
    )
    return {s: {a: merged(original.P[s][a]) for a in range(4)} for s in range(size * size)}


def merged(transitions):
    chances = Counter()
    for chance, state, reward, terminated in transitions:
        chances[int(state), float(reward), bool(terminated)] += chance
    return dict(chances)


def our_transitions(env, cell, action):
    """Read off `step` itself: force each outcome in turn through the luck stream."""

    class Fixed:
        def random(self):
            return self.value

    found, frozen, goal = Counter(), env.frozen, env.goal
    upto = 0.0
    for chance, _ in env.outcomes(cell, action):
        env.load_lake(frozen, cell, goal)
        env.luck_rng = Fixed()
        env.luck_rng.value = upto + chance / 2
        upto += chance
        _, reward, terminated, _, _ = env.step(action)
        found[env.player[0] * env.config.size + env.player[1], reward, terminated] += chance
    return dict(found)


@pytest.mark.parametrize(
    "values",
    [{}, {"success_rate": 0.8}, {"success_rate": 0.0}, {"is_slippery": False}, {"size": 6, "p": 0.7}],
    ids=str,
)
def test_transitions_equal_gymnasiums(values):
    env = FrozenLake(FrozenLakeConfig(**values))
    for seed in range(8):
        env.reset(seed)
        table, size = gymnasium_table(env), env.config.size
        for row in range(size):
            for column in range(size):
                if not env.frozen[row, column] or (row, column) == env.goal:
                    continue  # the episode has ended there
                for action in ACTIONS.values():
                    theirs = {k: v for k, v in table[row * size + column][action - 1].items() if v > 0}
                    ours = {k: v for k, v in our_transitions(env, (row, column), action).items() if v > 0}
                    assert ours == pytest.approx(theirs), (seed, row, column, action)


@pytest.mark.parametrize(("values", "chance"), [({}, 1 / 3), ({"success_rate": 0.8}, 0.8), ({"is_slippery": False}, 1)])
def test_slips_come_as_often_as_stated(values, chance):
    env = FrozenLake(FrozenLakeConfig(size=5, **values))
    frozen = np.ones((5, 5), dtype=bool)
    reached = Counter()
    for luck in range(2000):
        env.seed_streams(1, luck)
        env.load_lake(frozen, (2, 2), (0, 0))
        env.step(ACTIONS["Right"])
        reached[env.player] += 1
    assert reached[2, 3] / 2000 == pytest.approx(chance, abs=0.045)
    assert reached[1, 2] / 2000 == pytest.approx((1 - chance) / 2, abs=0.045)
    assert reached[3, 2] / 2000 == pytest.approx((1 - chance) / 2, abs=0.045)


def test_every_lake_is_solvable_within_the_budget():
    for values in ({"solvable_within": 10}, {"size": 6, "p": 0.6, "solvable_within": 5}, {"size": 8, "p": 0.6}):
        env = FrozenLake(FrozenLakeConfig(**values))
        for seed in range(300):
            env.reset(seed)
            distance = shortest(env)
            assert 1 <= distance <= values.get("solvable_within", 64), (values, seed)
            assert env.frozen[env.player] and env.frozen[env.goal]


def shortest(env):
    size, queue, seen = env.config.size, deque([(env.player, 0)]), {env.player}
    while queue:
        (row, column), moves = queue.popleft()
        if (row, column) == env.goal:
            return moves
        for after in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
            if 0 <= min(after) and max(after) < size and env.frozen[after] and after not in seen:
                seen.add(after)
                queue.append((after, moves + 1))
    return 10**9


def test_start_goal_and_holes_vary():
    env = FrozenLake()
    starts, goals, holes = set(), set(), []
    for seed in range(300):
        env.reset(seed)
        starts.add(env.player)
        goals.add(env.goal)
        holes.append(1 - env.frozen.mean())
    assert len(starts) == len(goals) == 16
    assert 0.12 < np.mean(holes) < 0.2  # a fifth, less the start, the goal and lakes without a way


def test_goal_hole_shore_and_step_limit():
    env = FrozenLake(FrozenLakeConfig(size=2, is_slippery=False, max_steps=2))
    env.reset(0)
    lake = np.array([[True, True], [False, True]])
    env.load_lake(lake, (0, 0), (1, 1))
    observation, reward, terminated, truncated, info = env.step(ACTIONS["Left"])
    assert (observation, reward, terminated, truncated) == ("P_\nOG", 0.0, False, False)
    assert info == {"action_is_valid": True, "action_is_effective": False, "success": False}
    assert env.step(ACTIONS["Right"])[:4] == ("_P\nOG", 0.0, False, True)
    env.load_lake(lake, (0, 0), (1, 1))
    observation, reward, terminated, truncated, info = env.step(ACTIONS["Down"])
    assert (observation, reward, terminated, truncated, info["success"]) == ("__\nXG", 0.0, True, False, False)
    env.load_lake(lake, (0, 1), (1, 1))
    observation, reward, terminated, truncated, info = env.step(ACTIONS["Down"])
    assert (observation, reward, terminated, truncated, info["success"]) == ("__\nO√", 1.0, True, False, True)


def test_the_instruction_states_how_slippery_the_ice_is():
    assert "33%" in FrozenLake().instruction()
    assert "80%" in FrozenLake(FrozenLakeConfig(success_rate=0.8)).instruction()
    assert "slippery" not in FrozenLake(FrozenLakeConfig(is_slippery=False)).instruction()


def test_the_oracle_takes_a_shortest_way_on_firm_ice_and_beats_chance_on_slippery():
    env = FrozenLake(FrozenLakeConfig(is_slippery=False))
    for seed in range(50):
        env.reset(seed)
        for _ in range(shortest(env)):
            *_, info = env.step(ACTIONS[env.oracle_action()])
        assert info["success"]
    env = FrozenLake(FrozenLakeConfig(success_rate=0.8))
    won = 0
    for seed in range(100):
        env.reset(seed)
        for _ in range(30):
            _, _, terminated, _, info = env.step(ACTIONS[env.oracle_action()])
            if terminated:
                break
        won += info["success"]
    assert won >= 85


def test_an_impossible_lake_names_the_seed_and_the_fix():
    env = FrozenLake(FrozenLakeConfig(size=30, p=0.05, solvable_within=1))
    with pytest.raises(ValueError, match=r"seed 3: no lake of size 30 and p 0.05.*higher p"):
        env.reset(3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"p": 0}, "p is 0"),
        ({"success_rate": 80}, "success_rate is 80"),
        ({"size": 1}, "size is 1"),
        ({"observation_format": "gird"}, "observation_format is 'gird'"),
        ({"symbols": {"hole": "__"}}, "single characters"),
        ({"symbols": {"hole": "_"}}, "must all differ"),
        ({"symbols": {"wall": "W"}}, "symbols names wall"),
    ],
)
def test_senseless_configs_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        FrozenLakeConfig(**values)


def test_a_lake_is_made_once_for_all_members_of_a_group_and_cannot_be_written_to():
    one, other = FrozenLake(FrozenLakeConfig()), FrozenLake(FrozenLakeConfig())
    one.reset(987_001, luck=1)
    other.reset(987_001, luck=2)
    assert one.frozen is other.frozen and (one.goal, one.player) == (other.goal, other.player)
    with pytest.raises(ValueError, match="read-only"):
        one.frozen[0, 0] = True
