"""Pictures of boards: the environment's own tiles, learned from its pictures.

Where an environment draws its text board cell by cell (`render("rgb_array")`), one small tile for each symbol is enough
for the page to draw every board from its text. Environments whose pictures are no such grid are shown as text.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from typing import Any

import numpy as np

from ragen.env.registry import EnvSpec
from ragen.llm_agent.trajectory import Trajectory

__all__ = ["board_rows", "learn_tiles"]


def board_rows(observation: str) -> list[str]:
    """The board within an observation: its longest run of at least two equally long lines of two or more symbols."""
    best: list[str] = []
    run: list[str] = []
    for line in [*observation.split("\n"), ""]:
        if run and len(line) != len(run[0]):
            best = max(best, run, key=len)
            run = []
        if len(line) >= 2:
            run.append(line)
    return best if len(best) >= 2 else []


def learn_tiles(spec: EnvSpec, symbols: set[str], episodes: Iterable[Trajectory]) -> dict[str, str] | None:
    """Symbol → PNG of its tile as a data URI; None where the environment draws no board of tiles.

    Plays recorded episodes until every one of `symbols` has been seen. Only environments that run inline, which promise
    never to block, are asked.
    """
    if spec.isolate != "inline" or not symbols:
        return None
    tiles: dict[str, np.ndarray] = {}
    try:
        env = spec.make()
    except Exception:  # noqa: BLE001 (a page is worth having without pictures)
        return None
    try:
        for episode in episodes:
            if not _learn_from(env, episode, tiles):
                return None
            if symbols <= set(tiles):
                break
    except Exception:  # noqa: BLE001 (no picture, or the episode was another environment's)
        return None
    finally:
        env.close()
    return {symbol: _png(tile) for symbol, tile in tiles.items()} or None


def _learn_from(env: Any, episode: Trajectory, tiles: dict[str, np.ndarray]) -> bool:
    """Add the tiles of one episode's boards; False: the pictures are no boards of tiles."""
    observation, _ = env.reset(episode.seed, luck=episode.luck)
    names = {name.lower(): value for name, value in (env.action_lookup() or {}).items()}
    actions = [name for turn in episode.turns for name in turn.actions]
    for action in [None, *actions]:
        if action is not None:
            observation, _, terminated, truncated, _ = env.step(names[action.lower()] if names else action)
        if not _learn_board(board_rows(observation), env.render("rgb_array"), tiles):
            return False
        if action is not None and (terminated or truncated):
            break
    return True


def _learn_board(rows: list[str], picture: np.ndarray, tiles: dict[str, np.ndarray]) -> bool:
    height, width = picture.shape[:2]
    if not rows or height % len(rows) or width % len(rows[0]) or height // len(rows) != width // len(rows[0]):
        return False
    side = height // len(rows)
    for y, row in enumerate(rows):
        for x, symbol in enumerate(row):
            tile = picture[y * side : (y + 1) * side, x * side : (x + 1) * side]
            if not np.array_equal(tiles.setdefault(symbol, tile), tile):
                return False
    return True


def _png(tile: np.ndarray) -> str:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(tile)).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
