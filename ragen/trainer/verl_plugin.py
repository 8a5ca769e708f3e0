"""Loaded through veRL's plugin door in every process of a run: gives the run sockets of its own.

veRL 0.9.1 sends weights to the rollout engine over `/tmp/rl-colocate-zmq-<Ray job id>-replica-…-rank-….sock`. Every Ray
of its own counts its jobs from 1, so two runs on one machine would meet at the same socket, and one would train while
the other plays with its weights. Imports nothing heavy.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType

from verl_cpu.import_hook import ImportHook

#: Environment variable with the run's id; the launcher sets it for every worker. Without it nothing is changed.
RUN_ID = "RAGEN_RUN_ID"

_SENDER = "verl.workers.rollout.vllm_rollout.vllm_rollout"
_RECEIVER = "verl.workers.rollout.vllm_rollout.utils"


def own_socket(handle: str) -> str:
    """veRL's socket address with the run's id in its name."""
    return handle.replace("rl-colocate-zmq-", f"rl-colocate-zmq-{os.environ[RUN_ID]}-")


def _adapt_sender(module: ModuleType) -> None:
    original = module.ServerAdapter.__init__

    @functools.wraps(original)
    def init(self, *args, **kwargs):
        original(self, *args, **kwargs)
        self.zmq_handle = own_socket(self.zmq_handle)

    module.ServerAdapter.__init__ = init


def _adapt_receiver(module: ModuleType) -> None:
    original = module.vLLMColocateWorkerExtension._get_zmq_handle
    module.vLLMColocateWorkerExtension._get_zmq_handle = lambda self: own_socket(original(self))


def install() -> None:
    """Adapt both ends of veRL's weight transfer when they are imported; only in a run's processes."""
    if os.environ.get(RUN_ID):
        hook = ImportHook()
        hook.after_import(_SENDER, _adapt_sender)
        hook.after_import(_RECEIVER, _adapt_receiver)
