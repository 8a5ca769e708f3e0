"""Settings of the calculator problems."""

from __future__ import annotations

from dataclasses import dataclass

from ragen.env.config_checks import at_least, one_of


@dataclass
class CalculatorConfig:
    style: str = "words"
    """`words`: a short story. `expression`: the arithmetic itself."""
    operations: int = 3
    """Operations of a problem, up to 8."""
    max_number: int = 99
    """Largest number that is added or taken away, up to 999."""
    max_steps: int = 10
    """Calls after which the episode is truncated."""

    def __post_init__(self):
        one_of(self, style=("words", "expression"))
        at_least(self, operations=1, max_number=2, max_steps=1)
        if self.operations > 8:
            raise ValueError(f"operations is {self.operations}; give at most 8")
        if self.max_number > 999:
            raise ValueError(f"max_number is {self.max_number}; give at most 999")
