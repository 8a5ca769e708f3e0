"""Settings of ALFWorld."""

from __future__ import annotations

from dataclasses import dataclass, field

from ragen.env.config_checks import at_least, one_of

#: Numbers of ALFWorld's config files → what the folder of such a task begins with.
TASK_TYPES = {
    1: "pick_and_place_simple",
    2: "look_at_obj_in_light",
    3: "pick_clean_then_place_in_recep",
    4: "pick_heat_then_place_in_recep",
    5: "pick_cool_then_place_in_recep",
    6: "pick_two_obj_and_place",
}
#: Split → folder below `json_2.1.1`.
SPLITS = {"train": "train", "eval_in_distribution": "valid_seen", "eval_out_of_distribution": "valid_unseen"}


@dataclass
class AlfworldConfig:
    split: str = "eval_in_distribution"
    """`train`, `eval_in_distribution` (rooms of the training) or `eval_out_of_distribution` (rooms it has not seen)."""
    data_dir: str | None = None
    """The folder that holds `json_2.1.1`, as `alfworld-download` makes it. null: the environment variable
    ALFWORLD_DATA, else `~/.cache/alfworld`."""
    task_types: list[int] = field(default_factory=lambda: list(TASK_TYPES))
    """Which of the six kinds of task: 1 put, 2 examine in light, 3 clean, 4 heat, 5 cool, 6 put two."""
    max_steps: int = 50
    """Commands after which the environment truncates the episode."""

    def __post_init__(self):
        one_of(self, split=tuple(SPLITS))
        at_least(self, max_steps=1)
        if not self.task_types or any(number not in TASK_TYPES for number in self.task_types):
            raise ValueError(f"task_types is {self.task_types!r}; give some of {', '.join(map(str, TASK_TYPES))}")
