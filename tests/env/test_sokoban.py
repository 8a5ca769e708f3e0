"""Sokoban: rules equal gym-sokoban's step by step, levels are solvable, the solver is exact."""

import random
import warnings
from collections import deque

import numpy as np
import pytest

from ragen.env.sokoban import gym_levels, levels
from ragen.env.sokoban.env import ACTIONS, Sokoban, SokobanConfig, _tiles
from ragen.env.sokoban.levels import Level, _mask, make_level
from ragen.env.sokoban.solver import bits, positions_by_length, shortest_solution

SIMPLE = {"num_boxes": 1}
LARGER = {"dim_x": 8, "dim_y": 8, "num_boxes": 2, "search_depth": 10}


@pytest.fixture(scope="module")
def gym_sokoban_env():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = pytest.importorskip("gym_sokoban.envs.sokoban_env")
    return module.SokobanEnv


def level_of(*rows):
    """A level drawn with the default symbols."""
    cells = "".join(rows)

    def mask(symbols):
        return _mask(np.array([cell in symbols for cell in cells]))

    player = next(n for n, cell in enumerate(cells) if cell in "PS")
    return Level(mask("_OX√PS"), mask("O√S"), player, mask("X√"), len(rows[0]))


def started(*rows, **values):
    env = Sokoban(SokobanConfig(dim_x=len(rows), dim_y=len(rows[0]), **values))
    env.load_level(level_of(*rows))
    return env


def original_with(gym_class, level, height, max_steps):
    """gym-sokoban's environment on the same room."""
    width, num_boxes = level.width, level.boxes.bit_count()
    env = gym_class(dim_room=(height, width), max_steps=max_steps, num_boxes=num_boxes, reset=False)
    fixed = np.zeros(height * width, dtype=int)
    fixed[list(bits(level.floor))] = 1
    fixed[list(bits(level.targets))] = 2
    state = fixed.copy()
    for box in bits(level.boxes):
        state[box] = 3 if level.targets >> box & 1 else 4
    state[level.player] = 5
    env.room_fixed, env.room_state = fixed.reshape(height, width), state.reshape(height, width)
    env.player_position = np.argwhere(env.room_state == 5)[0]
    env.num_env_steps = env.reward_last = 0
    env.boxes_on_target = (level.boxes & level.targets).bit_count()
    return env


# --- rules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values", [SIMPLE, LARGER, {"num_boxes": 3}, {"dim_x": 5, "dim_y": 9, "num_boxes": 2}], ids=str
)
def test_rules_equal_gym_sokobans_over_random_play(gym_sokoban_env, values):
    numbers = {"wall": 0, "floor": 1, "target": 2, "box_on_target": 3, "box": 4, "player": 5, "player_on_target": 5}
    ends, pushes, leaves = [], 0, 0
    for seed in range(25):
        rng = np.random.default_rng(seed)
        env = Sokoban(SokobanConfig(max_steps=60, stand_action=True, **values))
        env.reset(seed)
        original = original_with(gym_sokoban_env, env.level, env.config.dim_x, max_steps=60)
        follow = rng.random() < 0.5  # half the episodes mix in good moves, so that boxes reach targets
        while True:
            if follow and rng.random() < 0.7 and env.oracle_action():
                action = ACTIONS[env.oracle_action()]
            else:
                action = int(rng.integers(0, 5))
            _, reward, terminated, truncated, info = env.step(action)
            _, their_reward, done, their_info = original.step(action, observation_mode="tiny_rgb_array")
            assert reward == pytest.approx(their_reward, abs=1e-12)
            assert (terminated or truncated) == done
            assert info["action_is_effective"] == their_info["action.moved_player"]
            assert [[numbers[name] for name in row] for row in env.cell_names()] == original.room_state.tolist()
            assert env.player == original.player_position[0] * env.level.width + original.player_position[1]
            pushes += their_info["action.moved_box"]
            leaves += reward < -1
            if done:
                assert info["success"] == terminated == their_info["all_boxes_on_target"]
                ends.append(info["success"])
                break
    # The play was worth comparing. (A lone box that reaches a target ends the episode, so it never leaves one.)
    assert 0 < sum(ends) < len(ends) and pushes > 30 and (leaves > 0 or values["num_boxes"] == 1)


def test_rewards_and_end():
    env = started("######", "#PXO_#", "#____#", "######")
    observation, reward, terminated, truncated, info = env.step(ACTIONS["Right"])
    assert observation == "######\n#_P√_#\n#____#\n######"
    assert reward == pytest.approx(10.9) and terminated and not truncated
    assert info == {"action_is_valid": True, "action_is_effective": True, "success": True}

    env = started("#######", "#_P√_O#", "#____X#", "#######")
    assert env.step(ACTIONS["Right"])[1] == pytest.approx(-1.1)
    assert env.step(ACTIONS["Right"])[1] == pytest.approx(0.9)


def test_blocked_moves_change_nothing_but_cost():
    env = started("######", "#PXX_#", "#OO__#", "######")
    for action in ("Up", "Left", "Right"):  # wall, wall, two boxes in a row
        _, reward, terminated, _, info = env.step(ACTIONS[action])
        assert (reward, terminated, info["action_is_effective"], info["action_is_valid"]) == (-0.1, False, False, True)


