"""Settings of the 2x2 cube."""

from __future__ import annotations

from dataclasses import dataclass

from ragen.env.config_checks import at_least, one_of

#: Quarter turns that solve any 2x2 cube.
MOST_TURNS = 14


@dataclass
class RubiksCubeConfig:
    scramble_depth: int = 1
    """Quarter turns from the solved cube to the start, which may lie nearer than that but is never solved."""
    solvable_within: int | None = None
    """Most turns that a shortest solution may take; null: any. Entries of envs.yaml set it to their
    `max_actions_per_traj` unless they give it."""
    max_steps: int = 100
    """Steps after which the environment truncates the episode."""
    render_mode: str = "text"
    """`text`, or `rgb_array`: the observation is a picture."""

    def __post_init__(self):
        at_least(self, scramble_depth=1, solvable_within=1, max_steps=1)
        one_of(self, render_mode=("text", "rgb_array"))
        if self.scramble_depth > 1000:
            raise ValueError(
                f"scramble_depth is {self.scramble_depth}; give at most 1000 (no cube is over {MOST_TURNS} turns away)"
            )
        within = self.solvable_within
        if within is not None and min(self.scramble_depth, MOST_TURNS) > within:
            raise ValueError(
                f"scramble_depth is {self.scramble_depth}, but solvable_within is {within}; give a scramble_depth of "
                f"at most {within}, or raise max_actions_per_traj (or solvable_within, where it is set)"
            )
