"""The 2x2 cube: turns by hand and by group theory, shortest solutions, scrambles."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen.env.registry import EnvConfigError, EnvSpec
from ragen.env.rubikscube import cube as module
from ragen.env.rubikscube.cube import SOLVED, TURNS, best_turn, distance, is_solved, turned
from ragen.env.rubikscube.env import ACTIONS, RubiksCube, RubiksCubeConfig

sequences = st.lists(st.sampled_from(sorted(TURNS)), max_size=30)


def after(names, cube=SOLVED):
    for name in names:
        cube = turned(cube, TURNS[name])
    return cube


def net(names):
    env = RubiksCube()
    env.load_cube(after(names))
    return env.render()


def test_the_net_of_the_solved_cube():
    assert net([]) == (
        "    W W\n"
        "    W W\n"
        "O O G G R R B B\n"
        "O O G G R R B B\n"
        "    Y Y\n"
        "    Y Y"
    )  # fmt: skip


def test_turns_by_hand():
    # U clockwise: the front's upper row goes to the left, the right's to the front, and so on.
    assert net(["U"]).splitlines()[2:4] == ["G G R R B B O O", "O O G G R R B B"]
    # R clockwise: front goes up, up to the back (whose columns the net mirrors), back down, down to the front.
    assert net(["R"]) == (
        "    W G\n"
        "    W G\n"
        "O O G Y R R W B\n"
        "O O G Y R R W B\n"
        "    Y B\n"
        "    Y B"
    )  # fmt: skip
    # F clockwise: the top's lower row goes to the right, the right's column down, the bottom's row to the left.
    assert net(["F"]) == (
        "    W W\n"
        "    O O\n"
        "O Y G G W R B B\n"
        "O Y G G W R B B\n"
        "    R R\n"
        "    Y Y"
    )  # fmt: skip
    # A face's own stickers turn with it: after R, the right face's upper left comes from its lower left.
    assert after(["R", "F"])[8:12] == "GGYY"


def test_there_are_twelve_turns_and_each_undoes_its_counterpart():
    assert sorted(ACTIONS) == sorted(f + s for f in "UDLRFB" for s in ("", "'"))
    for face in "UDLRFB":
        assert after([face, face + "'"]) == after([face] * 4) == SOLVED
        assert after([face] * 3) == after([face + "'"]) != SOLVED
        assert len(set(TURNS.values())) == 12


def test_orders_that_are_known():
    def order(names):
        cube, count = after(names), 1
        while cube != SOLVED:
            cube, count = after(names, cube), count + 1
        return count

    assert order(["R", "U", "R'", "U'"]) == 6
    assert order(["R", "U"]) == 15  # on the 3x3, 105 = lcm(15, 7)
    assert order(["R", "U'"]) == 9  # on the 3x3, 63 = lcm(9, 7)


@settings(deadline=None)
@given(sequences)
def test_any_sequence_keeps_the_colours_and_is_undone_by_its_inverse(names):
    cube = after(names)
    assert sorted(cube) == sorted(SOLVED)
    undo = [name[0] if len(name) == 2 else name + "'" for name in reversed(names)]
    assert after(undo, cube) == SOLVED


def test_opposite_turns_are_one_turn_of_a_cube_held_otherwise():
    assert is_solved(after(["U", "D'"])) and after(["U", "D'"]) != SOLVED
    assert not is_solved(after(["U", "D"]))


def test_there_are_24_ways_to_hold_a_cube():
    held = {turned(SOLVED, rotation) for rotation in module._rotations()}
    assert len(held) == 24 and all(map(is_solved, held))


def test_distances_up_to_four_turns_equal_a_plain_search():
    """Breadth first over all twelve turns, cubes that differ only in how they are held counted once."""

    def canonical(cube):
        return min(turned(cube, rotation) for rotation in module._rotations())

    frontier, seen = {canonical(SOLVED)}, {canonical(SOLVED)}
    for level in range(5):
        assert len(frontier) == (1, 6, 27, 120, 534)[level]
        assert {distance(cube) for cube in frontier} == {level}
        frontier = {canonical(turned(cube, turn)) for cube in frontier for turn in TURNS.values()} - seen
        seen |= frontier


def test_all_cubes_lie_within_fourteen_turns():
    """The counts of 2x2 cubes by quarter turns are well known. The whole table is built in a second or two."""
    table = module._Distances()
    while len(table._frontier):
        table._extend()
    counts = [1, 6, 27, 120, 534, 2256, 8969, 33058, 114149, 360508, 930588, 1350852, 782536, 90280, 276]
    assert np.bincount(table._distance).tolist() == counts  # a negative entry, a cube left out, would raise


@settings(deadline=None, max_examples=50)
@given(sequences)
def test_the_oracle_takes_a_shortest_way(names):
    cube = after(names)
    left = distance(cube)
    assert left <= min(len(names), 14)
    for turns_left in range(left, 0, -1):
        assert distance(cube) == turns_left
        cube = turned(cube, TURNS[best_turn(cube)])
    assert is_solved(cube) and best_turn(cube) is None


def test_shallow_cubes_are_solved_in_milliseconds_and_the_rest_once_the_table_is_there():
    module._distances.cache_clear()
    start = time.process_time()
    distance(after(["R", "U"]))
    assert time.process_time() - start < 1
    assert module._distances()._level <= 3  # no further than asked for
    cubes = [after(np.random.default_rng(n).choice(sorted(TURNS), 40).tolist()) for n in range(20)]
    for cube in cubes:
        distance(cube)
    start = time.process_time()
    for cube in cubes:
        best_turn(cube)
    assert (time.process_time() - start) / 20 < 0.01


def test_what_is_no_cube_is_refused():
    with pytest.raises(ValueError, match="is no cube"):
        distance("W" * 24)


def test_rewards_and_the_end():
    env = RubiksCube()
    env.load_cube(after(["F", "R"]))
    observation, reward, terminated, truncated, info = env.step(ACTIONS["R'"])
    assert (observation, reward, terminated, truncated) == (env.render(), 0.0, False, False)
    assert info == {"action_is_valid": True, "action_is_effective": True, "success": False}
    _, reward, terminated, truncated, info = env.step(ACTIONS["B"])
    assert (reward, info["success"]) == (0.0, False)
    env.load_cube(after(["F"]))
    _, reward, terminated, truncated, info = env.step(ACTIONS["B'"])  # the whole cube has turned: solved as well
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True) and env.cube != SOLVED
    assert env.oracle_action() is None
    with pytest.raises(RuntimeError, match="call reset first"):
        env.step(1)


def test_the_step_limit_truncates():
    env = RubiksCube(RubiksCubeConfig(max_steps=2))
    env.load_cube(after(["F", "R", "U"]))
    assert [env.step(ACTIONS["L"])[2:4] for _ in range(2)] == [(False, False), (False, True)]


@pytest.mark.parametrize("depth", [1, 2, 3, 6, 30])
def test_scrambles_are_as_deep_as_told_and_never_solved(depth):
    env, starts, distances = RubiksCube(RubiksCubeConfig(scramble_depth=depth)), set(), []
    for seed in range(60):
        starts.add(env.reset(seed)[0])
        distances.append(distance(env.cube))
        if depth < 6:
            for _ in range(distances[-1]):
                *_, info = env.step(ACTIONS[env.oracle_action()])
            assert info["success"]
    assert 1 <= min(distances) and max(distances) <= min(depth, 14)
    assert len(starts) == 12 if depth == 1 else len(starts) > 35


ABSURD = ["", "U", "<|im_end|>", "a" * 100_000, None, 0, 13, -1, 1.5, 10**100, (1,), b"1"]


@pytest.mark.parametrize("value", ABSURD, ids=lambda value: repr(value)[:20])
def test_absurd_actions_are_invalid_at_once(value):
    env = RubiksCube()
    env.reset(1)
    before = env.render()
    start = time.process_time()
    observation, reward, terminated, truncated, info = env.step(value)
    assert time.process_time() - start < 0.05
    assert (observation, reward, terminated, truncated) == (before, 0.0, False, False)
    assert info == {"action_is_valid": False, "action_is_effective": False, "success": False}


def test_pictures_and_the_legend():
    env = RubiksCube(RubiksCubeConfig(render_mode="rgb_array"))
    assert env.reset(0)[0] == "<image>" and "W white" not in env.instruction()
    picture = env.render("rgb_array")
    assert picture.shape == (6 * 32, 8 * 32, 3) and picture.dtype == np.uint8
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) == 7  # six colours and the ground
    assert "W white" in RubiksCube().instruction()
    with pytest.raises(ValueError, match="cannot render 'svg'"):
        env.render("svg")


def test_budgets_and_senseless_configs():
    assert RubiksCubeConfig(scramble_depth=500, solvable_within=14).scramble_depth == 500
    with pytest.raises(EnvConfigError, match=r"custom_envs.Mine.*scramble_depth of at most 10, or raise"):
        EnvSpec("Mine", "rubikscube", env_config={"scramble_depth": 11}).make()
    for values, message in (
        ({"scramble_depth": 0}, "scramble_depth is 0"),
        ({"scramble_depth": 1001}, "scramble_depth is 1001"),
        ({"render_mode": "x"}, "render_mode is 'x'"),
    ):
        with pytest.raises(ValueError, match=message):
            RubiksCubeConfig(**values)
