"""Hooks of mkdocs.yml: what the documentation site needs beside the pages in docs/.

Pages are written to be read in the repository as well, so they link to files outside docs/. Two of those become pages
(`PAGES`); others are copied into the site, below repository/. The tables of docs/configuration.md are made here.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]

#: Files of the repository that are pages of the site.
PAGES = {"README.md": "index.md", "scripts/setup_ragen.md": "setup.md", "verl/README.md": "verl.md"}
#: Where other files that pages link to are put.
COPIES = "repository/"
TABLES = "<!-- made when the site is built: every key -->"

_LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_NAMED_FENCE = re.compile(r"^```(\w+) (\S+)$", re.MULTILINE)


def on_files(files: Any, *, config: Any) -> Any:
    """Adds the pages and files of the repository that lie outside docs/."""
    for source, page in PAGES.items():
        if files.get_file_from_path(page) is None:
            files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    linked: set[str] = set()
    for file in files.documentation_pages():
        _each_link(Path(file.abs_src_path).read_text(encoding="utf-8"), _origin(file), linked.add)
    for name in sorted(linked):
        if not name.startswith("docs/") and name not in PAGES and (ROOT / name).is_file():
            files.append(File.generated(config, COPIES + name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Turns links of the repository into links of the site, and fills in the tables."""
    text = _each_link(markdown, _origin(page.file), lambda name: None)
    if TABLES in text:
        # the site describes the checkout that it is built from; mkdocs undoes a change of the path at this file's top
        sys.path.insert(0, str(ROOT))
        from ragen.config.reference import tables

        text = text.replace(TABLES, tables())
    return _NAMED_FENCE.sub(r'```\1 title="\2"', text)


def _origin(file: Any) -> str:
    """The page's path in the repository."""
    return Path(file.abs_src_path).relative_to(ROOT).as_posix()


def _each_link(markdown: str, origin: str, found: Any) -> str:
    """The page with its relative links as the site wants them; `found` gets each one's path in the repository."""

    def site(link: re.Match) -> str:
        name = posixpath.normpath(posixpath.join(posixpath.dirname(origin), link[1]))
        found(name)
        if name.startswith("docs/"):
            target = name.removeprefix("docs/")
        elif (ROOT / name).is_file():
            target = PAGES.get(name, COPIES + name)
        else:
            return link[0]  # mkdocs reports it
        return f"]({target}{link[2] or ''})"

    text, last = [], 0
    for fence in _FENCE.finditer(markdown):
        text += [_LINK.sub(site, markdown[last : fence.start()]), fence[0]]
        last = fence.end()
    return "".join([*text, _LINK.sub(site, markdown[last:])])
