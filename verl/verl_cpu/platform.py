"""The CPU as a veRL platform: what veRL asks of an accelerator, answered by the host."""

import resource
from collections.abc import Callable
from contextlib import contextmanager
from types import ModuleType

import psutil
import torch
from verl.plugin.platform import PlatformBase


class PlatformCPU(PlatformBase):
    """veRL's device interface for a host without accelerators.

    Workers are placed by Ray's logical ``GPU`` resource, as on a GPU: veRL reads the worker's slot from Ray's list of
    accelerator ids, and Ray keeps such a list for the accelerators it knows only.
    """

    device_name = "cpu"
    vendor_name = "cpu"

    def __init__(self) -> None:
        self._device_module = make_device_module()

    @property
    def device_module(self) -> ModuleType:
        return self._device_module

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        from verl_cpu.plugin import reason_to_stay_out

        return reason_to_stay_out() is None

    def current_device(self) -> torch.device:
        """The device itself, not an index: veRL passes it to ``tensor.to``, where 0 would mean ``cuda:0``."""
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str):
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        """False: weights then travel to the rollout engine through shared memory."""
        return False

    def cudart(self) -> None:
        return None


def make_device_module() -> ModuleType:
    """Build the stand-in for ``torch.cuda``: ``torch.cpu`` plus the calls that veRL makes and ``torch.cpu`` lacks.

    Memory figures are the process's resident set and the host's memory, in bytes, so that veRL's ``perf/*_memory_*``
    metrics mean something. The peak is that of the whole life of the process: it cannot be reset.
    """
    module = ModuleType("verl_cpu.device")
    module.__doc__ = make_device_module.__doc__
    for name in dir(torch.cpu):
        if not name.startswith("_"):
            setattr(module, name, getattr(torch.cpu, name))
    for name, call in _calls_that_torch_cpu_lacks().items():
        setattr(module, name, call)
    return module


def _calls_that_torch_cpu_lacks() -> dict[str, Callable]:
    def nothing(*args, **kwargs) -> None:
        return None

    def resident_bytes(device=None) -> int:
        return psutil.Process().memory_info().rss

    def peak_resident_bytes(device=None) -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB

    def free_and_total_bytes(device=None) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    return {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: torch.device("cpu"),
        "get_device_name": lambda device=None: "CPU",
        "memory_allocated": resident_bytes,
        "memory_reserved": resident_bytes,
        "max_memory_allocated": peak_resident_bytes,
        "max_memory_reserved": peak_resident_bytes,
        "mem_get_info": free_and_total_bytes,
        "reset_peak_memory_stats": nothing,
        "set_per_process_memory_fraction": nothing,
        "empty_cache": nothing,
        "ipc_collect": nothing,
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
    }
