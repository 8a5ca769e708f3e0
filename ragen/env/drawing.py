"""Draws boards of coloured, lettered square cells, for the environments that show one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

Colour = tuple[int, int, int]


class Cell(NamedTuple):
    """How one cell looks."""

    fill: Colour
    text: str = ""
    text_colour: Colour = (20, 20, 20)


def draw_cells(rows: Sequence[Sequence[Cell]], side: int, *, grid: Colour = (120, 120, 120)) -> np.ndarray:
    """A picture of the board: uint8 (side * rows, side * columns, 3). Equal cells look exactly alike.

    Args:
        rows: equally long rows of cells.
        side: pixels along a cell, its one-pixel frame of colour `grid` included.
        grid: colour between the cells.
    """
    return np.block([[[_tile(cell, side, grid)] for cell in row] for row in rows])


@lru_cache(maxsize=512)
def _tile(cell: Cell, side: int, grid: Colour) -> np.ndarray:
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (side, side), grid)
    draw = ImageDraw.Draw(image)
    draw.rectangle((1, 1, side - 2, side - 2), fill=cell.fill)
    if cell.text:
        font = _font(side, len(cell.text))
        draw.text((side / 2, side / 2), cell.text, fill=cell.text_colour, font=font, anchor="mm")
    return np.asarray(image)


@lru_cache(maxsize=64)
def _font(side: int, characters: int) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(size=int(side * min(0.6, 1.3 / characters)))
