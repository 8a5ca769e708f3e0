"""TextWorld: games by seed, what is seen of them, quests fulfilled by plans. Needs the extra `textworld`."""

import pickle
import random
import time
from types import SimpleNamespace

import numpy as np
import pytest

from ragen.env.errors import MissingDependency
from ragen.env.registry import make_env
from ragen.env.textworld.config import TextWorldConfig
from ragen.env.textworld.env import TextWorld
from ragen.env.textworld.view import tell


def facts(*texts):
    """`at(P:P, study:r)` → a proposition as the package makes them."""
    for text in texts:
        name, _, rest = text.rstrip(")").partition("(")
        arguments = [SimpleNamespace(name=n, type=t) for n, t in (a.strip().split(":") for a in rest.split(","))]
        yield SimpleNamespace(name=name, arguments=arguments)


def test_what_a_player_sees_by_hand():
    assert tell(
        facts(
            "at(P:P, study:r)", "at(chest:c, study:r)", "open(chest:c)", "in(coin:o, chest:c)", "at(safe:c, study:r)",
            "locked(safe:c)", "in(gem:o, safe:c)", "at(desk:s, study:r)", "on(pen:o, desk:s)", "on(cup:o, desk:s)",
            "at(rug:o, study:r)", "at(bed:s, attic:r)", "in(key:k, I:I)", "north_of(attic:r, study:r)",
            "south_of(study:r, attic:r)", "west_of(hall:r, study:r)", "link(study:r, gate:d, hall:r)",
            "link(hall:r, gate:d, study:r)", "closed(gate:d)", "free(study:r, attic:r)", "match(key:k, safe:c)",
        )
    ) == (
        "You are in the study.\n"
        "A container: chest, open, in it: coin.\n"
        "A piece of furniture: desk, on it: cup, pen.\n"
        "A container: safe, locked.\n"
        "On the floor: rug.\n"
        "Exits: north, west (door: gate, closed).\n"
        "You carry: key."
    )  # fmt: skip
    assert tell(facts("at(P:P, cell:r)")) == "You are in the cell.\nYou carry: nothing."


def test_a_quest_longer_than_the_episode_is_refused():
    with pytest.raises(ValueError, match="quest_length is 5, more than the 4 actions of an episode"):
        TextWorldConfig(quest_length=5, solvable_within=4)


def test_without_the_package_the_install_line_is_given(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"needs 'textworld'.*pip install -e '\.\[textworld\]'"):
        make_env("textworld")


# --- with the package ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def package():
    pytest.importorskip("textworld", reason="needs the extra textworld: pip install -e '.[textworld]'")


@pytest.mark.usefixtures("package")
class TestGames:
    def test_plans_fulfil_quests_in_as_many_commands_as_asked_for(self):
        for length in (2, 4):
            env = TextWorld(TextWorldConfig(quest_length=length))
            for seed in range(3):
                first = env.reset(seed)[0]
                assert first.startswith("Quest: ") and "\nYou are in the " in first and "\nCommands: " in first
                total, count, ended = 0.0, 0, False
                while not ended:
                    page, reward, ended, truncated, info = env.step(env.oracle_action())
                    assert info["action_is_valid"] and info["action_is_effective"] and not truncated
                    total, count = total + reward, count + 1
                assert (total, count, info["success"]) == (pytest.approx(1), length, True)
                assert page.endswith("You have fulfilled the quest.") and env.oracle_action() is None
                with pytest.raises(RuntimeError, match="call reset first"):
                    env.step("look")
            env.close()

    def test_a_plan_is_found_from_anywhere_that_can_be_won(self):
        env, won = TextWorld(), 0
        for seed in range(3):
            env.reset(seed)
            rng = np.random.default_rng(seed)
            for _ in range(5):
                env.step(env.random_action(rng))
            for _ in range(15):
                action = env.oracle_action()
                if action is None:
                    break
                assert action in env.commands()
                info = env.step(action)[4]
            won += info["success"]
        assert won >= 2  # what the random player has eaten is gone

    def test_random_play_keeps_the_rules(self):
        env = TextWorld(TextWorldConfig(nb_rooms=4, nb_objects=9, max_steps=30))
        before = random.getstate(), np.random.get_state()[1].tolist()
        for seed in range(3):
            first = env.reset(seed)[0]
            assert first == TextWorld(env.config).reset(seed)[0]
            rng = np.random.default_rng(seed)
            for count in range(1, 31):
                action = env.random_action(rng)
                assert action.split()[0] not in ("look", "examine", "inventory")
                page, reward, terminated, truncated, info = env.step(action)
                assert info["action_is_valid"] and 0 <= reward <= 1 and page.startswith("Quest: ")
                assert truncated == (count == 30 and not terminated)
                if terminated:
                    break
        assert (random.getstate(), np.random.get_state()[1].tolist()) == before

    def test_absurd_commands_never_reach_the_game(self):
        env = TextWorld()
        page = env.reset(1)[0]
        known = env.commands()[0]
        for action in ("", " ", "look", "x" * 100_000, "\0", "<|im_end|>", f"{known}\n{known}", None, 5, "√", "quit"):
            start = time.process_time()
            after, reward, terminated, _, info = env.step(action)
            assert time.process_time() - start < 0.1
            assert (after, reward, terminated, info["action_is_valid"]) == (page, 0.0, False, False), action
        assert env.step(f"  {known.upper()} ")[4]["action_is_valid"]

    def test_a_pickled_game_goes_on_alike(self):
        env = TextWorld()
        env.reset(2)
        env.step(env.oracle_action())
        copy = pickle.loads(pickle.dumps(env))
        action = env.oracle_action()
        assert copy.render() == env.render() and copy.oracle_action() == action
        assert copy.step(action) == env.step(action)
