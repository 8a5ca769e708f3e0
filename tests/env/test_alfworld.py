"""ALFWorld, on games built from the rules and the grammar that the package ships. Needs the extra `alfworld`."""

import json
import pickle
import time

import numpy as np
import pytest

from ragen.env.alfworld.config import AlfworldConfig
from ragen.env.alfworld.env import Alfworld
from ragen.env.errors import MissingData, MissingDependency
from ragen.env.registry import make_env

PROBLEM = """
(define (problem kitchen) (:domain alfred)
 (:objects agent1 - agent loc_0 loc_1 loc_2 loc_3 loc_4 - location
   Fridge_bar__plus_1 CounterTop_bar__plus_1 Microwave_bar__plus_1 Drawer_bar__plus_1 - receptacle
   Apple_bar__plus_1 Mug_bar__plus_1 - object
   FridgeType CounterTopType MicrowaveType DrawerType - rtype AppleType MugType - otype)
 (:init (= (total-cost) 0) (atLocation agent1 loc_0)
   (receptacleType Fridge_bar__plus_1 FridgeType) (receptacleAtLocation Fridge_bar__plus_1 loc_1)
   (receptacleType CounterTop_bar__plus_1 CounterTopType) (receptacleAtLocation CounterTop_bar__plus_1 loc_2)
   (receptacleType Microwave_bar__plus_1 MicrowaveType) (receptacleAtLocation Microwave_bar__plus_1 loc_3)
   (receptacleType Drawer_bar__plus_1 DrawerType) (receptacleAtLocation Drawer_bar__plus_1 loc_4)
   (openable Fridge_bar__plus_1) (openable Microwave_bar__plus_1) (openable Drawer_bar__plus_1)
   (objectType Apple_bar__plus_1 AppleType) (objectType Mug_bar__plus_1 MugType)
   (pickupable Apple_bar__plus_1) (pickupable Mug_bar__plus_1) (heatable Apple_bar__plus_1)
   (canContain FridgeType AppleType) (canContain CounterTopType AppleType) (canContain MicrowaveType AppleType)
   (canContain CounterTopType MugType) (canContain DrawerType MugType)
   (inReceptacle Apple_bar__plus_1 Fridge_bar__plus_1) (objectAtLocation Apple_bar__plus_1 loc_1)
   (inReceptacle Mug_bar__plus_1 CounterTop_bar__plus_1) (objectAtLocation Mug_bar__plus_1 loc_2))
 (:goal GOAL) (:metric minimize (total-cost)))
"""
PUT_APPLE = (
    "(exists (?o - object ?r - receptacle) (and (objectType ?o AppleType) (receptacleType ?r CounterTopType) "
    "(inReceptacle ?o ?r)))"
)
HOT_APPLE = PUT_APPLE.replace("(inReceptacle", "(isHot ?o) (inReceptacle")


@pytest.fixture
def data(tmp_path):
    """A folder as alfworld-download makes it, with two games to play and others to leave out."""
    reason = "needs the extra alfworld: pip install -e '.[alfworld]'"
    package = pytest.importorskip("alfworld.info", reason=reason)
    texts = [open(path, encoding="utf-8").read() for path in (package.ALFRED_PDDL_PATH, package.ALFRED_TWL2_PATH)]

    def game(split, task, goal, wish, solvable=True):
        folder = tmp_path / "json_2.1.1" / split / task / "trial_1"
        folder.mkdir(parents=True)
        parts = {"pddl_domain": texts[0], "grammar": texts[1].replace("UNKNOWN GOAL", wish), "solvable": solvable}
        parts["pddl_problem"] = PROBLEM.replace("GOAL", goal)
        (folder / "game.tw-pddl").write_text(json.dumps(parts))

    game("valid_seen", "pick_and_place_simple-Apple-None-CounterTop-1", PUT_APPLE, "put some apple on countertop")
    game("valid_seen", "pick_and_place_simple-Mug-None-Drawer-1", PUT_APPLE, "never seen", solvable=False)
    game("valid_seen", "pick_and_place_with_movable_recep-Apple-Bowl-Drawer-1", PUT_APPLE, "never seen")
    game("valid_seen", "pick_and_place_simple-AppleSliced-None-Drawer-1", PUT_APPLE, "never seen")
    wish = "heat some apple and put it in countertop"
    game("valid_seen", "pick_heat_then_place_in_recep-Apple-None-CounterTop-1", HOT_APPLE, wish)
    game("valid_unseen", "pick_heat_then_place_in_recep-Apple-None-CounterTop-2", HOT_APPLE, wish)
    return str(tmp_path)


