"""TextWorld: text adventures made by the package `textworld` (arXiv:1806.11532) from the seed, with a quest to fulfil.

A step pays the share of the game's score that it brings; all shares together are 1. Needs the extra `textworld`.
"""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ragen.env.text_games import TextGame, require
from ragen.env.textworld.config import TextWorldConfig
from ragen.env.textworld.view import tell


class TextWorld(TextGame):
    config_class = TextWorldConfig
    reward_range = (0.0, 1.0)

    def __init__(self, config: TextWorldConfig | None = None):
        require("textworld")
        import textworld.generator  # noqa: F401 (seconds, which belong to the start and not to the first reset)

        super().__init__(config)

    def _open(self, seed: int, with_plan: bool) -> Any:
        import textworld
        from textworld.envs import TextWorldEnv

        wanted = {"won": True, "lost": True, "score": True, "max_score": True, "objective": True, "facts": True}
        game = TextWorldEnv(textworld.EnvInfos(**wanted, admissible_commands=True, policy_commands=with_plan))
        config = self.config
        with tempfile.TemporaryDirectory(prefix="ragen-textworld-") as folder:
            path = Path(folder) / "game.json"
            path.write_bytes(_game_file(config.nb_rooms, config.nb_objects, config.quest_length, seed))
            game.load(str(path))
        return game

    def _reward(self, before: Any, after: Any) -> float:
        return float((after.score or 0) - (before.score or 0)) / max(1, after.max_score)

    def commands(self) -> list[str]:
        """Those that do something: what can be seen is shown anyway."""
        return [c for c in self._state.admissible_commands if c.split()[0] not in ("look", "inventory", "examine")]

    def _view(self) -> str:
        lines = [f"Quest: {' '.join(self._state.objective.split())}", tell(self._state.facts)]
        if self._state.won or self._state.lost:
            lines.append("You have fulfilled the quest." if self._state.won else "The quest is lost.")
        return "\n".join(lines)

    def instruction(self) -> str:
        return (
            "You are in a text adventure. Fulfil the quest with the commands that are listed, one at a time: go, open, "
            "close, unlock, lock, take, drop, put, insert, eat. Locked things need their key.\n"
            "Reward: 1 when the quest is fulfilled, parts of it on the way where the quest has parts."
        )


@lru_cache(maxsize=256)
def _game_file(nb_rooms: int, nb_objects: int, quest_length: int, seed: int) -> bytes:
    """The game of those sizes and that seed, in the package's own format; made once for a group."""
    import textworld
    from textworld.generator import make_game

    options = textworld.GameOptions()
    options.nb_rooms, options.nb_objects, options.quest_length = nb_rooms, nb_objects, quest_length
    options.seeds = int(np.random.SeedSequence([seed]).generate_state(1)[0] % 2**31)
    with tempfile.TemporaryDirectory(prefix="ragen-textworld-") as folder:
        path = Path(folder) / "game.json"
        make_game(options).save(str(path))
        return path.read_bytes()
