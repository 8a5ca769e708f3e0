"""The single-player games of the package TextArena, by id: any text is an action, the game says what it makes of it.

The instruction is the game's own prompt (of the episode that was reset last), the observation what the game said since
the last action, the reward the game's final one, paid on its last step. TextArena draws from the global generators:
they are swapped for the episode's own (`ragen.env.global_rng`), seeded by `seed` for the start and by `luck` for what
follows. The package is an extra (`textarena`). Its word games also need word lists of NLTK, which are downloaded
separately.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ragen.env.base import Env
from ragen.env.errors import EnvConfigError, MissingDependency, nearest
from ragen.env.global_rng import GlobalRng
from ragen.env.textarena.config import TextArenaConfig

#: How prompts show what an action looks like: in square brackets.
_EXAMPLE = re.compile(r"\[[^\[\]\n]{1,40}\]")


class TextArena(Env):
    config_class = TextArenaConfig

    def __init__(self, config: TextArenaConfig | None = None):
        super().__init__(config)
        low, high = self.config.reward_range or (-np.inf, np.inf)
        self.reward_range = (min(float(low), 0.0), max(float(high), 0.0))  # every step but the last pays 0
        with GlobalRng(0):
            self._game = _make(self.config)
        self._rng = GlobalRng(0)
        self._prompt = self._text = ""
        self._over = True

    def reset(self, seed: int, *, luck: int | None = None) -> tuple[str, dict[str, Any]]:
        self.seed_streams(seed, luck)
        self._rng.seed(seed)
        with self._rng:
            self._game.reset(num_players=1, seed=seed % 2**32)
        self._rng.seed(int(self.luck_rng.integers(2**32)))
        prompt, rest = self._heard()
        self._prompt, self._text, self._over = prompt, rest or "The game begins.", False
        return self._text, {}

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Let the game judge a text. A game that breaks on one has not understood it: that action is invalid."""
        if self._over:
            raise RuntimeError(f"the game {self.config.id} is over; call reset first")
        if not isinstance(action, str) or not action.strip() or len(action) > self.config.max_action_chars:
            return self._text, 0.0, False, False, _info(False)
        state = self._game.state
        try:
            with self._rng:
                self._over, _ = self._game.step(action)
        except Exception as error:
            self._heard()
            return self._text, 0.0, False, False, {**_info(False), "error": f"{type(error).__name__}: {error}"[:200]}
        self._text = self._heard()[1]
        valid = state.error_count == 0
        if not self._over:
            return self._text, 0.0, False, False, _info(valid)
        outcome = state.game_info[0]
        self._text = "\n".join(part for part in (self._text, outcome.get("reason")) if part)
        reward = float((state.rewards or {}).get(0, 0.0))
        valid = valid and not outcome["invalid_move"]
        return self._text, reward, True, False, _info(valid, reward >= self.config.success_score)

    def render(self, mode: str = "text") -> str:
        if mode != "text":
            raise ValueError(f"textarena has no board and cannot render {mode!r}; use 'text'")
        return self._text

    def instruction(self) -> str:
        return self._prompt or f"The game {self.config.id} of TextArena. It explains itself when it starts."

    def random_action(self, rng: np.random.Generator) -> str | None:
        """One of the actions that the game's prompt shows as examples, or None."""
        examples = sorted(set(_EXAMPLE.findall(self._prompt)))
        return None if self._over or not examples else examples[int(rng.integers(len(examples)))]

    def _heard(self) -> tuple[str, str]:
        """What the game has said since the last time: (its prompt, all else but the echo of the player's actions)."""
        import textarena

        kinds = textarena.ObservationType
        messages = [
            # Some games give sender, text and kind in another order than the package means: the text is in third place.
            (text, kind) if isinstance(text, str) else (str(kind), kinds.GAME_BOARD)
            for _, text, kind in self._game.state.get_current_player_observation()
        ]
        prompt = "\n".join(text for text, kind in messages if kind is kinds.PROMPT)
        rest = (text for text, kind in messages if kind not in (kinds.PROMPT, kinds.PLAYER_ACTION))
        return prompt.strip(), "\n".join(rest).strip()


def _info(valid: bool, success: bool = False) -> dict[str, bool]:
    return {"action_is_valid": valid, "action_is_effective": valid, "success": success}


def _make(config: TextArenaConfig) -> Any:
    import textarena
    from textarena.envs.registration import ENV_REGISTRY

    if config.id not in ENV_REGISTRY:
        names = [name for name in ENV_REGISTRY if not name.endswith(("-raw", "-train"))]
        raise EnvConfigError(f"id {config.id!r} is no game of TextArena: {nearest(config.id, names)}")
    raw = f"{config.id}-raw"  # the same game, without the wrappers that fold the history into each observation
    try:
        game = textarena.make(raw if raw in ENV_REGISTRY else config.id, **config.kwargs)
    except LookupError as error:
        raise MissingDependency(
            f"game {config.id!r} needs word lists of NLTK; install them: python -m nltk.downloader words "
            "averaged_perceptron_tagger_eng (without a network, copy an nltk_data folder and set NLTK_DATA to it)"
        ) from error
    except SyntaxError as error:
        raise EnvConfigError(f"game {config.id!r} of the installed TextArena needs Python 3.12: {error}") from error
    except ImportError as error:
        raise MissingDependency(f"game {config.id!r} needs a package that is not installed: {error}") from error
    except (TypeError, ValueError, OSError) as error:
        raise EnvConfigError(f"game {config.id!r} cannot be built with kwargs {config.kwargs}: {error}") from error
    if "SinglePlayerState" not in type(game).reset.__code__.co_names:
        raise EnvConfigError(f"game {config.id!r} is for several players; choose one for a single player")
    return game
