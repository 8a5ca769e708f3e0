"""Settings of TextWorld."""

from __future__ import annotations

from dataclasses import dataclass

from ragen.env.config_checks import at_least


@dataclass
class TextWorldConfig:
    nb_rooms: int = 3
    nb_objects: int = 6
    """Things in the rooms, containers and furniture among them."""
    quest_length: int = 4
    """Commands that the shortest way to win takes."""
    max_steps: int = 50
    """Commands after which the environment truncates the episode."""
    solvable_within: int | None = None
    """Most commands that a game may need. Entries of envs.yaml set it to their `max_actions_per_traj` unless they give
    it: a longer quest is refused."""

    def __post_init__(self):
        at_least(self, nb_rooms=1, nb_objects=1, quest_length=1, max_steps=1, solvable_within=1)
        if self.solvable_within is not None and self.quest_length > self.solvable_within:
            raise ValueError(
                f"quest_length is {self.quest_length}, more than the {self.solvable_within} actions of an episode; "
                "lower it, or raise max_actions_per_traj"
            )
