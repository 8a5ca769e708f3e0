"""What must hold for every tag of config/envs.yaml: the contract, randomness, legends."""

import math
import pickle
import random
import re

import numpy as np
import pytest

from ragen.env import MissingDependency
from tests.env.tags import all_specs, play, value_of

SPECS = all_specs()
TAGS = sorted(SPECS)


@pytest.fixture(params=TAGS)
def spec(request):
    try:
        SPECS[request.param].make().close()
    except MissingDependency as missing:
        pytest.skip(str(missing))
    return SPECS[request.param]


def test_the_tags_users_know_are_there():
    assert {
        "SimpleSokoban", "LargerSokoban", "SokobanDifferentGridVocab", "VisualSimpleSokoban", "CoordSokoban",
        "FrozenLake", "CoordFrozenLake", "Bandit", "BanditTest", "Countdown", "MetamathQA", "SimpleSudoku",
        "MediumSudoku", "game_2048", "rubikscube", "SearchQA", "SearchQAMock", "WebShop", "WebShopFull", "TextWorld",
        "Alfworld", "AlfworldOOD",
    } <= set(TAGS)  # fmt: skip


def test_step_and_reset_keep_the_contract(spec):
    env = spec.make()
    low, high = env.reward_range
    for seed in range(20):
        seen = play(env, seed)
        observation, info = seen[0]
        assert type(observation) is str and type(info) is dict
        for observation, reward, terminated, truncated, info in seen[1:]:
            assert type(observation) is str
            assert type(reward) is float and math.isfinite(reward) and low <= reward <= high
            assert type(terminated) is bool and type(truncated) is bool and not (terminated and truncated)
            for key in ("action_is_valid", "action_is_effective", "success"):
                assert type(info[key]) is bool
            assert info["action_is_valid"]
            assert terminated or not info["success"]
        if seen[-1][2] or seen[-1][3]:
            with pytest.raises(RuntimeError, match="call reset first"):
                env.step(1)
    env.close()
    env.close()


def test_a_step_before_reset_says_so(spec):
    with pytest.raises(RuntimeError, match="call reset first"):
        spec.make().step(1)


def test_an_unknown_action_is_invalid_and_changes_nothing(spec):
    env = spec.make()
    env.reset(5)
    before = env.render()
    _, _, terminated, _, info = env.step(99)
    assert (info["action_is_valid"], info["action_is_effective"], terminated) == (False, False, False)
    assert env.render() == before


def test_equal_seed_and_luck_give_equal_episodes(spec):
    for seed in range(10):
        assert play(spec.make(), seed, luck=7) == play(spec.make(), seed, luck=7)
    env = spec.make()
    for seed in range(10):  # what came before leaves no trace
        assert play(env, seed, luck=3) == play(spec.make(), seed, luck=3)


def test_members_of_a_group_start_alike(spec):
    for seed in (10_000, 10_001):
        starts = set()
        for member in range(8):
            env = spec.make()
            observation, _ = env.reset(seed, luck=member)
            starts.add((observation, env.render(), env.instruction(), tuple((env.action_lookup() or {}).items())))
        assert len(starts) == 1


def test_seeds_give_different_starts(spec):
    env = spec.make()
    starts = set()
    for seed in range(40):
        env.reset(seed)
        starts.add(env.render())
    # Two orders of the arms; twelve cubes one turn from solved; most games of 2048 start with two 2s; Gymnasium's
    # environments have few starts, CliffWalking but one; games of TextArena hide what differs.
    fewer = {"bandit": 2, "rubikscube": 10, "game_2048": 30, "gymnasium": 1, "textarena": 20}
    assert len(starts) >= fewer.get(spec.env_type, 38)


@pytest.mark.parametrize("tag", ["FrozenLake", "Bandit"])
def test_members_have_their_own_luck(tag):
    env = SPECS[tag].make()
    outcomes = set()
    for member in range(30):
        env.reset(10_000, luck=member)
        oracle = env.action_lookup()[env.oracle_action()]
        outcomes.add(env.step(oracle)[:2])
    assert len(outcomes) > 1


