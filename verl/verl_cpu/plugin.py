"""When the plugin acts, and how it is put in and taken out."""

import os
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version

from verl_cpu.adaptations import ADAPTATIONS
from verl_cpu.import_hook import ImportHook
from verl_cpu.versions import warn_on_other_versions

_installed: ExitStack | None = None


def reason_to_stay_out() -> str | None:
    """Say why this process should not train on a CPU; None where it should.

    The answer is a property of the machine and its environment variables, so every process of a run gives the same
    one, including the Ray actors of a GPU run that see no GPU themselves.

    Raises:
        ValueError: ``VERL_CPU`` is neither 0 nor 1.
    """
    from verl.utils.device import is_cuda_available

    switch = os.environ.get("VERL_CPU", "").strip()
    if switch not in ("", "0", "1"):
        raise ValueError(f"VERL_CPU={switch!r}: use 0 (never), 1 (wherever there is no GPU) or leave it unset")
    if switch == "0":
        return "VERL_CPU=0"
    if is_cuda_available:
        return "torch.cuda.is_available()"
    asked = os.environ.get("VERL_PLATFORM", "").strip().lower()
    if asked not in ("", "cpu"):
        return f"VERL_PLATFORM={asked}"
    if switch == "1" or asked == "cpu":
        return None
    accelerator = _accelerator_of_this_host()
    if accelerator:
        return f"veRL's platform {accelerator!r} is available on this host"
    if _has_gpu_build_of_vllm():
        return "vLLM's GPU build is installed (a GPU cluster's head node?); VERL_CPU=1 trains on the CPU all the same"
    return None


def install() -> None:
    """Apply every adaptation to this process; a second call does nothing."""
    global _installed
    if _installed is not None:
        return
    warn_on_other_versions()
    # One stack from first to last: modules that are imported later leave the way back on it, too.
    undo, hook = ExitStack(), ImportHook()
    undo.callback(hook.close)
    try:
        for adapt in ADAPTATIONS:
            adapt(undo, hook)
    except BaseException:
        undo.close()
        raise
    _installed = undo


def uninstall() -> None:
    """Undo ``install``, last adaptation first. Objects that veRL has already built keep what they were built with."""
    global _installed
    if _installed is not None:
        undo, _installed = _installed, None
        undo.close()


def is_installed() -> bool:
    """Whether the adaptations are in place in this process."""
    return _installed is not None


def _accelerator_of_this_host() -> str | None:
    """Name the first of veRL's own platforms whose driver is on this host, visible to this process or not."""
    from verl.plugin.platform import PlatformRegistry

    for name in PlatformRegistry.registered_names():
        if name != "cpu" and PlatformRegistry.get(name)().is_platform_available(use_smi_check=True):
            return name
    return None


def _has_gpu_build_of_vllm() -> bool:
    try:
        return "+cpu" not in version("vllm")
    except PackageNotFoundError:
        return False
