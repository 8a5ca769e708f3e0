"""The tables of docs/environments.md, made from the code: every check, and every environment with a sample observation.

    python -m ragen.env.catalogue                                prints the environments as Markdown
    python -m ragen.env.catalogue --write docs/environments.md   puts both tables into the page
    python -m ragen.env.catalogue --check docs/environments.md   exit status 1 if the page is not what the code says

A tag that cannot be built here (its package is not installed, its server does not run) keeps the entry that the page
has.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ragen.env.check import read_config
from ragen.env.checker.registry import all_checks
from ragen.env.registry import EnvSpec, load_specs

_SEED = 10_000
_MOST_LINES, _MOST_COLUMNS = 14, 110
_NOT_HERE = "Not built where this page was made."


def environments(entries: Mapping[str, Any], page: str = "") -> str:
    """Every tag as a section of Markdown; `page`: where to take those from that cannot be built here."""
    return "\n\n".join(_section(tag, entry, page) for tag, entry in entries.items())


def checks() -> str:
    """Every check as a row of a Markdown table."""
    rows = [f"| `{check.name}` | {check.about} |" for check in all_checks().values()]
    return "\n".join(["| check | what must hold |", "|---|---|", *rows])


def updated(page: str, entries: Mapping[str, Any]) -> str:
    """The page with both tables made anew. Raises ValueError where it lacks their marks."""
    for name, text in (("checks", checks()), ("environments", environments(entries, page))):
        pattern = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not pattern.search(page):
            raise ValueError(f"the page lacks the marks '<!-- generated: {name} -->' and '<!-- end -->'")
        page = pattern.sub(lambda found, text=text: f"{found[1]}{text}\n{found[2]}", page)
    return page


def _section(tag: str, entry: Mapping[str, Any], page: str) -> str:
    try:
        body = _described(load_specs({tag: entry})[tag])
    except Exception:  # whatever it lacks: the page is made from what can be built
        kept = re.search(rf"^### {re.escape(tag)}\n.*?(?=^### |^<!-- end -->)", page, re.DOTALL | re.MULTILINE)
        return kept[0].rstrip() if kept else f"### {tag}\n\n`{entry['env_type']}`. {_NOT_HERE}"
    return f"### {tag}\n\n{body}"


def _described(spec: EnvSpec) -> str:
    env = spec.make()
    try:
        observation, _ = env.reset(_SEED)
        lookup = env.action_lookup()
        names = "free text" if lookup is None else _list(list(lookup))
        low, high = (f"{float(end):g}" for end in env.reward_range)
        oracle = "with an oracle" if env.oracle_action() is not None else "no oracle"
        facts = [
            f"`{spec.env_type}`",
            f"{spec.max_actions_per_traj} action{'s' * (spec.max_actions_per_traj > 1)} an episode",
            f"actions: {names}",
            f"reward of a step: {low} to {high}",
            oracle,
            spec.isolate,
        ]
        return f"{'; '.join(facts)}.\n\n```text\n{_shown(observation)}\n```"
    finally:
        env.close()


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:12])
    return shown if len(names) <= 12 else f"{shown} and {len(names) - 12} more"


def _shown(observation: str) -> str:
    lines = [line if len(line) <= _MOST_COLUMNS else f"{line[:_MOST_COLUMNS]}…" for line in observation.splitlines()]
    return "\n".join([*lines[:_MOST_LINES], "…"] if len(lines) > _MOST_LINES else lines).replace("```", "'''")


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m ragen.env.catalogue", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", metavar="PAGE", type=Path, help="put the tables into this page")
    action.add_argument("--check", metavar="PAGE", type=Path, help="compare this page with the code")
    options = parser.parse_args(argv)
    entries, _ = read_config()
    path = options.write or options.check
    if path is None:
        print(environments(entries))
        return 0
    try:
        page = path.read_text(encoding="utf-8")
        made = updated(page, entries)
    except (OSError, ValueError) as error:
        print(f"ragen.env.catalogue: {error}", file=sys.stderr)
        return 2
    if options.check and made != page:
        print(f"{path} is not what the code says; run: python -m ragen.env.catalogue --write {path}", file=sys.stderr)
        return 1
    if options.write:
        path.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
