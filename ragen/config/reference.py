"""Every key of the configuration as Markdown tables: its default, what it means, and whether anything reads it.

    python -m ragen.config.reference             prints all tables
    python -m ragen.config.reference rollout_    prints the keys that hold this text

Meanings are the comments above keys in YAML files: the project's own (`config/*.yaml`), and for what it leaves as it
is, those of the installed veRL. The documentation site puts the tables into docs/configuration.md when it is built
(scripts/site_hooks.py), so that nothing can be out of date.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from ragen.config.checks import DERIVED, NOT_BUILT
from ragen.config.compose import CONFIG_DIR, leaves, schema, verl_config_dir
from ragen.config.inert import INERT

__all__ = ["Row", "comments", "rows", "rows_beside", "tables"]

#: libyaml's, where PyYAML was built with it: ten times as fast.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MOST_DEFAULT = 60
#: Folder of config/ with the keys of a command of its own → the heading of their table.
BESIDE = {"evaluation": "Keys of evaluation", "supervised": "Keys of the warm start"}
#: Keys that say which Python class reads a mapping: no settings.
_NO_SETTING = "_target_"


@dataclass(frozen=True)
class Row:
    """One key."""

    key: str
    default: str
    """As written in YAML."""
    meaning: str
    """Empty where no file says."""
    status: str
    """Why setting it is refused; empty: it may be set."""
    own: bool
    """True: a file of this project's config/ names it; False: it is veRL's alone."""


def rows() -> list[Row]:
    """Every known key, in the order of the composed configuration."""
    own, verl = _own_comments(), _verl_comments()
    shared = comments(CONFIG_DIR / "base.yaml", shared=True)
    named = _named(CONFIG_DIR / "base.yaml") | _named(CONFIG_DIR / "ppo_trainer.yaml") | {"custom_envs"}
    found = []
    for key, value in schema().items():
        if key.rpartition(".")[2] != _NO_SETTING:
            meaning = own.get(key) or _follows(value) or shared.get(key) or verl.get(key, "")
            found.append(Row(key, _written(value), meaning, _status(key), key in named))
    return found


def rows_beside(part: str) -> list[Row]:
    """The keys that one command other than train.py reads: those of `config/<part>/settings.yaml`."""
    path = CONFIG_DIR / part / "settings.yaml"
    said = comments(path)
    return [Row(key, _written(value), said.get(key, ""), "", True) for key, value in leaves(OmegaConf.load(path))]


def tables(containing: str = "") -> str:
    """Markdown: one table for each top-level mapping, RAGEN's keys first, then veRL's.

    containing: only keys that hold this text.
    """
    chosen = [row for row in rows() if containing in row.key]
    parts = []
    for title, some in (
        ("RAGEN's keys", [row for row in chosen if row.own]),
        *((title, [row for row in rows_beside(part) if containing in row.key]) for part, title in BESIDE.items()),
        ("veRL's further keys", [row for row in chosen if not row.own]),
    ):
        if some:
            parts += [f"## {title}", *_sections(title, some)]
    return "\n\n".join(parts)


def comments(path: Path, *, shared: bool = False) -> dict[str, str]:
    """Dotted key → the comment lines directly above it in a YAML file, as one text; keys without one are left out.

    shared: a key without one, on the line after its sibling's, has the sibling's (`low` and `high` of one comment).
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    said = {}
    before = ("", -1)
    for key, line in _lines(path):
        if shared and before[1] == line - 1 and before[0].rpartition(".")[0] == key.rpartition(".")[0]:
            said[key] = said.get(before[0], "")
        before = (key, line)
        above: list[str] = []
        while line and lines[line - 1].strip().startswith("#"):
            line -= 1
            above.insert(0, lines[line].strip().lstrip("#").strip())
        if above:
            said[key] = " ".join(word for text in above for word in text.split())
    return {key: text for key, text in said.items() if text}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ragen.config.reference", description=__doc__.split("\n")[0])
    parser.add_argument("containing", nargs="?", default="", metavar="TEXT", help="only keys that hold this text")
    text = tables(parser.parse_args(argv).containing)
    print(text or "no such key")
    return 0 if text else 1


