"""The CPU answers what veRL asks of an accelerator."""

import psutil
import pytest
import torch
import verl  # noqa: F401
from verl.plugin.platform import PlatformBase

from verl_cpu.platform import PlatformCPU, make_device_module


def test_it_is_a_complete_platform():
    platform = PlatformCPU()  # an abstract method left out would raise here
    assert isinstance(platform, PlatformBase)
    assert (platform.device_name, platform.vendor_name) == ("cpu", "cpu")
    assert platform.ray_resource_options(1) == {"num_gpus": 1}
    assert platform.get_device_capability() == (None, None)
    with platform.nvtx_range("step"):
        pass


def test_current_device_takes_tensors():
    assert torch.zeros(1).to(PlatformCPU().current_device()).device.type == "cpu"


def test_seed_and_rng_state_are_torch_s():
    platform, device = PlatformCPU(), PlatformCPU().device_module
    platform.manual_seed(7)
    state = device.get_rng_state()
    first = torch.rand(3)
    device.set_rng_state(state, "cpu")
    assert torch.equal(torch.rand(3), first)


def test_memory_figures_are_those_of_process_and_host():
    device = make_device_module()
    free, total = device.mem_get_info()
    assert 0 < free < total == psutil.virtual_memory().total
    resident, peak = device.memory_allocated(), device.max_memory_allocated()
    assert 50e6 < resident < total  # torch alone is more than that
    assert peak == pytest.approx(resident, rel=0.9) or peak > resident


def test_device_module_has_what_torch_cpu_has():
    device = make_device_module()
    assert device.Stream is torch.cpu.Stream
    assert device.is_available() and device.device_count() == 1 and device.get_device_name() == "CPU"
    assert device.synchronize() is None and device.empty_cache() is None