def test_the_step_limit_truncates():
    env = started("#####", "#PXO#", "#___#", "#####", max_steps=2)
    assert env.step(ACTIONS["Down"])[2:4] == (False, False)
    assert env.step(ACTIONS["Up"])[2:4] == (False, True)


def test_standing_is_an_action_only_where_configured():
    assert Sokoban().action_lookup() == {"Up": 1, "Down": 2, "Left": 3, "Right": 4}
    env = started("#####", "#PXO#", "#___#", "#####", stand_action=True)
    assert env.action_lookup()["Stand"] == 0
    _, reward, _, _, info = env.step(0)
    assert (reward, info["action_is_valid"], info["action_is_effective"]) == (-0.1, True, False)


@pytest.mark.filterwarnings("ignore:Starting with ImageIO:DeprecationWarning")
def test_pictures_are_gym_sokobans(gym_sokoban_env):
    env = started("######", "#P√XO#", "#_O__#", "#_X__#", "######")
    original = original_with(gym_sokoban_env, env.level, 5, 10)
    assert np.array_equal(env.render("rgb_array"), original.render("rgb_array"))
    on_target = started("#####", "#SX_#", "#___#", "#####")
    assert np.array_equal(on_target.render("rgb_array")[16:32, 16:32], _tiles()["player_on_target"])


# --- solver -------------------------------------------------------------------------------------------------------


def plain_search(level):
    """Shortest solution by the environment's own steps: slow and obvious."""
    env = Sokoban(SokobanConfig(dim_x=10, dim_y=level.width))
    queue, seen = deque([(level.player, level.boxes, 0)]), {(level.player, level.boxes)}
    while queue:
        player, boxes, moves = queue.popleft()
        if boxes == level.targets:
            return moves
        for step in (-level.width, level.width, -1, 1):
            env.level, env.player, env.boxes = level, player, boxes
            env._push_or_move(step)
            if (env.player, env.boxes) not in seen:
                seen.add((env.player, env.boxes))
                queue.append((env.player, env.boxes, moves + 1))
    return None


def test_the_solver_is_exact():
    unsolvable = 0
    for seed in range(60):
        config = SokobanConfig(num_boxes=2, dim_x=5, dim_y=6)
        level = make_level(config, seed, np.random.default_rng(seed))
        rng = np.random.default_rng([seed, 1])
        cells = [int(cell) for cell in rng.choice(list(bits(level.floor)), 3, replace=False)]
        level = level._replace(player=cells[0], boxes=1 << cells[1] | 1 << cells[2])  # any position, solvable or not
        solution, moves = shortest_solution(*level), plain_search(level)
        unsolvable += moves is None
        assert (None if solution is None else len(solution)) == moves, seed
    assert 5 < unsolvable < 55


def test_playing_backwards_finds_every_position_with_its_exact_length():
    for seed in range(6):
        level = make_level(SokobanConfig(num_boxes=1), seed, np.random.default_rng(seed))
        layers = positions_by_length(level.floor, level.targets, level.width, 100, 10**6)
        lengths = {position: length for length, layer in enumerate(layers) for position in layer}
        for box in bits(level.floor):
            for player in bits(level.floor & ~(1 << box)):
                solution = shortest_solution(level.floor, level.targets, player, 1 << box, level.width)
                assert lengths.get((player, 1 << box)) == (None if solution is None else len(solution))


def test_the_search_gives_up_at_its_limit():
    level = make_level(SokobanConfig(**LARGER), 3, np.random.default_rng(3))
    assert shortest_solution(*level) and shortest_solution(*level, max_positions=1) is None
    assert len(positions_by_length(*level[:2], level.width, 100, 50)) < 4


def test_the_oracle_solves_in_the_fewest_moves_and_finds_back():
    for seed in range(30):
        env = Sokoban(SokobanConfig(**LARGER, solvable_within=10))
        env.reset(seed)
        fewest = len(shortest_solution(*env.level))
        for _ in range(fewest):
            *_, info = env.step(ACTIONS[env.oracle_action()])
        assert info["success"]
        env.reset(seed)
        env.step(int(np.random.default_rng(seed).integers(1, 5)))  # off the way, or even lost
        here = (env.level.floor, env.level.targets, env.player, env.boxes, env.level.width)
        left = shortest_solution(*here)
        assert (env.oracle_action() is None) == (not left)
        if left:
            assert len(shortest_solution(*here)) == len(env._plan)


