"""Makes one HTML page that needs no network: episodes to look at, or training curves.

python -m ragen.viewer RUN                          # every rollouts/*.jsonl of a run → RUN/episodes.html
python -m ragen.viewer rollouts.jsonl --out page.html
python -m ragen.viewer RUN RUN RUN --curves         # metrics.jsonl of several runs → curves.html
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ragen.eval.records import RecordError
from ragen.eval.run_tokenizer import TokenizerNotFound
from ragen.viewer.build import build_curves, build_episodes
from ragen.viewer.curves import DEFAULT_METRICS, CurvesError
from ragen.viewer.episodes import SourceError


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 2: no page was written."""
    parser = argparse.ArgumentParser(
        prog="python -m ragen.viewer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a file of episodes, or a run's folder")
    parser.add_argument("--out", type=Path, help="the page; default: beside the episodes, or curves.html here")
    parser.add_argument("--title", help="default: the runs' names")
    parser.add_argument("--tokenizer", help="folder with tokenizer.json; default: the run's own, else ids are shown")
    parser.add_argument("--curves", action="store_true", help="training curves instead of episodes")
    parser.add_argument(
        "--metrics", nargs="+", metavar="PATTERN", help=f"curves to draw; default: {' '.join(DEFAULT_METRICS)}"
    )
    options = parser.parse_args(argv)
    if options.metrics and not options.curves:
        parser.error("--metrics names curves: give --curves as well")
    if options.tokenizer and options.curves:
        parser.error("--tokenizer is for episodes: leave out --curves")
    out = options.out or _default_out(options.paths[0], options.curves)
    progress = sys.stderr.isatty()
    try:
        if options.curves:
            done = build_curves(
                options.paths, out, title=options.title, metrics=options.metrics or DEFAULT_METRICS, progress=progress
            )
        else:
            done = build_episodes(
                options.paths, out, title=options.title, tokenizer=options.tokenizer, progress=progress
            )
    except (SourceError, RecordError, TokenizerNotFound, CurvesError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{out}: {done}")
    return 0


def _default_out(path: Path, curves: bool) -> Path:
    if curves:
        return Path("curves.html")
    return path / "episodes.html" if path.is_dir() else path.with_name(f"{path.name.split('.')[0]}.html")


if __name__ == "__main__":
    raise SystemExit(main())