# --- where meanings stand ----------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def _own_comments() -> dict[str, str]:
    said = comments(CONFIG_DIR / "ppo_trainer.yaml")
    said["custom_envs"] = "environments by tag (config/envs.yaml)"
    return said | comments(CONFIG_DIR / "base.yaml")


@functools.lru_cache(maxsize=1)
def _verl_comments() -> dict[str, str]:
    return _inherited(verl_config_dir() / "ppo_trainer.yaml", "")


def _inherited(path: Path, package: str) -> dict[str, str]:
    """Comments of a file of veRL's and of those that it inherits, under the keys where Hydra puts them."""
    said: dict[str, str] = {}
    content = yaml.load(path.read_text(encoding="utf-8"), _LOADER) or {}
    for entry in content.get("defaults", ["_self_"]):
        if entry == "_self_":
            said |= {_below(package, key): text for key, text in comments(path).items()}
            continue
        place, name = next(iter(entry.items())) if isinstance(entry, dict) else ("", entry)
        group, _, target = place.partition("@")
        # the one choice among them that is a variable: which engine trains
        file = path.parent / group / f"{str(name).replace('${model_engine}', 'dp')}.yaml"
        if file.is_file():
            said |= _inherited(file, _below(package, target))
    return said


def _lines(path: Path) -> Iterator[tuple[str, int]]:
    """Dotted key and its line, counted from 0, of every key of a YAML file."""

    def walk(node: yaml.Node, prefix: str) -> Iterator[tuple[str, int]]:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                yield prefix + key.value, key.start_mark.line
                yield from walk(value, f"{prefix}{key.value}.")

    yield from walk(yaml.compose(path.read_text(encoding="utf-8"), _LOADER), "")


def _named(path: Path) -> set[str]:
    return {key for key, _ in _lines(path)}


def _below(package: str, key: str) -> str:
    return f"{package}.{key}" if package and key else package or key


# --- words -------------------------------------------------------------------------------------------------------


def _follows(value: Any) -> str:
    found = re.fullmatch(r"\$\{([\w.]+)\}", str(value))
    return f"follows {found[1]}" if found else ""


def _status(key: str) -> str:
    if key in INERT:
        instead = INERT[key].instead
        return "Nothing reads it." + (f" Instead: {instead}." if instead else "")
    if key in DERIVED:
        return f"Follows from others: {DERIVED[key]}."
    if key in NOT_BUILT:
        return f"Nothing else is built: leave it at {_written(NOT_BUILT[key])}."
    return ""


def _written(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6)
    text = text.removesuffix("...\n").strip()
    if isinstance(value, str) and (not value or "\n" in value or value != value.strip()):
        text = yaml.safe_dump(value, default_style='"', allow_unicode=True, width=10**6).strip()
    return text if len(text) <= _MOST_DEFAULT else text[: _MOST_DEFAULT - 1] + "…"


def _sections(title: str, some: Iterable[Row]) -> Iterator[str]:
    """A section for each top-level mapping that holds several keys; single keys come first, in a table of their own."""
    groups: dict[str, list[Row]] = {}
    for row in some:
        head, dot, _ = row.key.partition(".")
        groups.setdefault(head if dot else "", []).append(row)
    mappings = {key: text for key, text in _own_comments().items() if key in groups}
    for name in sorted(groups, key=lambda name: bool(name)):
        if name:
            yield f"### `{name}`" + (" in veRL" if title.startswith("veRL") else "")
            if name in mappings:
                yield _plain(_sentence(mappings[name]))
        yield _table(groups[name])


def _table(some: Iterable[Row]) -> str:
    lines = ["| key | default | meaning |", "|---|---|---|"]
    for row in some:
        meaning = " ".join(part for part in (f"**{row.status}**" if row.status else "", _sentence(row.meaning)) if part)
        lines.append(f"| `{row.key}` | {_code(row.default)} | {_plain(meaning)} |")
    return "\n".join(lines)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] if re.match(r"[a-z]+ ", text) else text


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _plain(text: str) -> str:
    """Text that Markdown shows as it stands, but for code and the bold of a status."""
    parts = re.split(r"(`[^`]*`|\*\*[^*]+\*\*)", text)
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"([*_|\[\]\\])", r"\\\1", parts[i]).replace("<", "&lt;")
    return "".join(part.replace("|", "&#124;") if part.startswith("**") else part for part in parts)


if __name__ == "__main__":
    sys.exit(main())