# --- levels -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "within"),
    [
        ({**SIMPLE, "solvable_within": 10}, 10),
        ({**LARGER, "solvable_within": 10}, 10),
        ({**LARGER, "search_depth": 300, "solvable_within": 4}, 4),
        ({"num_boxes": 2, "search_depth": 6}, 6),
        ({"num_boxes": 3}, 300),
    ],
    ids=str,
)
def test_every_level_is_sound_and_solvable_within_its_budget(values, within):
    config = SokobanConfig(**values)
    for seed in range(10_000, 10_200):
        level = make_level(config, seed, np.random.default_rng(seed))
        assert level.boxes.bit_count() == level.targets.bit_count() == config.num_boxes
        assert not level.boxes & level.targets and not level.boxes >> level.player & 1
        assert (level.floor & level.boxes, level.floor & level.targets) == (level.boxes, level.targets)
        rows, columns = zip(*(divmod(cell, level.width) for cell in bits(level.floor)), strict=True)
        assert min(rows) >= 1 and max(rows) <= config.dim_x - 2  # closed by walls
        assert min(columns) >= 1 and max(columns) <= config.dim_y - 2
        assert 1 <= len(shortest_solution(*level)) <= within, seed


def test_difficulty_resembles_what_is_published():
    """60 seeds from 10000, 6x6 and one box: shortest solutions of 3.8 moves on average, 11 at most."""
    config = SokobanConfig(**SIMPLE, solvable_within=10)
    lengths = [len(shortest_solution(*make_level(config, s, np.random.default_rng(s)))) for s in range(10_000, 10_300)]
    assert 3.3 < np.mean(lengths) < 4.3 and max(lengths) == 10


def test_rooms_have_walls_inside_and_differ():
    config = SokobanConfig(**LARGER)
    levels = [make_level(config, seed, np.random.default_rng(seed)) for seed in range(100)]
    share = np.array([level.floor.bit_count() / 36 for level in levels])
    assert 0.65 < share.mean() < 0.9 and share.min() < 0.6 and share.max() > 0.9
    assert len(set(levels)) == 100


def test_a_level_that_cannot_be_names_the_seed_and_the_fix():
    env = Sokoban(SokobanConfig(dim_x=4, dim_y=4, num_boxes=4))
    with pytest.raises(ValueError, match=r"seed 9: no level with dim_x 4, dim_y 4, num_boxes 4.*fewer boxes"):
        env.reset(9)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dim_x": 3}, "dim_x is 3"),
        ({"num_boxes": 0}, "num_boxes is 0"),
        ({"num_boxes": None}, "num_boxes is None"),
        ({"levels": "theirs"}, "levels is 'theirs'; choose one of ours, gym_sokoban"),
        ({"symbols": {"bx": "B"}}, "symbols names bx"),
        ({"symbols": {"box": "#"}}, "must all differ"),
    ],
)
def test_senseless_configs_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        SokobanConfig(**values)


# --- the original generator ---------------------------------------------------------------------------------------


def test_the_original_generator_gives_its_own_rooms_without_global_state(gym_sokoban_env):
    from gym_sokoban.envs import room_utils

    saved = random.getstate(), np.random.get_state()
    found = 0
    try:
        for seed in range(10_000, 10_020):
            random.seed(seed)
            np.random.seed(seed)
            try:
                fixed, state, _ = room_utils.generate_room(dim=(6, 6), num_steps=20, num_boxes=1)
            except (RuntimeError, RuntimeWarning):
                assert gym_levels.generate(seed, (6, 6), 1, 300) is None
                continue
            random.seed(1)  # elsewhere than the original has left them
            np.random.seed(1)
            explored, before = room_utils.explored_states, (random.getstate(), np.random.get_state()[1].tolist())
            ours = gym_levels.generate(seed, (6, 6), 1, 300)
            assert before == (random.getstate(), np.random.get_state()[1].tolist())
            assert room_utils.explored_states is explored
            assert np.array_equal(ours[0], fixed) and np.array_equal(ours[1], state)
            found += 1
    finally:
        random.setstate(saved[0])
        np.random.set_state(saved[1])
    assert found > 10


def test_original_levels_are_solvable_within_the_budget_and_deterministic():
    config = SokobanConfig(**LARGER, levels="gym_sokoban", solvable_within=7)
    for seed in range(12):
        env, again = Sokoban(config), Sokoban(config)
        assert env.reset(seed) == again.reset(seed)
        assert len(shortest_solution(*env.level)) <= 7


def test_search_depth_bounds_the_original_generators_reverse_play():
    explored = []
    for depth in (5, 30):
        module = gym_levels.private_module(10_001, depth)
        module.generate_room(dim=(8, 8), num_steps=27, num_boxes=2)
        explored.append(len(module.explored_states))
    assert explored[0] < explored[1]


def test_a_level_is_made_once_for_all_members_of_a_group(monkeypatch):
    made = []
    monkeypatch.setattr(levels, "make_level", lambda *args: made.append(args[1]) or make_level(*args))
    starts = set()
    for member in range(8):
        env = Sokoban(SokobanConfig(num_boxes=1, max_steps=40 + member))  # what decides on no level
        starts.add(env.reset(987_001, luck=member)[0])
        env.step(1)
    assert made == [987_001] and len(starts) == 1
    Sokoban(SokobanConfig(num_boxes=2)).reset(987_001)  # another config, another level
    assert made == [987_001, 987_001]
    # Equal to the level that the environment's own stream would give.
    config = SokobanConfig(num_boxes=1)
    env.reset(987_002)
    assert env.level == make_level(config, 987_002, env.level_rng)