def test_no_global_random_state_is_touched(spec):
    before = random.getstate(), np.random.get_state()
    for seed in range(5):
        env = spec.make()
        play(env, seed)
        env.reset(seed)
        env.oracle_action()
    assert random.getstate() == before[0]
    assert all(np.array_equal(now, then) for now, then in zip(np.random.get_state(), before[1], strict=True))


def test_configs_are_not_shared(spec):
    one, other = spec.make(), spec.make()
    assert one.config == other.config and one.config is not other.config
    if hasattr(one.config, "symbols"):
        one.config.symbols["hole"] = "?"
        assert other.config.symbols != one.config.symbols
        assert spec.make().config == other.config


def test_an_environment_can_be_pickled_mid_episode(spec):
    env = spec.make()
    env.reset(3, luck=1)
    copy = pickle.loads(pickle.dumps(env))
    action = value_of(env, env.random_action(np.random.default_rng(0)))
    assert env.step(action) == copy.step(action)


def test_the_legend_names_exactly_the_symbols_that_are_drawn(spec):
    env = spec.make()
    if not hasattr(env.config, "symbols") or env.render_mode == "rgb_array":
        pytest.skip("draws no symbols")
    symbols = env.config.symbols
    line = next(line for line in env.instruction().splitlines() if re.match(r"\S \w+.*, \S \w+", line))
    legend = {entry.strip()[0] for entry in line.rstrip(".").split(",")}
    assert legend == set(symbols.values())
    drawn = set()
    for seed in range(60):
        rows = env.reset(seed)[0].splitlines()
        width = len(rows[0])
        for _ in range(30):
            observation, _, terminated, truncated, _ = env.step(int(env.luck_rng.integers(1, 5)))
            rows = observation.splitlines()[: len(env.cell_names())]
            assert all(len(row) == width for row in rows)
            drawn |= set("".join(rows))
            if terminated or truncated:
                break
    assert drawn == legend  # each symbol turns up in play, and no other


@pytest.mark.parametrize("tag", ["CoordSokoban", "CoordFrozenLake"])
def test_coordinates_point_at_what_the_grid_shows(tag):
    env = SPECS[tag].make()
    symbols = env.config.symbols
    kinds = {
        "You": {"player", "player_on_target", "player_in_hole", "player_on_goal"},
        "Boxes": {"box", "box_on_target"},
        "Targets": {"target", "box_on_target", "player_on_target"},
        "Goal": {"goal", "player_on_goal"},
        "Holes": {"hole", "player_in_hole"},
    }
    for seed in range(30):
        for observation in [step[0] for step in play(env, seed)]:
            *grid, line = observation.splitlines()
            for part in line.rstrip(".").split(". "):
                label, _, cells = part.partition(": ")
                listed = {tuple(map(int, pair)) for pair in re.findall(r"\((\d+),(\d+)\)", cells)}
                wanted = {symbols[kind] for kind in kinds[label] if kind in symbols}
                shown = {(r, c) for r, row in enumerate(grid) for c, symbol in enumerate(row) if symbol in wanted}
                assert listed == shown, (label, observation)


def test_pictures_show_the_board(spec):
    env = spec.make()
    observation, _ = env.reset(4)
    if not hasattr(env, "cell_names"):
        with pytest.raises(ValueError, match="no board"):
            env.render("rgb_array")
        return
    assert (observation == "<image>") == (spec.tag == "VisualSimpleSokoban")
    before = env.render("rgb_array")
    rows, columns = len(env.cell_names()), len(env.cell_names()[0])
    assert before.dtype == np.uint8 and before.ndim == 3 and before.shape[2] == 3
    side = before.shape[0] // rows
    assert before.shape[:2] == (rows * side, columns * side)
    # Cells of one kind look alike, cells of different kinds do not.
    looks = {}
    for row, names in enumerate(env.cell_names()):
        for column, name in enumerate(names):
            cell = before[row * side : (row + 1) * side, column * side : (column + 1) * side].tobytes()
            assert looks.setdefault(name, cell) == cell
    assert len(set(looks.values())) == len(looks) >= 2


def test_the_oracle_names_actions(spec):
    env = spec.make()
    for seed in range(10):
        env.reset(seed)
        for _ in range(min(spec.max_actions_per_traj, 30)):
            _, _, terminated, truncated, _ = env.step(value_of(env, env.oracle_action()))
            if terminated or truncated:
                assert env.oracle_action() is None
                break
