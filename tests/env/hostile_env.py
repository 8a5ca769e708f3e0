"""Environments that misbehave on request, for tests. Imports nothing heavy: worker processes import it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time

import numpy as np

from ragen.env.base import Env


class HostileEnv(Env):
    """Adds up actions; a hidden draw (`luck_rng`) goes into each reward. `step` does what its action's name says."""

    def __init__(self, start: int = 0):
        super().__init__(config=start)
        self.start = start
        self.steps_ever = 0  # tells instances, hence failures that leaked state, apart

    def reset(self, seed, *, luck=None):
        if seed < 0:
            raise ValueError(f"no level for seed {seed}")
        self.seed_streams(seed, luck)
        self.total = self.start + int(self.level_rng.integers(100))
        return f"total {self.total}", {"pid": os.getpid(), "thread": threading.get_ident()}

    def action_lookup(self):
        return {
            "Add": 1, "Raise": "raise", "Exit": "exit", "Sleep": "sleep", "Spin": "spin", "Nap": "nap", "Die": "die",
            "Segfault": "segfault", "Lambda": "lambda", "NumPy": "numpy", "Child": "child", "Print": "print",
            "Big": "big", "Shape": "shape", "Work": "work",
        }  # fmt: skip

    def step(self, action):
        self.steps_ever += 1
        info = {"steps_ever": self.steps_ever, "action_is_valid": True, "action_is_effective": True, "success": False}
        if action == 1:
            self.total += 1
        else:
            info.update(getattr(self, f"do_{action}")() or {})
        if "shape" in info:
            return "three", 0.0, False
        return f"total {self.total}", self.luck_rng.random(), self.total >= 105, False, info

    def do_raise(self):
        raise RuntimeError("the board broke")

    def do_exit(self):
        sys.exit(3)

    def do_sleep(self):
        time.sleep(3600)

    def do_spin(self):
        while True:
            pass

    def do_nap(self):
        time.sleep(0.2)

    def do_work(self):
        ends = time.process_time() + 0.35
        while time.process_time() < ends:
            pass

    def do_die(self):
        os._exit(7)

    def do_segfault(self):
        ctypes.string_at(0)

    def do_lambda(self):
        return {"f": lambda: None}

    def do_numpy(self):
        return {"scalar": np.int64(3), "nested": [np.bool_(True), (np.float32(0.5),)], np.str_("key"): 1}

    def do_child(self):
        return {"child": subprocess.Popen(["sleep", "3600"]).pid}

    def do_print(self):
        print("printed by the environment")

    def do_big(self):
        return {"picture": np.full((512, 512, 3), 7, np.uint8)}

    def do_shape(self):
        return {"shape": 3}

    def render(self, mode="text"):
        return np.zeros((2, 2, 3), np.uint8) if mode == "rgb_array" else f"total {self.total}"

    def instruction(self):
        return f"Count from {self.start}."

    def oracle_action(self):
        return "Add"


class FreeTextEnv(HostileEnv):
    """Any text is an action; the observation repeats it."""

    def action_lookup(self):
        return None

    def step(self, action):
        return action, np.float32(1.0), np.bool_(False), False, {}


def make_broken():
    """A factory that always raises."""
    raise FileNotFoundError("no data set here")


def make_dying():
    """A factory that ends the process."""
    os._exit(9)


def make_sleeping():
    """A factory that hangs."""
    time.sleep(3600)
