"""ALFWorld: household tasks in text (arXiv:2010.03768), played by the package `alfworld` from its game files.

The game of a seed is one `game.tw-pddl` of the split. Winning pays 10. Needs the extra `alfworld` and its data.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from ragen.env.alfworld.config import SPLITS, TASK_TYPES, AlfworldConfig
from ragen.env.errors import MissingData
from ragen.env.problem_files import problem_number
from ragen.env.text_games import TextGame, require


class Alfworld(TextGame):
    config_class = AlfworldConfig
    reward_range = (0.0, 10.0)

    def __init__(self, config: AlfworldConfig | None = None):
        require("alfworld")
        super().__init__(config)
        folder = self._folder()
        if not folder.is_dir():
            raise MissingData(
                f"env_type 'alfworld': there is no {folder}; run alfworld-download, or set env_config.data_dir to the "
                "folder that holds json_2.1.1"
            )
        import alfworld.agents.environment.alfred_tw_env  # noqa: F401 (seconds, which belong to the start)

    def _folder(self) -> Path:
        root = self.config.data_dir or os.environ.get("ALFWORLD_DATA") or "~/.cache/alfworld"
        return Path(root).expanduser() / "json_2.1.1" / SPLITS[self.config.split]

    def _open(self, seed: int, with_plan: bool) -> Any:
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

        wanted = {"won": True, "feedback": True, "facts": True, "admissible_commands": True}
        infos = textworld.EnvInfos(**wanted, policy_commands=with_plan)
        return textworld.start(str(self.game_file(seed)), infos, wrappers=[AlfredDemangler()])

    def game_file(self, seed: int) -> Path:
        """The file of the game of `seed`; those marked unsolvable are passed over."""
        games = _games(self._folder(), tuple(sorted(set(self.config.task_types))))
        number = problem_number(seed, len(games))
        for step in range(len(games)):
            path = games[(number + step) % len(games)]
            if _is_solvable(path):
                return path
        raise ValueError(f"split is {self.config.split!r}: no game of {self._folder()} is marked solvable")

    def _reward(self, before: Any, after: Any) -> float:
        return 10.0 if after.won else 0.0

    def _begin(self) -> None:
        # "-= Welcome … =-", where you are, "Your task is to: …"
        intro, _, task = self._state.feedback.partition("Your task is to:")
        self._feedback, self._task = intro.split("=-")[-1].strip(), task.strip()

    def commands(self) -> list[str]:
        return [command for command in self._state.admissible_commands if command != "help"]

    def _view(self) -> str:
        return f"Task: {self._task}\n{self._feedback}"

    def instruction(self) -> str:
        return (
            "You are in a household with a task. Things are in and on pieces of furniture, some of which must be "
            "opened; you carry one thing at a time. Use the commands that are listed, one at a time.\n"
            "Reward: 10 when the task is done."
        )


@lru_cache(maxsize=16)
def _games(folder: Path, task_types: tuple[int, ...]) -> tuple[Path, ...]:
    """The game files of those kinds of task, in the order of their names. The text games know no movable receptacles
    and no slicing: tasks with them are left out, as the package does.

    Raises:
        ValueError: there is none.
    """
    kinds = tuple(TASK_TYPES[number] + "-" for number in task_types)
    games = sorted(
        path for path in folder.glob("*/*/game.tw-pddl")
        if path.parts[-3].startswith(kinds) and not any(word in path.parts[-3] for word in ("movable", "Sliced"))
    )  # fmt: skip
    if not games:
        raise ValueError(
            f"task_types is {list(task_types)}: {folder} holds no game of them (<task>/<trial>/game.tw-pddl)"
        )
    return tuple(games)


@lru_cache(maxsize=4096)
def _is_solvable(path: Path) -> bool:
    return bool(json.loads(path.read_text(encoding="utf-8")).get("solvable", False))
