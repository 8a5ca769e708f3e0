"""The documentation site: it builds without a warning and fetches nothing; what its pages say is what the code says."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ragen.config.checks import DERIVED, NOT_BUILT, check
from ragen.config.compose import CONFIG_DIR, load, schema
from ragen.config.inert import INERT
from ragen.config.reference import BESIDE, comments, main, rows, rows_beside, tables
from ragen.trainer.advantages.table import ESTIMATORS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
#: What a command of a page may lack on the machine that runs this test: a GPU, the reader's own files.
ELSEWHERE = ("trainer.device", "trainer.n_gpus_per_node", "model_path", "offline.path")


def text_of(page):
    return page.read_text(encoding="utf-8")


def first_cells(text, heading=""):
    """The first cell of each row of the tables below a heading, code marks and all."""
    return re.findall(r"^\| (`[^|]*?) \|", text[text.index(heading) :], re.MULTILINE)


# --- the site ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(ROOT / "mkdocs.yml"), "-d", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.wide
def test_the_site_builds_and_holds_every_page(site):
    built = {path.stem for path in site.glob("*.html")}
    assert {page.stem for page in DOCS.glob("*.md")} | {"verl", "setup"} <= built
    listed = set(re.findall(r": (\w+\.md)$", text_of(ROOT / "mkdocs.yml").partition("nav:")[2], re.MULTILINE))
    assert {page.name for page in DOCS.glob("*.md")} <= listed, "add the page to nav in mkdocs.yml"


@pytest.mark.wide
def test_its_pages_load_nothing_from_elsewhere(site):
    for page in site.glob("*.html"):
        loaded = re.findall(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"?([^\" >]+)", text_of(page))
        assert loaded and [link for link in loaded if link.startswith(("http", "//"))] == [], page.name


@pytest.mark.wide
def test_links_into_the_repository_lead_to_copies_and_the_tables_are_filled_in(site):
    assert 'href="repository/ragen/env/base.py"' in text_of(site / "environments.html")
    assert (site / "repository/ragen/env/base.py").read_bytes() == (ROOT / "ragen/env/base.py").read_bytes()
    assert "algorithm.adv_estimator</code>" in text_of(site / "configuration.html")
    assert "guess_number.py</span>" in text_of(site / "environments.html")


# --- commands ----------------------------------------------------------------------------------------------------


def train_commands():
    """(page, words) of every command of train.py in a code block."""
    found = []
    for page in PAGES:
        for kind, block in re.findall(r"^```([^\n]*)\n(.*?)^```$", text_of(page), re.DOTALL | re.MULTILINE):
            for line in block.replace("\\\n", " ").splitlines() if kind in ("", "bash") else ():
                script = next((name for name in ("train.py ", "scripts/slurm.sbatch ") if name in line), None)
                if script is not None:
                    found.append((page, shlex.split(line.partition(script)[2], comments=True)))
    return found


@pytest.mark.wide
@pytest.mark.parametrize("page, words", train_commands(), ids=lambda value: getattr(value, "name", None))
def test_every_command_of_train_py_names_configs_and_keys_that_exist(page, words, tmp_path, monkeypatch):
    for name, body in re.findall(r"^```\w+ (\S+)\n(.*?)^```$", text_of(page), re.DOTALL | re.MULTILINE):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(body, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = words[words.index("--config-dir") + 1] if "--config-dir" in words else None
    overrides = [word for word in words if "=" in word]
    if "-m" in words:
        overrides = [f"{key}={value.split(',')[0]}" for key, _, value in (word.partition("=") for word in overrides)]
    cfg = load(words[words.index("--config-name") + 1], overrides, folder)
    faults = [fault for fault in check(cfg) if fault.key not in ELSEWHERE]
    assert [str(fault) for fault in faults] == []


def test_pages_have_commands():
    assert len(train_commands()) > 20


# --- the configuration reference ---------------------------------------------------------------------------------


def test_every_key_has_one_row_and_says_what_refuses_it():
    found = rows()
    keys = [row.key for row in found]
    assert len(keys) == len(set(keys))
    assert set(keys) == {key for key in schema() if not key.endswith("_target_")}
    refused = {row.key for row in found if row.status}
    assert refused == (set(INERT) | set(DERIVED) | set(NOT_BUILT)) & set(keys)


def test_every_key_of_ours_has_a_meaning():
    assert [row.key for row in rows() if row.own and not row.meaning and not row.status] == []
    assert [row.key for part in BESIDE for row in rows_beside(part) if not row.meaning] == []
    lost = [row.key for row in rows() if not row.own and not row.meaning]
    assert len(lost) < len(rows()) / 3  # veRL's own files leave some without a word


def test_every_command_of_its_own_keys_is_in_the_tables():
    assert {path.parent.name for path in CONFIG_DIR.glob("*/settings.yaml")} == set(BESIDE)


def test_comments_are_those_directly_above_a_key(tmp_path):
    path = tmp_path / "some.yaml"
    path.write_text("# the file\n\na: 1\n# two\n# lines\nb:\n  # inner\n  c: 2\n  d: 3\n")
    assert comments(path) == {"b": "two lines", "b.c": "inner"}
    assert comments(path, shared=True) == {"b": "two lines", "b.c": "inner", "b.d": "inner"}


def test_a_text_chooses_keys(capsys):
    assert "| `lora.rank` | `0` | Columns of an adapter; 0: none |" in tables("lora.rank")
    assert main(["lora.rank"]) == 0 and "rollout_filter" not in capsys.readouterr().out
    assert main(["no_such_key"]) == 1


# --- pages that list what the code knows --------------------------------------------------------------------------


def test_the_algorithms_page_names_every_estimator_and_preset_with_its_paper():
    page = text_of(DOCS / "algorithms.md")
    named = set(re.findall(r"`([\w]+)`", " ".join(first_cells(page, "## Estimators"))))
    assert set(ESTIMATORS) <= named
    presets = set(re.findall(r"`(\w+)`", " ".join(first_cells(page, "## Presets"))))
    for preset in (CONFIG_DIR / "method").glob("*.yaml"):
        assert preset.stem in presets
        for paper in re.findall(r"arXiv:[\d.]+\d", text_of(preset)):
            assert paper in page, f"{preset.name}: {paper}"


def test_messages_of_the_troubleshooting_page_are_the_codes_own():
    sources = [*(ROOT / "ragen").rglob("*.py"), *(ROOT / "scripts").glob("*.sh")]
    code = " ".join(re.sub(r'"\s*\n\s*f?"', "", text_of(path)) for path in sources)
    code = re.sub(r"\{[^{}]*\}", "…", code)
    page = text_of(DOCS / "troubleshooting.md")
    for cell in first_cells(page):
        for message in re.findall(r"`([^`]+)`", cell):
            if "/" in message or "_" in message.split()[0]:
                continue  # a metric or a reason: docs/metrics.md
            for part in re.split(r" ?…[?]? ?|\b\d+\b|[;:] |:$|vllm(?:-cpu)?|MyEnv env_raised", message):
                assert part.strip() in code, f"no code says {message!r}"


# --- metrics -----------------------------------------------------------------------------------------------------


def metric_patterns():
    """Of every name in the first column of a table of docs/metrics.md: what it matches."""
    found = []
    for cell in first_cells(text_of(DOCS / "metrics.md"), "## Episodes"):
        for name in re.findall(r"`([^`]+)`", cell):
            pattern = re.escape(name)
            pattern = re.sub(r"\\{([^}]*)\\}", lambda m: f"(?:{m[1].replace(',', '|')})", pattern)
            pattern = re.sub(r"<\w+>", "[^/]+", pattern)
            found.append(re.compile(pattern))
    return found


def test_every_metric_of_real_runs_has_a_row():
    names = text_of(Path(__file__).parent / "metric_names.txt").split()
    patterns = metric_patterns()
    assert len(names) > 150
    assert [name for name in names if not any(p.fullmatch(name) for p in patterns)] == []


def test_a_metric_without_a_row_is_found():
    assert not any(p.fullmatch("actor/no_such_metric") for p in metric_patterns())
