"""Settings of Countdown."""

from __future__ import annotations

from dataclasses import dataclass

from ragen.env.config_checks import at_least


@dataclass
class CountdownConfig:
    min_numbers: int = 3
    """Fewest numbers of a generated problem."""
    max_numbers: int = 4
    """Most numbers of a generated problem, up to 6."""
    max_number: int = 99
    """Generated numbers are drawn from 1 to this."""
    max_target: int = 100
    """Generated targets lie between 1 and this; at least `max_number`."""
    path: str | None = None
    """Problems from elsewhere instead: a .parquet or .jsonl file, or a Hugging Face dataset name, with an integer
    `target` and a list of integers `nums` (or `numbers`) in each row. Whether they can be solved is up to them."""
    split: str = "train"
    """Which split of a Hugging Face dataset."""

    def __post_init__(self):
        at_least(self, min_numbers=2, max_numbers=2, max_number=2, max_target=10)
        if not self.min_numbers <= self.max_numbers <= 6:
            raise ValueError(
                f"min_numbers is {self.min_numbers} and max_numbers {self.max_numbers}; "
                "give min_numbers <= max_numbers <= 6"
            )
        if self.max_target < self.max_number:
            raise ValueError(
                f"max_target is {self.max_target}, below max_number {self.max_number}; few numbers would lead there: "
                "raise it"
            )
        if self.max_number > 1000 or self.max_target > 10_000:
            raise ValueError(
                f"max_number is {self.max_number} and max_target {self.max_target}; give at most 1000 and 10000"
            )
