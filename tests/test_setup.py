"""The set-up: what scripts/setup_ragen.sh decides on other machines, and that the pinned versions agree.

The script runs for real, with --dry-run, in a copy of the repository's few inputs; other machines are made of
small programs put first on PATH (uname, nvidia-smi, python).
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest itself brings it there
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
INPUTS = [
    "pyproject.toml",
    "scripts/setup_ragen.sh",
    "verl/constraints-build.txt",
    "verl/constraints-cpu.txt",
    "verl/constraints-gpu.txt",
]
KINDS = ["cpu", "gpu"]


class Machine:
    """A folder with the script's inputs, and a PATH that starts with programs of our own."""

    def __init__(self, folder: Path):
        self.root = folder / "ragen"
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name in INPUTS:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        self.program("uname", 'case "$1" in -m) echo x86_64 ;; *) echo Linux ;; esac')
        self.program("nvidia-smi", "exit 9")
        for name in ["python3.11", "python3.12", "python3.10", "python3", "python"]:
            self.program(name, "exit 127")
        self.python("python3")

    def program(self, name: str, body: str, folder: Path | None = None) -> Path:
        path = (folder or self.bin) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    def python(self, name: str, folder: Path | None = None) -> Path:
        return self.program(name, f'exec "{sys.executable}" "$@"', folder)

    def old_python(self, name: str, folder: Path | None = None) -> Path:
        """A Python that answers as 3.9: the script's own question runs with another version_info."""
        fake = "import sys; sys.version_info = (3, 9, 0, 'final', 0); exec(sys.argv[1])"
        return self.program(name, f'exec "{sys.executable}" -c "{fake}" "$2"', folder)

    def venv(self, state: str | None, python: bool = True) -> None:
        folder = self.root / ".venv" / "bin"
        folder.mkdir(parents=True)
        if python:
            self.python("python", folder)
        if state is not None:
            (self.root / ".venv" / ".ragen-setup").write_text(state + "\n")

    def setup(self, *args: str, **env: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            ["bash", str(self.root / "scripts/setup_ragen.sh"), *args],
            env={"PATH": f"{self.bin}{os.pathsep}/usr/bin{os.pathsep}/bin", **env},
            capture_output=True,
            text=True,
            timeout=30,
        )

    def decides(self, *args: str, **env: str) -> str:
        done = self.setup("--dry-run", *args, **env)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_without_a_gpu_it_is_cpu_and_new(machine):
    said = machine.decides()
    assert "engine: cpu (nvidia-smi lists no GPU)" in said
    assert ".venv:  new" in said
    assert not (machine.root / ".venv").exists()


def test_with_a_gpu_it_is_gpu_and_an_old_driver_is_named(machine):
    machine.program("nvidia-smi", 'case "$1" in -L) echo "GPU 0: Some GPU" ;; *) echo 550.54.14 ;; esac')
    said = machine.decides()
    assert "engine: gpu (nvidia-smi lists a GPU)" in said
    assert "driver 550.54.14 is older than 580" in said
    assert "engine: cpu (asked for)" in machine.decides("cpu")


def test_a_new_enough_driver_is_not_named(machine):
    machine.program("nvidia-smi", 'case "$1" in -L) echo "GPU 0: Some GPU" ;; *) echo 580.65.06 ;; esac')
    assert "note" not in machine.decides()


def test_the_first_python_that_works_is_taken(machine):
    machine.old_python("python3.11")
    machine.program("python3.12", 'echo "pyenv: python3.12: command not found" >&2; exit 127')
    machine.python("python3.10")
    assert f"python: {sys.executable}" in machine.decides()


def test_no_python_means_that_uv_fetches_one(machine):
    machine.old_python("python3")
    assert "python: none of 3.10 to 3.12 found" in machine.decides()


def test_a_python_that_was_asked_for_must_fit(machine):
    old = machine.old_python("old")
    done = machine.setup("--dry-run", PYTHON=str(old))
    assert done.returncode == 1
    assert f"PYTHON={old} is not a working CPython 3.10, 3.11 or 3.12" in done.stderr


