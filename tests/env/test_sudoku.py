"""Sudoku: solver and uniqueness against plain search, rewards by hand, budgets, absurd actions."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen.env.registry import EnvConfigError, EnvSpec
from ragen.env.sudoku.env import Sudoku, SudokuConfig
from ragen.env.sudoku.puzzles import GaveUp, Puzzle, make_puzzle, shape, solve

SOLUTION = (1, 2, 3, 4, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1)
PUZZLE = Puzzle((1, 0, 0, 4, 0, 4, 1, 0, 2, 0, 0, 3, 4, 3, 2, 1), SOLUTION)


def small():
    env = Sudoku(SudokuConfig(size=4))
    env.load_puzzle(PUZZLE)
    return env


def is_solved(board, size):
    return all(sorted(board[c] for c in unit) == list(range(1, size + 1)) for unit in shape(size).units)


def plain_solutions(board, limit=2):
    """Solutions of a 4x4 board, cell by cell, by the rules written out again."""
    if 0 not in board:
        return [tuple(board)]
    cell, found = board.index(0), []
    row, column = divmod(cell, 4)
    for number in range(1, 5):
        taken = any(
            board[4 * r + c] == number
            for r in range(4)
            for c in range(4)
            if r == row or c == column or (r // 2, c // 2) == (row // 2, column // 2)
        )
        if not taken:
            found += plain_solutions([*board[:cell], number, *board[cell + 1 :]], limit - len(found))
            if len(found) >= limit:
                break
    return found


def test_rows_columns_and_boxes():
    units = shape(4).units
    assert len(units) == 12 and (0, 1, 4, 5) in units and (2, 6, 10, 14) in units and (12, 13, 14, 15) in units
    assert set(shape(9).peers[0]) == {*range(1, 9), *range(9, 81, 9), 10, 11, 19, 20}


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 4), min_size=16, max_size=16), st.integers(0, 2**16 - 1))
def test_the_solver_agrees_with_plain_search(noise, kept):
    board = [number if kept >> cell & 1 else 0 for cell, number in enumerate(SOLUTION)]
    for cell in range(0, 16, 5):
        board[cell] = noise[cell] or board[cell]
    clash = any(board[a] and board[a] == board[b] for a in range(16) for b in shape(4).peers[a])
    found = solve(board, 4)
    if clash or not plain_solutions(board, limit=1):
        assert found is None
    else:
        assert is_solved(found, 4) and all(not b or b == f for b, f in zip(board, found, strict=True))


def test_a_well_known_hard_puzzle():
    text = "85...24..72......9..4.........1.7..23.5...9...4...........8..7..17..........36.4."
    board = [0 if c == "." else int(c) for c in text]
    found = solve(board, 9)
    assert is_solved(found, 9) and all(not b or b == f for b, f in zip(board, found, strict=True))


@pytest.mark.parametrize(("size", "givens"), [(4, 4), (4, 8), (9, 24), (9, 40), (9, 61)])
def test_puzzles_have_one_solution(size, givens):
    for seed in range(8):
        puzzle = make_puzzle(size, givens, np.random.default_rng(seed))
        assert is_solved(puzzle.solution, size)
        assert sum(map(bool, puzzle.givens)) == givens
        assert all(not g or g == s for g, s in zip(puzzle.givens, puzzle.solution, strict=True))
        if size == 4:
            assert plain_solutions(list(puzzle.givens)) == [puzzle.solution]
        # No other number leads anywhere in any empty cell: the solver alone says so, without the cutter's shortcuts.
        for cell in [c for c, g in enumerate(puzzle.givens) if not g][:: 1 if size == 4 else 7]:
            for number in range(1, size + 1):
                if number != puzzle.solution[cell]:
                    assert solve([*puzzle.givens[:cell], number, *puzzle.givens[cell + 1 :]], size) is None


@pytest.mark.parametrize(("size", "givens", "seconds"), [(9, 24, 0.5), (9, 51, 0.1), (16, 120, 1.0), (16, 200, 1.0)])
def test_generation_is_fast(size, givens, seconds):
    taken = []
    for seed in range(5):
        start = time.process_time()
        puzzle = make_puzzle(size, givens, np.random.default_rng(seed))
        taken.append(time.process_time() - start)
        assert is_solved(puzzle.solution, size)
    assert np.median(taken) < seconds  # of processor time: the machine may be busy


def test_rewards_by_hand():
    env = small()
    assert env.render() == (
        "col   1  2  | 3  4\nrow 1 1* .  | .  4*\nrow 2 .  4* | 1* .\nrow 3 2* .  | .  3*\nrow 4 4* 3* | 2* 1*"
    )
    steps = [
        ("place 2 at row 1 col 2", 1.0, True),  # right
        ("1,2,2", -0.1, False),  # it stands there
        ("1,1,1", -0.1, False),  # a given
        ("place 3 at row 3 column 3", -0.1, False),  # 3 is in the row
        ("2,1,2", -0.1, False),  # 2 is in the column
        ("2,4,3", -0.1, False),  # 3 is in the column
        ("5,1,1", -0.1, False),  # no such row
        ("(2, 1, 3)", 1.0, True),
        ("Place 2  at ROW 2, col 4.", 1.0, True),
        ("1,3,3", 1.0, True),
        ("3,2,1", 1.0, True),
    ]
    for action, paid, valid in steps:
        observation, reward, terminated, truncated, info = env.step(action)
        assert (reward, terminated, truncated) == (paid, False, False), action
        assert info == {"action_is_valid": valid, "action_is_effective": valid, "success": False}
        assert observation == env.render()
    _, reward, terminated, truncated, info = env.step("3,3,4")
    assert (reward, terminated, truncated, info["success"]) == (11.0, True, False, True)
    assert env.oracle_action() is None
    with pytest.raises(RuntimeError, match="call reset first"):
        env.step("3,3,4")


def test_a_legal_wrong_number_pays_half_once_and_can_be_replaced():
    env = Sudoku(SudokuConfig(size=4))
    env.load_puzzle(Puzzle((1, 0, 0, 0, 0, 0, 0, 2, 0, 1, 0, 0, 4, 0, 0, 0), SOLUTION))
    assert [env.step(a)[1] for a in ("1,2,3", "1,2,2", "1,2,3", "1,2,2")] == [0.5, 1.0, 0.0, 0.0]
    assert env.board[1] == 2


def test_the_step_limit_truncates():
    env = Sudoku(SudokuConfig(size=4, max_steps=2))
    env.reset(0)
    assert [env.step("")[2:4] for _ in range(2)] == [(False, False), (False, True)]


ABSURD = ["", " ", "place", "1,2", "1,2,3,4", "0,1,1", "1,0,1", "1,1,0", "1,1,10", "100,1,1", "-1,1,1", "1;1;1",
          "١,٢,٣", "<|im_end|>", "place 5 at row 2 col 3; rm -rf /", "\x00", "\ud800", "1," * 50_000,
          " " * 100_000 + "1,1,1", "place " * 20_000, None, 99, (1, 2, 3), b"1,2,3"]  # fmt: skip


@pytest.mark.parametrize("text", ABSURD, ids=lambda text: repr(text)[:20])
def test_absurd_actions_are_invalid_at_once(text):
    env = Sudoku()
    env.reset(1)
    before = env.render()
    start = time.process_time()
    observation, reward, terminated, truncated, info = env.step(text)
    assert time.process_time() - start < 0.05
    assert (observation, reward, terminated, truncated) == (before, -0.1, False, False)
    assert info == {"action_is_valid": False, "action_is_effective": False, "success": False}


@pytest.mark.parametrize(
    "values", [{"size": 4}, {"size": 9, "givens": 30}, {"size": 9, "givens": 61}, {"size": 16}], ids=str
)
def test_the_oracle_solves(values):
    env = Sudoku(SudokuConfig(**values))
    for seed in range(4):
        env.reset(seed)
        empty, total = env.board.count(0), 0.0
        for _ in range(empty):
            _, reward, terminated, _, info = env.step(env.oracle_action())
            total += reward
        assert terminated and info["success"] and total == empty + 10


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from([4, 9]))
def test_random_play_keeps_the_rules(seed, luck, size):
    env, rng = Sudoku(SudokuConfig(size=size)), np.random.default_rng(luck)
    env.reset(seed)
    paid = 0.0
    for _ in range(60):
        action = env.random_action(rng)
        if action is None:
            assert not any(env._is_possible(c, n) for c in range(size**2) for n in range(1, size + 1))
            break
        _, reward, terminated, truncated, info = env.step(action)
        assert info["action_is_valid"] and reward in (0.0, 0.5, 1.0, 10.5, 11.0)
        paid += reward
        for unit in shape(size).units:
            standing = [env.board[c] for c in unit if env.board[c]]
            assert len(set(standing)) == len(standing)
        assert all(not g or g == b for g, b in zip(env.puzzle.givens, env.board, strict=True))
        assert info["success"] == terminated == (0 not in env.board)
        if terminated:
            break
        oracle = env.oracle_action()
        assert oracle is None or env._is_possible(*env._placement(oracle))
    assert paid <= 10 + 0.5 * size**3


def test_the_oracle_makes_way_for_a_right_number():
    env = Sudoku(SudokuConfig(size=4))
    env.load_puzzle(Puzzle((0,) * 16, SOLUTION))
    env.board[:2] = 2, 1  # changed places: neither can be set right before one of them has moved away
    actions = []
    for _ in range(17):
        actions.append(env.oracle_action())
        *_, info = env.step(actions[-1])
    assert actions[:3] == ["place 3 at row 1 col 1", "place 2 at row 1 col 2", "place 1 at row 1 col 1"]
    assert info["success"]


def test_the_oracle_says_when_numbers_block_each_other_for_good():
    env = Sudoku(SudokuConfig(size=4))
    env.load_puzzle(Puzzle((0, 0, *SOLUTION[2:]), SOLUTION))
    env.board[:2] = 2, 1
    assert env.oracle_action() is None and env.random_action(np.random.default_rng(0)) is None


def test_budgets():
    assert SudokuConfig(solvable_within=20).number_of_givens == 61
    assert SudokuConfig(size=4, solvable_within=20).number_of_givens == 4
    assert SudokuConfig().number_of_givens == 48
    with pytest.raises(ValueError, match=r"51 cells are empty, but solvable_within is 20; give at least 61 givens"):
        SudokuConfig(givens=30, solvable_within=20)
    spec = EnvSpec("Mine", "sudoku", max_actions_per_traj=10, env_config={"givens": 30})
    with pytest.raises(EnvConfigError, match=r"custom_envs.Mine.*at least 71 givens, or raise max_actions_per_traj"):
        spec.make()
    assert EnvSpec("Mine", "sudoku", env_config={"givens": 30, "solvable_within": None}).make().config.givens == 30


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": 6}, "size is 6; choose one of 4, 9, 16"),
        ({"givens": 23}, "givens is 23; give a whole number of at least 24"),
        ({"size": 16, "givens": 100}, "givens is 100; give a whole number of at least 120"),
        ({"givens": 81}, "leaves nothing to solve"),
        ({"render_mode": "ascii"}, "render_mode is 'ascii'"),
    ],
)
def test_senseless_configs_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        SudokuConfig(**values)


def test_a_search_stops_at_its_limit(monkeypatch):
    monkeypatch.setattr("ragen.env.sudoku.puzzles.SEARCH_LIMIT", 3)
    with pytest.raises(GaveUp):
        solve([0] * 256, 16)


def test_pictures_and_the_legend():
    env = Sudoku(SudokuConfig(render_mode="rgb_array"))
    assert env.reset(3)[0] == "<image>"
    before = env.render("rgb_array")
    assert before.shape == (9 * 28, 9 * 28, 3) and before.dtype == np.uint8
    env.step(env.oracle_action())
    assert (env.render("rgb_array") != before).any()
    assert "blue" in env.instruction() and "asterisk" not in env.instruction()
    assert "4x4 board" in Sudoku(SudokuConfig(size=4)).instruction()
    with pytest.raises(ValueError, match="cannot render 'svg'"):
        env.render("svg")
