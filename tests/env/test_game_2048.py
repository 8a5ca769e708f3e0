"""2048: moves and merges by hand, new tiles, rewards, the end, strong play."""

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen.env.game_2048.board import ACTIONS, empty_cells, move, moves, slide
from ragen.env.game_2048.env import Game2048, Game2048Config

UP, RIGHT, DOWN, LEFT = (ACTIONS[name] for name in ("Up", "Right", "Down", "Left"))


@pytest.mark.parametrize(
    ("row", "after", "gained"),
    [
        ((0, 0, 0, 0), (0, 0, 0, 0), 0),
        ((0, 2, 0, 4), (2, 4, 0, 0), 0),
        ((2, 2, 0, 0), (4, 0, 0, 0), 4),
        ((2, 0, 0, 2), (4, 0, 0, 0), 4),
        ((2, 2, 2, 0), (4, 2, 0, 0), 4),  # the pair nearer the wall
        ((2, 2, 2, 2), (4, 4, 0, 0), 8),
        ((4, 2, 2, 0), (4, 4, 0, 0), 4),  # what merged does not merge again
        ((2, 2, 4, 8), (4, 4, 8, 0), 4),
        ((2, 4, 2, 4), (2, 4, 2, 4), 0),
        ((8, 8, 0, 16), (16, 16, 0, 0), 16),
    ],
)
def test_a_row_by_hand(row, after, gained):
    assert slide(row) == (after, gained)


BOARD = (
    (0, 2, 0, 2),
    (4, 0, 2, 0),
    (4, 0, 0, 8),
    (0, 2, 2, 8),
)


@pytest.mark.parametrize(
    ("action", "after", "gained"),
    [
        (UP, ((8, 4, 4, 2), (0, 0, 0, 16), (0, 0, 0, 0), (0, 0, 0, 0)), 32),
        (DOWN, ((0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 2), (8, 4, 4, 16)), 32),
        (LEFT, ((4, 0, 0, 0), (4, 2, 0, 0), (4, 8, 0, 0), (4, 8, 0, 0)), 8),
        (RIGHT, ((0, 0, 0, 4), (0, 0, 4, 2), (0, 0, 4, 8), (0, 0, 4, 8)), 8),
    ],
)
def test_the_four_directions_by_hand(action, after, gained):
    assert move(BOARD, action) == (after, gained)
    env = Game2048()
    env.seed_streams(1)
    env.load_board(BOARD)
    _, reward, terminated, truncated, info = env.step(action)
    assert reward == pytest.approx(0.1 * math.log2(gained + 1))
    assert (terminated, truncated) == (False, False)
    assert info == {"action_is_valid": True, "action_is_effective": True, "success": False}
    new = [(r, c) for r in range(4) for c in range(4) if env.board[r][c] != after[r][c]]
    assert len(new) == 1 and after[new[0][0]][new[0][1]] == 0 and env.board[new[0][0]][new[0][1]] in (2, 4)


def test_a_move_without_a_merge_pays_nothing_and_one_without_effect_costs():
    env = Game2048()
    env.seed_streams(1)
    env.load_board(((2, 4, 0, 0), (0,) * 4, (0,) * 4, (0,) * 4))
    before = env.board
    observation, reward, terminated, truncated, info = env.step(LEFT)
    assert (reward, terminated, truncated, env.board, observation) == (-0.1, False, False, before, env.render())
    assert info == {"action_is_valid": True, "action_is_effective": False, "success": False}
    assert env.step(DOWN)[1] == 0.0


def test_the_target_tile_wins():
    env = Game2048()
    env.seed_streams(1)
    env.load_board(((1024, 1024, 0, 0), (0,) * 4, (0,) * 4, (0,) * 4))
    _, reward, terminated, truncated, info = env.step(LEFT)
    assert reward == pytest.approx(0.1 * math.log2(2049))
    assert (terminated, truncated, info["success"], env.oracle_action()) == (True, False, True, None)
    with pytest.raises(RuntimeError, match="call reset first"):
        env.step(LEFT)


def test_a_board_without_a_move_is_lost():
    env = Game2048(Game2048Config(size=2))
    env.seed_streams(1)
    env.load_board(((8, 16), (32, 0)))
    _, reward, terminated, truncated, info = env.step(RIGHT)  # 32 moves right; the new tile fits with nothing
    assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)
    assert not moves(env.board) and env.random_action(np.random.default_rng(0)) is None


def test_the_step_limit_truncates():
    env = Game2048(Game2048Config(max_steps=3))
    env.reset(0)
    assert [env.step(99)[3] for _ in range(3)] == [False, False, True]


