"""docs/environments.md: its example works as pasted, its commands as written, its tables are what the code says."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ragen.config.checks import check
from ragen.config.compose import load
from ragen.env import catalogue
from ragen.env.check import read_config
from ragen.env.checker.registry import all_checks

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "environments.md"


@pytest.fixture(scope="module")
def page():
    return PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def pasted(page, tmp_path_factory):
    """A folder with every file of the page: code blocks that name one."""
    folder = tmp_path_factory.mktemp("pasted")
    for name, text in re.findall(r"^```\w+ (\S+)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def commands(page, first):
    blocks = re.findall(r"^```bash\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith(first)]


def run(words, folder):
    env = {"PYTHONPATH": f"{ROOT}:{ROOT / 'verl'}", "PATH": "/usr/bin:/bin"}
    return subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True)


def test_the_example_is_about_forty_lines(page, pasted):
    lines = [line for line in (pasted / "guess_number.py").read_text().splitlines() if line.strip()]
    assert len(lines) <= 45


@pytest.mark.wide
def test_the_example_passes_the_checker_as_the_page_says(page, pasted):
    own = [words for words in commands(page, "python -m ragen.env.check") if "Guess" in " ".join(words)]
    assert len(own) == 2
    for words in own:
        done = run(words[1:], pasted)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"sound: {len(all_checks())} checks" in done.stdout and "advice" not in done.stdout


def test_the_examples_config_is_without_fault(pasted, monkeypatch):
    monkeypatch.syspath_prepend(pasted)
    cfg = load("guess", ["trainer.total_training_steps=2"], pasted / "my_configs")
    assert check(cfg) == []
    assert list(cfg.es_manager.train.env_configs.tags) == ["GuessNumber"]


def test_every_other_command_of_the_page_is_understood(page):
    from ragen.env.check import _parser

    for words in commands(page, "python -m ragen.env.check"):
        _parser().parse_args(words[3 : words.index(">")] if ">" in words else words[3:])


def test_the_tables_are_what_the_code_says(page):
    entries, _ = read_config()
    assert catalogue.updated(page, entries) == page, "run: python -m ragen.env.catalogue --write docs/environments.md"


def test_a_stale_page_is_found_and_put_right(page, tmp_path, capsys):
    stale = tmp_path / "page.md"
    stale.write_text(page.replace("`Dragon`", "`Gryphon`"), encoding="utf-8")
    assert stale.read_text() != page
    assert catalogue.main(["--check", str(stale)]) == 1
    assert "--write" in capsys.readouterr().err
    assert catalogue.main(["--write", str(stale)]) == 0 and stale.read_text() == page
    assert catalogue.main(["--check", str(stale)]) == 0


def test_what_cannot_be_built_here_keeps_its_entry(page):
    entries = {"FrozenLake": {"env_type": "no_such_env"}, "Elsewhere": {"env_type": "no_such_env"}}
    made = catalogue.environments(entries, page)
    assert re.search(r"### FrozenLake\n.*?```text\n[PGO_\n]+```", made, re.DOTALL)
    assert made.endswith("### Elsewhere\n\n`no_such_env`. Not built where this page was made.")


def test_a_page_without_marks_is_refused(tmp_path, capsys):
    (tmp_path / "page.md").write_text("# Nothing\n")
    assert catalogue.main(["--write", str(tmp_path / "page.md")]) == 2
    assert "lacks the marks" in capsys.readouterr().err