@pytest.mark.parametrize(
    "state, python, args, want",
    [
        ("incomplete", True, [], "remake (the last set-up was interrupted)"),
        ("cpu 1", False, [], "remake (.venv has no working Python)"),
        ("cpu 1", True, ["gpu"], "remake (.venv holds the cpu engine"),
        ("cpu 1", True, [], "update (the pinned versions changed)"),
        (None, True, [], "update (.venv was made by hand)"),
    ],
)
def test_what_becomes_of_a_venv(machine, state, python, args, want):
    machine.venv(state, python)
    assert want in machine.decides(*args)


def test_a_venv_keeps_its_engine(machine):
    machine.venv("gpu 1")
    assert "engine: gpu (as .venv has it)" in machine.decides()


def test_nothing_to_do_until_an_input_changes(machine):
    inputs = ["pyproject.toml", "verl/constraints-build.txt", "verl/constraints-cpu.txt"]
    content = b"".join((machine.root / name).read_bytes() for name in inputs)
    checksum = subprocess.run(["cksum"], input=content, capture_output=True, check=True).stdout.decode()
    machine.venv("cpu " + checksum.strip().replace(" ", ""))
    assert ".venv:  none (up to date)" in machine.decides()
    with open(machine.root / "verl/constraints-gpu.txt", "a") as file:
        file.write("# of no concern to the cpu\n")
    assert ".venv:  none (up to date)" in machine.decides()
    with open(machine.root / "verl/constraints-cpu.txt", "a") as file:
        file.write("# changed\n")
    assert ".venv:  update (the pinned versions changed)" in machine.decides()


def test_macos_installs_without_the_engine_and_says_so(machine):
    machine.program("uname", 'case "$1" in -m) echo arm64 ;; *) echo Darwin ;; esac')
    said = machine.decides()
    assert "training does not" in said and "engine: cpu (macOS)" in said
    assert "no CUDA on macOS" in machine.setup("gpu", "--dry-run").stderr


def test_intel_mac_and_windows_are_refused_with_what_to_use(machine):
    machine.program("uname", 'case "$1" in -m) echo x86_64 ;; *) echo Darwin ;; esac')
    assert "no wheels for Intel Macs" in machine.setup("--dry-run").stderr
    machine.program("uname", "echo MINGW64_NT-10.0")
    done = machine.setup("--dry-run")
    assert done.returncode == 1 and "WSL2" in done.stderr


def test_an_unknown_argument_is_named_and_help_is_no_error(machine):
    done = machine.setup("tpu")
    assert done.returncode == 1 and "unknown argument 'tpu'" in done.stderr
    done = machine.setup("--help")
    assert done.returncode == 0 and "[cpu|gpu]" in done.stdout


# --- pinned versions -------------------------------------------------------------------------------------------


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def pinned(kind: str) -> list[Requirement]:
    lines = (ROOT / f"verl/constraints-{kind}.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def direct(*extras: str) -> list[Requirement]:
    table = project()["project"]
    optional = [line for extra in extras for line in table["optional-dependencies"][extra]]
    return [Requirement(line) for line in table["dependencies"] + optional]


def test_every_direct_dependency_is_pinned_exactly():
    for requirement in direct("cpu", "gpu", "flash", "dev"):
        operators = [specifier.operator for specifier in requirement.specifier]
        assert operators == ["=="], f"{requirement}: pin it with =="


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12"])
def test_constraints_hold_the_versions_of_pyproject(kind, python):
    on = {"python_version": python, "python_full_version": f"{python}.9", "sys_platform": "linux"}
    on |= {"platform_machine": "x86_64", "platform_system": "Linux"}
    here = {r.name.lower(): str(r.specifier) for r in pinned(kind) if not r.marker or r.marker.evaluate(on)}
    for requirement in direct(kind, "dev"):
        if not requirement.marker or requirement.marker.evaluate(on):
            assert here.get(requirement.name.lower()) == str(requirement.specifier), (
                f"{requirement}: run bash scripts/setup_ragen.sh --repin"
            )


@pytest.mark.parametrize("kind", KINDS)
def test_constraints_are_exact_and_name_no_address(kind):
    text = (ROOT / f"verl/constraints-{kind}.txt").read_text()
    assert "://" not in text and "--" not in text.replace("--repin", "")
    for requirement in pinned(kind):
        assert requirement.url is None and [s.operator for s in requirement.specifier] == ["=="], str(requirement)


def test_the_torch_override_is_the_pinned_torch():
    torch = [str(r) for r in direct() if r.name == "torch"]
    assert project()["tool"]["uv"]["override-dependencies"] == torch