def test_new_tiles_are_even_over_empty_cells_and_a_tenth_are_fours():
    env, cells, fours = Game2048(), np.zeros(16), 0
    for luck in range(2000):
        env.seed_streams(1, luck)
        env.load_board(((2, 0, 0, 0), (0,) * 4, (0,) * 4, (0,) * 4))
        env.step(RIGHT)
        new = [(r, c) for r in range(4) for c in range(4) if env.board[r][c] and (r, c) != (0, 3)]
        assert len(new) == 1
        cells[4 * new[0][0] + new[0][1]] += 1
        fours += env.board[new[0][0]][new[0][1]] == 4
    assert cells[3] == 0 and np.delete(cells, 3).min() > 90
    assert fours / 2000 == pytest.approx(0.1, abs=0.025)


def test_starts_have_two_tiles_and_vary():
    env, starts = Game2048(), set()
    for seed in range(200):
        starts.add(env.reset(seed)[0])
        tiles = [tile for row in env.board for tile in row if tile]
        assert len(tiles) == 2 and set(tiles) <= {2, 4}
    assert len(starts) > 100  # of 480, nearly all of the draws being of two 2s


def test_members_share_the_start_and_have_their_own_luck():
    ends = set()
    for luck in range(10):
        env = Game2048()
        start = env.reset(5, luck=luck)[0]
        assert start == Game2048().reset(5)[0]
        for action in (1, 2, 3, 4):
            env.step(action)
        ends.add(env.board)
    assert len(ends) > 5


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from([2, 3, 4, 5]))
def test_random_play_keeps_the_rules(seed, luck, size):
    env, rng = Game2048(Game2048Config(size=size)), np.random.default_rng(luck)
    env.reset(seed, luck=luck)
    low, high = env.reward_range
    for _ in range(120):
        board = env.board
        name = env.random_action(rng)
        _, reward, terminated, _, info = env.step(ACTIONS[name])
        grown = sum(map(sum, env.board)) - sum(map(sum, board))
        assert grown in (2, 4)  # merging keeps the sum
        assert all(tile == 0 or (tile > 1 and tile & (tile - 1) == 0) for row in env.board for tile in row)
        assert 0 <= reward <= high and low == -0.1
        assert info["action_is_effective"] and info["action_is_valid"]
        full = not empty_cells(env.board)
        assert not terminated or (full and not moves(env.board))
        if terminated:
            break


ABSURD = ["", "Up", "<|im_end|>", "a" * 100_000, None, 0, 5, -1, 1.5, 10**100, (1,), b"1"]


@pytest.mark.parametrize("value", ABSURD, ids=lambda value: repr(value)[:20])
def test_absurd_actions_are_invalid_at_once(value):
    env = Game2048()
    env.reset(1)
    before = env.render()
    start = time.process_time()
    observation, reward, terminated, truncated, info = env.step(value)
    assert time.process_time() - start < 0.05
    assert (observation, reward, terminated, truncated) == (before, -0.1, False, False)
    assert info == {"action_is_valid": False, "action_is_effective": False, "success": False}


def test_the_oracle_plays_well_and_fast():
    env, reached, taken = Game2048(Game2048Config(target_tile=256)), 0, []
    for seed in range(5):
        env.reset(seed)
        while not env._over:
            start = time.process_time()
            name = env.oracle_action()
            taken.append(time.process_time() - start)
            *_, info = env.step(ACTIONS[name])
            assert info["action_is_effective"]
        reached += info["success"]
    assert reached == 5
    assert np.median(taken) < 0.02


def test_the_text_lines_up_and_the_picture_shows_the_tiles():
    env = Game2048()
    env.load_board(((0, 2, 0, 1024), (0,) * 4, (0,) * 4, (16, 0, 0, 0)))
    rows = env.render().splitlines()
    assert rows[0] == "   .    2    . 1024" and len({len(row) for row in rows}) == 1
    picture = env.render("rgb_array")
    assert picture.shape == (192, 192, 3) and picture.dtype == np.uint8
    tiles = [picture[r * 48 : r * 48 + 48, c * 48 : c * 48 + 48] for r, c in ((0, 0), (0, 1), (0, 3), (3, 0))]
    assert len({tile.tobytes() for tile in tiles}) == 4
    env = Game2048(Game2048Config(render_mode="rgb_array"))
    assert env.reset(0)[0] == "<image>" and "dot" not in env.instruction()
    with pytest.raises(ValueError, match="cannot render 'svg'"):
        env.render("svg")


def test_the_instruction_is_that_of_the_config():
    text = Game2048(Game2048Config(size=5, target_tile=512, four_probability=0.25)).instruction()
    assert "5x5" in text and "512" in text and "25%" in text


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": 1}, "size is 1"),
        ({"size": 9}, "size is 9; give at most 8"),
        ({"target_tile": 1000}, "target_tile is 1000; give a power of two"),
        ({"four_probability": 1.5}, "four_probability is 1.5"),
        ({"render_mode": "x"}, "render_mode is 'x'"),
    ],
)
def test_senseless_configs_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        Game2048Config(**values)
