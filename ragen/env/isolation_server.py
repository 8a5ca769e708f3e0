"""What runs where the environment lives: `EnvHost` answers calls, `serve` is the process that forks workers.

The host's side is `isolation_workers.py`. This file imports no asyncio and no torch: all of it is in every worker.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import os
import pickle
import selectors
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ragen.env.base import Env
from ragen.env.tools import check_tools

#: (True, result), or (False, what was raised, as text).
Answer = tuple[bool, Any]

#: A message between host and worker: the number of bytes, then a pickle.
LENGTH = struct.Struct("<Q")
#: A message from server to host: a worker's wait status.
STATUS = struct.Struct("<i")
#: A worker's first word to the host: its process id.
PID = struct.Struct("<q")
#: Seconds that the server waits for a killed worker to go. SIGKILL takes milliseconds unless a disk hangs.
REAP_S = 0.5
#: Longest traceback, in characters, that an answer carries.
TRACEBACK_CHARS = 1500


def frame(message: Any) -> bytes:
    """`message` as it goes through a socket."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(body)) + body


class EnvHost:
    """Holds one environment and answers calls by name. Never raises: what is raised becomes the answer."""

    def __init__(self, factory: Callable[[], Env]):
        self._factory = factory
        self._env: Env | None = None

    def answer(self, call: str, args: tuple[Any, ...]) -> Answer:
        try:
            return True, getattr(self, f"_{call}")(*args)
        except KeyboardInterrupt:
            raise  # inline, this is the user's Ctrl-C; workers ignore SIGINT
        except BaseException as error:  # SystemExit too: an environment that calls sys.exit() ends its episode only
            self._close()
            return False, describe_error(error)

    def _open(self) -> None:
        self._close()
        self._env = self._factory()

    def _close(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            with contextlib.suppress(Exception):  # it is thrown away in any case
                env.close()

    def _describe(self) -> tuple[str, tuple[str, ...] | None, tuple[dict[str, Any], ...] | None]:
        lookup = self._env.action_lookup()
        names = None if lookup is None else tuple(str(name) for name in lookup)
        return str(self._env.instruction()), names, check_tools(self._env.tools())

    def _reset(self, seed: int, luck: int | None) -> tuple[Any, dict[str, Any]]:
        observation, info = self._env.reset(seed, luck=luck)
        return _plain(observation), _plain(info)

    def _step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        lookup = self._env.action_lookup()
        value = action if lookup is None else look_up(action, lookup)
        observation, reward, terminated, truncated, info = self._env.step(value)
        return _plain(observation), float(reward), bool(terminated), bool(truncated), _plain(info)

    def _render(self, mode: str) -> Any:
        return _plain(self._env.render(mode))

    def _oracle_action(self) -> str | None:
        return _plain(self._env.oracle_action())

    def _random_action(self, seed: int) -> str | None:
        return _plain(self._env.random_action(np.random.default_rng(seed)))


def look_up(action: str, lookup: Mapping[str, Any]) -> Any:
    """The value of the action of that name, whatever its case. Raises ValueError where there is none."""
    if action in lookup:
        return lookup[action]
    for name, value in lookup.items():
        if name.casefold() == action.casefold():
            return value
    raise ValueError(f"no action is called {action!r}; known: {', '.join(lookup)}")


def _plain(value: Any) -> Any:
    """NumPy scalars as Python's, inside dicts, lists and tuples too; anything else as it is."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) is dict:
        return {_plain(key): _plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(item) for item in value)
    return value


def describe_error(error: BaseException) -> str:
    """The error, then the last frames of its traceback, without our own."""
    frames = "".join(traceback.format_exception(type(error), error, error.__traceback__.tb_next, limit=-4))
    name = "".join(traceback.format_exception_only(type(error), error)).strip()[: TRACEBACK_CHARS // 3]
    return f"raised {name}\n{frames[-TRACEBACK_CHARS:].rstrip()}"


def serve(control_fd: int, host_pid: int, preload: Sequence[str], factory: bytes) -> None:
    """Main of the server: fork a worker for every byte on `control_fd` (each carries two sockets) until the host closes
    it or dies, then kill what is left.
    """
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout = sys.stderr  # written line by line, so that prints survive a kill
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # whatever the host's threads block
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    for name in preload:
        with contextlib.suppress(BaseException):  # the worker meets it again, and can report it
            importlib.import_module(name)
    with contextlib.suppress(BaseException):
        pickle.loads(factory)
    gc.collect()
    gc.freeze()  # keeps the collector from touching, hence copying, what workers share
    _Forker(socket.socket(fileno=control_fd), host_pid, factory).run()


class _Forker:
    """The server's loop, single-threaded, since it forks."""

    def __init__(self, control: socket.socket, host_pid: int, factory: bytes):
        self._control, self._host_pid, self._factory = control, host_pid, factory
        self._children: dict[int, socket.socket] = {}  # pid → life
        self._die_with_parent = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
        self._child_ended, wakeup = socket.socketpair()
        for end in (self._child_ended, wakeup):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup.fileno())
        self._inherited = [control, self._child_ended, wakeup]
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        self._selector.register(self._child_ended, selectors.EVENT_READ)

    def run(self) -> None:
        # A process that the host forked may hold the control socket open after the host's death: hence the second look.
        while os.getppid() == self._host_pid:
            ready = [key for key, _ in self._selector.select(timeout=1.0)]
            for key in ready:
                if key.data is not None and key.data in self._children:
                    self._kill(key.data)  # before any fork, so that there are never more than the host counts
            for key in ready:
                if key.fileobj is self._child_ended:
                    with contextlib.suppress(BlockingIOError):
                        self._child_ended.recv(1 << 16)
                    for pid in list(self._children):
                        self._reap(pid)
            if any(key.fileobj is self._control for key in ready):
                message, fds, _, _ = socket.recv_fds(self._control, 1, 2)
                if not message:
                    break
                self._fork(*(_adopt(fd) for fd in fds))
        for pid in self._children:
            _kill_group(pid)
        for pid in list(self._children):
            self._kill(pid)

    def _fork(self, data: socket.socket, life: socket.socket) -> None:
        server_pid = os.getpid()
        pid = os.fork()
        if pid:
            with contextlib.suppress(OSError):
                os.setpgid(pid, pid)  # on both sides, so that it is true whoever runs first
            data.close()
            self._children[pid] = life
            self._selector.register(life, selectors.EVENT_READ, data=pid)
            return
        try:
            os.setpgid(0, 0)
            if self._die_with_parent is not None:
                self._die_with_parent(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
            if os.getppid() == server_pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                self._selector.close()
                for end in (*self._inherited, *self._children.values(), life):
                    end.close()
                gc.enable()
                _work(data, self._factory)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        finally:
            os._exit(0)

    def _kill(self, pid: int) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(self._children[pid])
        _kill_group(pid)
        deadline = time.monotonic() + REAP_S
        while not self._reap(pid) and time.monotonic() < deadline:
            time.sleep(0.0005)

    def _reap(self, pid: int) -> bool:
        """Collect a dead worker, kill what it started, and tell the host. False while it lives."""
        dead, status = os.waitpid(pid, os.WNOHANG)
        if not dead:
            return False
        _kill_group(pid)
        life = self._children.pop(pid)
        with contextlib.suppress(OSError):
            life.send(STATUS.pack(status))
        with contextlib.suppress(KeyError):
            self._selector.unregister(life)
        life.close()
        return True


def _adopt(fd: int) -> socket.socket:
    os.set_inheritable(fd, False)  # programs that an environment starts must not hold it open
    return socket.socket(fileno=fd)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _work(data: socket.socket, factory: bytes) -> None:
    """A worker's life: answer calls until the host hangs up."""
    host = EnvHost(lambda: _load(factory)())
    stream = data.makefile("rb")
    with contextlib.suppress(ConnectionError):
        data.sendall(PID.pack(os.getpid()))
        while header := stream.read(LENGTH.size):
            call, args = pickle.loads(stream.read(LENGTH.unpack(header)[0]))
            answer = host.answer(call, args)
            try:
                reply = frame(answer)
            except Exception as error:
                host.answer("close", ())
                reply = frame((False, f"returned from {call} what cannot be pickled; {describe_error(error)}"))
            data.sendall(reply)
    host.answer("close", ())


def _load(factory: bytes) -> Callable[[], Env]:
    try:
        return pickle.loads(factory)
    except Exception as error:
        raise RuntimeError(
            "the environment's factory cannot be loaded in a process of its own; define it in a module on the Python "
            "path (not in the script that is run), or set `isolate` to thread or inline"
        ) from error