def test_a_game_by_hand(data):
    env = make_env("alfworld", {"data_dir": data, "task_types": [1]})
    page, _ = env.reset(0)
    assert page == (
        "Task: put some apple on countertop.\n"
        "You are in the middle of a room. Looking quickly around you, you see a countertop 1, a drawer 1, a fridge 1, "
        "and a microwave 1.\n"
        "Commands: go to countertop 1, go to drawer 1, go to fridge 1, go to microwave 1, inventory, look"
    )
    page, reward, terminated, truncated, info = env.step("Go to  fridge 1")
    assert page.splitlines()[:2] == [
        "Task: put some apple on countertop.", "You arrive at fridge 1. The fridge 1 is closed.",
    ]  # fmt: skip
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info == {"action_is_valid": True, "action_is_effective": True, "success": False}
    for action in ("open fridge 1", "take apple 1 from fridge 1", "go to countertop 1"):
        assert env.step(action)[1:4] == (0.0, False, False)
    page, reward, terminated, truncated, info = env.step("move apple 1 to countertop 1")
    assert (reward, terminated, truncated, info["success"]) == (10.0, True, False, True)
    assert "Commands" not in page and env.oracle_action() is None
    with pytest.raises(RuntimeError, match="call reset first"):
        env.step("look")
    env.close()
    env.close()


def test_the_planner_wins_from_anywhere(data):
    env = Alfworld(AlfworldConfig(data_dir=data, split="eval_out_of_distribution"))
    assert "heat some apple" in env.reset(0)[0]
    rng = np.random.default_rng(0)
    for _ in range(4):
        page, _, _, _, info = env.step(env.random_action(rng))
        assert info["action_is_valid"]
    while (action := env.oracle_action()) is not None:
        reward = env.step(action)[1]
    assert reward == 10.0


def test_only_solvable_games_of_the_task_types_are_dealt(data):
    env = Alfworld(AlfworldConfig(data_dir=data))
    tasks = {env.game_file(seed).parts[-3] for seed in range(30)}
    assert tasks == {
        "pick_and_place_simple-Apple-None-CounterTop-1", "pick_heat_then_place_in_recep-Apple-None-CounterTop-1",
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"task_types is \[2\]: .* holds no game of them"):
        Alfworld(AlfworldConfig(data_dir=data, task_types=[2])).game_file(0)


def test_absurd_commands_are_invalid_and_the_limit_truncates(data):
    env = Alfworld(AlfworldConfig(data_dir=data, max_steps=9))
    first, _ = env.reset(0)
    for action in ("", "x" * 100_000, "\0", "<|im_end|>", "go to mars", None, "help", "look\nlook"):
        start = time.process_time()
        page, reward, terminated, truncated, info = env.step(action)
        assert time.process_time() - start < 0.1 and page == first
        assert (reward, terminated, truncated, info["action_is_valid"]) == (0.0, False, False, False)
    assert env.step("look")[2:4] == (False, True)


def test_equal_seeds_give_equal_games_and_a_pickled_one_goes_on_alike(data):
    one, two = (Alfworld(AlfworldConfig(data_dir=data)) for _ in range(2))
    assert one.reset(5, luck=1) == two.reset(5, luck=2)
    one.step("go to fridge 1")
    copy = pickle.loads(pickle.dumps(one))
    assert copy.render() == one.render() and copy.step("open fridge 1") == one.step("open fridge 1")


def test_missing_data_is_named(tmp_path):
    pytest.importorskip("alfworld", reason="needs the extra alfworld: pip install -e '.[alfworld]'")
    with pytest.raises(MissingData, match="run alfworld-download, or set env_config.data_dir"):
        make_env("alfworld", {"data_dir": str(tmp_path)})


def test_without_the_package_the_install_line_is_given(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"needs 'alfworld'.*pip install -e '\.\[alfworld\]'"):
        make_env("alfworld")


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(ValueError, match="split is 'test'; choose one of train, eval_in_distribution"):
        AlfworldConfig(split="test")
    with pytest.raises(ValueError, match=r"task_types is \[7\]; give some of 1, 2"):
        AlfworldConfig(task_types=[7])
