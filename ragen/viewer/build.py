"""Puts data, style and script into one HTML file that loads nothing from anywhere."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from tqdm import tqdm

from ragen.eval.records import read_records
from ragen.eval.replay import ReplayError, settings_for
from ragen.viewer import curves
from ragen.viewer.boards import learn_tiles
from ragen.viewer.episodes import BLOCK, PageData, Source, compress, find_sources, pack, records_of
from ragen.viewer.token_texts import open_token_texts

__all__ = ["build_curves", "build_episodes"]

_HERE = Path(__file__).parent


def build_episodes(
    paths: Sequence[Path], out: Path, *, title: str | None = None, tokenizer: str | None = None, progress: bool = False
) -> str:
    """Write the page of all episodes that `paths` are or hold. Returns a line that says what is on it.

    Raises:
        SourceError: no episodes. RecordError: a line that is no record. TokenizerNotFound: no such `tokenizer`.
    """
    sources = find_sources(paths)
    first = next(iter(read_records(sources[0].path)))
    texts, note = open_token_texts(tokenizer, sources[0].path, first.trajectory)
    bar = tqdm(records_of(sources), desc="episodes", unit="ep", leave=False, disable=not progress)
    data = pack(bar, texts)
    count = len(data.columns["run"])
    meta = {
        "runs": data.runs,
        "tags": data.tags,
        "ends": data.ends,
        "episodes": count,
        "block": BLOCK,
        "blocks": len(data.blocks),
        "tiles": _tiles(data, sources),
    }
    page = _template("page.html.j2").render(
        title=title or ", ".join(data.runs),
        css=Markup(_asset("page.css")),
        js=Markup(_asset("page.js")),
        meta=_json(meta),
        index=Markup(compress(data.columns)),
        palette=Markup(compress(texts.palette)),
        blocks=[Markup(block) for block in data.blocks],
    )
    _write(out, page)
    return f"{count} episodes of {len(data.runs)} runs, {len(page) / 1e6:.1f} MB; {note}"


def build_curves(
    folders: Sequence[Path],
    out: Path,
    *,
    title: str | None = None,
    metrics: Sequence[str] = curves.DEFAULT_METRICS,
    progress: bool = False,
) -> str:
    """Write the page of the runs' training curves. Returns a line that says what is on it.

    Raises:
        CurvesError: a folder without metrics, no such metric, or matplotlib is missing.
    """
    groups = curves.experiments([curves.load_run(folder) for folder in folders])
    drawn = curves.charts(groups, curves.chosen_metrics(groups, metrics), progress=progress)
    page = _template("curves.html.j2").render(
        title=title or "Training curves", experiments=groups, charts=drawn, differences=curves.differences(groups)
    )
    _write(out, page)
    return f"{len(drawn)} charts of {len(folders)} runs in {len(groups)} experiments"


def _tiles(data: PageData, sources: Sequence[Source]) -> dict[str, dict[str, str]]:
    """Tag → symbol → picture, for the tags whose environment draws boards of tiles."""
    try:
        specs = settings_for(sources[0].path).specs
    except ReplayError:
        return {}
    found = {tag: learn_tiles(specs[tag], data.symbols[tag], data.samples[tag]) for tag in data.tags if tag in specs}
    return {tag: tiles for tag, tiles in found.items() if tiles}


def _json(value: Any) -> Markup:
    """JSON that cannot end its script element."""
    return Markup(json.dumps(value, ensure_ascii=False).replace("<", "\\u003c"))


def _template(name: str) -> jinja2.Template:
    loader = jinja2.FileSystemLoader(_HERE)
    return jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined).get_template(name)


def _asset(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _write(out: Path, page: str) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.{os.getpid()}")
    partial.write_text(page, encoding="utf-8")
    os.replace(partial, out)
