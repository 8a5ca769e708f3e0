"""Settings of Sudoku."""

from __future__ import annotations

from dataclasses import dataclass

from ragen.env.config_checks import at_least, one_of

#: Fewest givens for each size. Cutting a board further takes seconds, or ends nowhere.
MIN_GIVENS = {4: 4, 9: 24, 16: 120}


@dataclass
class SudokuConfig:
    size: int = 9
    """Rows and columns: 4, 9 or 16."""
    givens: int | None = None
    """Numbers that stand at the start: at least 4, 24 or 120 for sizes 4, 9, 16. null: all but `solvable_within`; where
    that is null too, three in five."""
    solvable_within: int | None = None
    """Most cells that may be empty at the start; null: any number. Entries of envs.yaml set it to their
    `max_actions_per_traj` unless they give it."""
    max_steps: int = 300
    """Steps after which the environment truncates the episode."""
    render_mode: str = "text"
    """`text`, or `rgb_array`: the observation is a picture."""

    def __post_init__(self):
        if self.size not in MIN_GIVENS:
            raise ValueError(f"size is {self.size!r}; choose one of 4, 9, 16")
        at_least(self, givens=MIN_GIVENS[self.size], solvable_within=1, max_steps=1)
        one_of(self, render_mode=("text", "rgb_array"))
        cells = self.size**2
        if self.givens is not None and self.givens >= cells:
            raise ValueError(f"givens is {self.givens}, which leaves nothing to solve; give at most {cells - 1}")
        within = self.solvable_within
        if self.givens is not None and within is not None and cells - self.givens > within:
            raise ValueError(
                f"givens is {self.givens}, so {cells - self.givens} cells are empty, but solvable_within is {within}; "
                f"give at least {cells - within} givens, or raise max_actions_per_traj (or solvable_within, where it "
                "is set)"
            )

    @property
    def number_of_givens(self) -> int:
        """`givens`, or what stands for it where it is null."""
        cells = self.size**2
        if self.givens is not None:
            return self.givens
        wanted = cells * 3 // 5 if self.solvable_within is None else cells - self.solvable_within
        return max(wanted, MIN_GIVENS[self.size])
