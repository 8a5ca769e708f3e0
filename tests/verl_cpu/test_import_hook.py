"""Callbacks run once, right after the first import, and the module is otherwise as it would have been."""

import importlib
import inspect
import sys

import pytest

from verl_cpu.import_hook import ImportHook


@pytest.fixture
def hook():
    hook = ImportHook()
    yield hook
    hook.close()


@pytest.fixture
def module_name(tmp_path, monkeypatch):
    (tmp_path / "a_watched_module.py").write_text("value = 1\nseen_during_import = value\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "a_watched_module"
    sys.modules.pop("a_watched_module", None)


def test_callback_runs_after_the_import_and_once(hook, module_name):
    calls = []
    hook.after_import(module_name, lambda module: (calls.append(module.__name__), setattr(module, "value", 2)))
    assert calls == []
    module = importlib.import_module(module_name)
    assert (module.value, module.seen_during_import, calls) == (2, 1, [module_name])
    sys.modules.pop(module_name)
    assert importlib.import_module(module_name).value == 1
    assert calls == [module_name]


def test_callbacks_run_in_the_order_given(hook, module_name):
    calls = []
    hook.after_import(module_name, lambda module: calls.append("first"))
    hook.after_import(module_name, lambda module: calls.append("second"))
    importlib.import_module(module_name)
    assert calls == ["first", "second"]


def test_an_imported_module_is_adapted_at_once(hook, module_name):
    module = importlib.import_module(module_name)
    hook.after_import(module_name, lambda module: setattr(module, "value", 3))
    assert module.value == 3


def test_source_stays_readable(hook, module_name):
    hook.after_import(module_name, lambda module: None)
    assert "seen_during_import" in inspect.getsource(importlib.import_module(module_name))


def test_an_absent_module_stays_absent(hook):
    hook.after_import("a_module_that_is_not_there", lambda module: None)
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there"):
        importlib.import_module("a_module_that_is_not_there")


def test_closed_hook_watches_no_longer(hook, module_name):
    hook.after_import(module_name, lambda module: setattr(module, "value", 2))
    hook.close()
    assert hook not in sys.meta_path
    assert importlib.import_module(module_name).value == 1
