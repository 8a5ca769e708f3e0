"""The TextArena adapter: games played by hand, seeds and luck, games that cannot be played."""

import random

import numpy as np
import pytest

from ragen.env import EnvConfigError, MissingDependency, make_env

pytestmark = pytest.mark.timeout(600)  # the first import of the package may take long on a busy machine


@pytest.fixture(scope="module", autouse=True)
def package():
    return pytest.importorskip("textarena", reason="the extra 'textarena' is not installed")


def game(name, **config):
    return make_env("textarena", {"id": name, **config})


def test_guess_the_number_by_halving():
    for seed in range(5):
        env = game("GuessTheNumber-v0")
        assert env.reset(seed)[0] == "The game begins."
        assert "between 1 and 20" in env.instruction()
        low, high, terminated = 1, 20, False
        while not terminated:
            guess = (low + high) // 2
            text, reward, terminated, truncated, info = env.step(f"I guess [{guess}].")
            low, high = (low, guess - 1) if "lower" in text else (guess + 1, high)
            assert info["action_is_valid"] and not truncated and (terminated or reward == 0)
        assert reward == 1.0 and info["success"] and "Congratulations" in text
        with pytest.raises(RuntimeError, match="call reset first"):
            env.step("[1]")


def test_tower_of_hanoi_in_seven_moves():
    env = game("TowerOfHanoi-v0")
    env.reset(1)
    for move in ("[A C]", "[A B]", "[C B]", "[A C]", "[B A]", "[B C]", "[A C]"):
        text, reward, terminated, _, info = env.step(move)
    assert (reward, terminated, info["success"]) == (1.0, True, True)


def test_an_invalid_move_is_said_and_a_second_one_loses():
    env = game("GuessTheNumber-v0")
    env.reset(1)
    text, reward, terminated, _, info = env.step("seven")
    assert "invalid move" in text and not terminated and not info["action_is_valid"]
    _, _, terminated, _, info = env.step("eight")
    assert terminated and not info["action_is_valid"] and not info["success"]


def play(env, seed, luck):
    rng = np.random.default_rng(0)
    seen = [env.reset(seed, luck=luck), env.instruction()]
    while not (len(seen) > 8 or seen[-1][2] is True):
        seen.append(env.step(env.random_action(rng)))
    return seen


def test_start_by_seed_and_luck_by_member_without_touching_global_generators():
    states = random.getstate(), np.random.get_state()[1].tolist()
    env = game("2048-v0")
    seen = [play(game("2048-v0"), 3, luck) for luck in range(4)]
    assert all(episode[:2] == seen[0][:2] for episode in seen) and len({str(episode) for episode in seen}) > 1
    env.reset(9)
    assert [play(env, 3, luck) for luck in range(4)] == seen
    assert play(env, 4, 0)[0] != seen[0][0]
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states


@pytest.mark.parametrize("name", ["Countdown-v0", "Cryptarithm-v0", "Slitherlink-v0"])
def test_boards_that_a_game_hands_over_in_the_wrong_place_are_seen(name):
    assert len(game(name).reset(1)[0]) > len("The game begins.")


@pytest.mark.parametrize("name", ["GuessTheNumber-v0", "2048-v0", "TowerOfHanoi-v0", "Sudoku-v0-easy", "Blackjack-v0"])
def test_absurd_actions(name):
    env = game(name)
    for action in ("[" * 1999, "[" + "9" * 1900 + "]", "\udc80\x00☃", "<|im_end|>", "[a b c]", "[-1]", "[[1]]"):
        env.reset(2)
        observation, reward, *_ = env.step(action)
        assert isinstance(observation, str) and np.isfinite(reward)
    start, _ = env.reset(2)
    for action in ("", " \n", "[1]" * 40_000, None, 99):
        assert env.step(action) == (
            start, 0.0, False, False, {"action_is_valid": False, "action_is_effective": False, "success": False},
        )  # fmt: skip


def test_games_that_cannot_be_played_say_why():
    with pytest.raises(EnvConfigError, match="'Chopsticks-v0' is for several players"):
        game("Chopsticks-v0")
    with pytest.raises(EnvConfigError, match="did you mean 'GuessTheNumber-v0'"):
        game("GuessTheNumbr-v0")
    with pytest.raises(EnvConfigError, match="cannot be built with kwargs"):
        game("GuessTheNumber-v0", kwargs={"nonsense": 1})


def test_word_games_need_their_lists():
    nltk = pytest.importorskip("nltk")
    try:
        nltk.data.find("corpora/words")
    except LookupError:
        with pytest.raises(MissingDependency, match="python -m nltk.downloader words"):
            game("Wordle-v0")
    else:
        assert "Wordle" in game("Wordle-v0").instruction()
