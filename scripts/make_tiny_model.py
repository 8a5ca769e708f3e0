#!/usr/bin/env python
"""Build (or find) the tiny model of the quickstart and print its folder.

python scripts/make_tiny_model.py                   # the cached model, built first where it is missing
python scripts/make_tiny_model.py --check           # and measure it on 256 held-out episodes a tag
python scripts/make_tiny_model.py --out my_model --seed 1
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a clone that is not installed

from ragen import tiny_model


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder to build into; default: the cache (RAGEN_CACHE moves it)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, levels' luck and order (default 0)")
    parser.add_argument("--force", action="store_true", help="build even where a model is there; replaces it")
    parser.add_argument(
        "--check", action="store_true", help="play held-out episodes and print valid replies and success"
    )
    parser.add_argument("--episodes", type=int, default=256, help="episodes a tag for --check (default 256)")
    options = parser.parse_args(arguments)

    recipe = dataclasses.replace(tiny_model.Recipe(), seed=options.seed)
    if options.out is None:
        folder = tiny_model.path(recipe, force=options.force)
    else:
        folder = options.out.expanduser().resolve()
        if folder.exists() and not (folder / tiny_model.CHECK_FILE).is_file():
            parser.error(f"--out {folder}: exists and is no model built here; name another folder")
        if options.force or not folder.exists():
            tiny_model.build(recipe, folder)
    print(folder)
    if options.check:
        print(_table(tiny_model.check(folder, recipe, episodes=options.episodes)))
    return 0


def _table(measured: dict[str, dict[str, float]]) -> str:
    head = ("tag", "episodes", "valid replies", "success", "success of the script", "tokens a reply")
    rows = [
        (
            tag,
            f"{m['episodes']}",
            f"{m['valid_replies']:.1%}",
            f"{m['success']:.1%}",
            f"{m['script_success']:.1%}",
            f"{m['tokens_per_reply']:.2f}",
        )
        for tag, m in measured.items()
    ]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)
    )


if __name__ == "__main__":
    sys.exit(main())
