"""The three kinds of worker that an `EnvPool` owns, seen from the host: inline, thread and process.

How process workers are started, killed and told apart is in the text of `isolation.py`; their own side is
`isolation_server.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import queue
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ragen.env.base import Env
from ragen.env.isolation_server import LENGTH, PID, REAP_S, STATUS, Answer, EnvHost, describe_error, frame

_CHUNK = 1 << 16  # bytes read at once
_RETRY_S = 0.01
_EXIT_S = 2.0  # how long to wait for a dead worker's exit status
_STARVED = 5.0  # a call that keeps waiting for a processor is over its limit after so many limits all the same
_BOOT = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from ragen.env.isolation_server import serve; serve(*pickle.load(sys.stdin.buffer))"
)


class Hung(Exception):
    """The call ran over its limit."""


class Died(Exception):
    """The worker ended during the call; the text says how."""


class Worker:
    """One environment's place. `ready`: it holds a built environment whose last call succeeded."""

    ready = False
    alive = True
    lost = False  # never usable again
    busy = False  # it runs a call at this moment, though its caller may have gone
    deadline = 0.0  # when that call will be over its limit, on time.monotonic()

    async def call(self, call: str, args: tuple[Any, ...], limit_s: float) -> Answer:
        raise NotImplementedError

    def lose(self) -> None:
        """Give a hung worker up."""

    def start_closing(self) -> None:
        """Ask it to close its environment and end; does not wait."""

    def finish_closing(self, deadline: float) -> None:
        """Wait for that until `deadline`."""


class InlineWorker(Worker):
    def __init__(self, host: EnvHost):
        self._host = host

    async def call(self, call: str, args: tuple[Any, ...], limit_s: float) -> Answer:
        return self._host.answer(call, args)

    def start_closing(self) -> None:
        self.alive = False
        self._host.answer("close", ())


class ThreadWorker(Worker):
    def __init__(self, host: EnvHost, tag: str, on_late: Callable[[], None]):
        self._host = host
        self._on_late = on_late  # called on the loop when a call ends whose caller has gone
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"env-{tag}", daemon=True)
        self._thread.start()

    async def call(self, call: str, args: tuple[Any, ...], limit_s: float) -> Answer:
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        self.busy, self.deadline = True, time.monotonic() + limit_s
        self._inbox.put((loop, answer, call, args))

        def expire() -> None:
            # Not busy: the answer is under way, and the loop was late.
            if self.busy and not answer.done():
                answer.set_exception(Hung())

        timer = loop.call_later(limit_s, expire)
        try:
            return await answer
        except Hung:
            self.lose()
            raise
        finally:
            timer.cancel()

    def _run(self) -> None:
        while (job := self._inbox.get()) is not None:
            loop, future, call, args = job
            answer = self._host.answer(call, args)
            self.busy = False
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(self._deliver, future, answer)
            del job, loop, future, answer
        self._host.answer("close", ())

    def _deliver(self, future: asyncio.Future[Answer], answer: Answer) -> None:
        if future.cancelled():
            self._on_late()
        elif not future.done():
            future.set_result(answer)

    def lose(self) -> None:
        self.alive, self.lost = False, True
        self._inbox.put(None)  # should the call ever return, the thread ends

    def start_closing(self) -> None:
        self.alive = False
        self._inbox.put(None)

    def finish_closing(self, deadline: float) -> None:
        if not self.lost and not self.busy:
            self._thread.join(max(0.0, deadline - time.monotonic()))


class ProcessWorker(Worker):
    """A worker process, started by `open` whenever there is none."""

    def __init__(self, server: WorkerServer):
        self._server = server
        # Calls and answers; the worker holds the other end.
        self._data: socket.socket | None = None
        # Closing it has the worker killed; it brings the exit status. The server holds the other end.
        self._life: socket.socket | None = None
        # Where Linux tells how long the worker has waited for a processor; None until it has answered once, and
        # elsewhere.
        self._schedule: int | None = None

    @property
    def alive(self) -> bool:
        return self._data is not None

    async def call(self, call: str, args: tuple[Any, ...], limit_s: float) -> Answer:
        loop = asyncio.get_running_loop()
        expired = False
        began, starved_before = loop.time(), self._starved_s()

        def expire() -> None:
            # A busy machine is not the environment's fault: time in which its process could have run does not count.
            nonlocal timer
            passed = loop.time() - began
            left = limit_s - passed + self._starved_s() - starved_before
            if left > 0.01 * limit_s and passed < _STARVED * limit_s:
                timer = loop.call_later(min(left, _STARVED * limit_s - passed), expire)
            else:  # an answer may have arrived while the loop was held up elsewhere: it goes first
                timer = loop.call_soon(give_up)

        def give_up() -> None:
            nonlocal expired
            expired = True
            self._hang_up()

        timer: asyncio.Handle = loop.call_later(limit_s, expire)
        healthy, self.busy = False, True
        try:
            while self._data is None:
                self._data, self._life = self._server.try_fork() or (None, None)
                if self._data is None:  # it has too many requests to take in
                    await asyncio.sleep(_RETRY_S)
                if expired:
                    raise Hung
            await loop.sock_sendall(self._data, frame((call, args)))
            if self._schedule is None:
                self._schedule = _open_schedule(await self._first_word(loop))
            answer = await self._receive(loop)
            if expired:
                raise Hung  # it came all the same, but the connection is gone
            healthy = True
        except OSError as error:  # end of file, or a broken pipe
            if expired:
                raise Hung from None
            raise Died(await self._exit_cause(loop, error)) from None
        finally:
            timer.cancel()
            self.busy = False
            if not healthy:
                self._kill()
        try:
            return pickle.loads(answer)
        except Exception as error:
            return False, f"the answer of {call} cannot be read here; return plain values. {describe_error(error)}"

    def _starved_s(self) -> float:
        """Seconds that the worker's process has been ready to run without a processor, so far."""
        if self._schedule is None or self._schedule < 0:
            return 0.0
        try:
            return int(os.pread(self._schedule, 64, 0).split()[1]) / 1e9
        except (OSError, IndexError, ValueError):  # it has ended
            return 0.0

    async def _first_word(self, loop: asyncio.AbstractEventLoop) -> int:
        """The worker's process id, which it sends before its first answer."""
        word = b""
        while len(word) < PID.size:
            part = await loop.sock_recv(self._data, PID.size - len(word))
            if not part:
                raise ConnectionResetError
            word += part
        return PID.unpack(word)[0]

    async def _receive(self, loop: asyncio.AbstractEventLoop) -> memoryview:
        buffer, wanted = bytearray(), LENGTH.size
        while len(buffer) < wanted:
            part = await loop.sock_recv(self._data, max(_CHUNK, wanted - len(buffer)))
            if not part:
                raise ConnectionResetError
            buffer += part
            if wanted == LENGTH.size and len(buffer) >= wanted:
                wanted += LENGTH.unpack_from(buffer)[0]
        return memoryview(buffer)[LENGTH.size :]

    async def _exit_cause(self, loop: asyncio.AbstractEventLoop, error: OSError) -> str:
        if self._life is None:
            return f"its process cannot be started: {error}"
        try:
            status = await asyncio.wait_for(loop.sock_recv(self._life, STATUS.size), _EXIT_S)
        except (OSError, asyncio.TimeoutError):
            status = b""
        if not self._server.is_open:
            return "the pool was closed during the call"
        if len(status) == STATUS.size:
            return f"its process {_how_it_ended(os.waitstatus_to_exitcode(STATUS.unpack(status)[0]))}"
        return self._server.exit_cause()

    def _hang_up(self) -> None:
        """Make the running call see an end-of-file. (Closing a socket that a loop still watches would wake nobody.)"""
        if self._data is not None:
            with contextlib.suppress(OSError):
                self._data.shutdown(socket.SHUT_RDWR)

    def _kill(self) -> None:
        for end in (self._life, self._data):
            if end is not None:
                end.close()
        if self._schedule is not None and self._schedule >= 0:
            os.close(self._schedule)
        self._data = self._life = self._schedule = None

    def start_closing(self) -> None:
        self.ready = False
        self._hang_up()  # idle, the worker closes its environment and ends; busy, it is killed with the server

    def finish_closing(self, deadline: float) -> None:
        if self._life is not None and not self.busy:
            _wait_readable(self._life, max(0.0, deadline - time.monotonic()))
            self._kill()


class WorkerServer:
    """The host's handle on the process that forks workers. Started when the first worker is wanted, or when it died."""

    def __init__(self, tag: str, factory: Callable[[], Env], preload: Sequence[str]):
        if not hasattr(os, "fork"):
            raise ValueError(f"environment {tag!r}: `isolate: process` needs Linux or macOS; use thread or inline")
        try:
            self._factory = pickle.dumps(factory)
        except Exception as error:
            raise ValueError(
                f"environment {tag!r}: its factory {factory!r} cannot be sent to a process ({error}); use a function "
                "of a module or a functools.partial of one, or set `isolate` to thread or inline"
            ) from error
        self._preload = tuple(preload)
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def try_fork(self) -> tuple[socket.socket, socket.socket] | None:
        """Ask for one worker: its (data, life) sockets, or None if the server cannot take the request now."""
        if not self._is_running():
            self.close()
            self._start()
        data, life = socket.socketpair(), socket.socketpair()
        try:
            socket.send_fds(self._control, [b"f"], [data[1].fileno(), life[1].fileno()])
        except OSError:  # its inbox is full, too many descriptors are under way, or it died just now
            data[0].close()
            life[0].close()
            return None
        finally:
            data[1].close()
            life[1].close()
        data[0].setblocking(False)
        life[0].setblocking(False)
        return data[0], life[0]

    @property
    def is_open(self) -> bool:
        return self._process is not None

    def exit_cause(self) -> str:
        """Why a worker ended of which no exit status came."""
        try:
            code = self._process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            return "its process closed its connection; environments must leave file descriptors of others alone"
        return (
            f"its process ended with the server of this pool's processes, which {_how_it_ended(code)}; if that "
            "repeats, importing the environment's module ends the interpreter"
        )

    def close(self) -> None:
        """End the server and all its workers."""
        if self._process is None:
            return
        self._control.close()
        try:
            self._process.wait(timeout=2 * REAP_S + 1)
        except subprocess.TimeoutExpired:  # an import hangs
            self._process.kill()
            self._process.wait()
        self._process = None

    def _is_running(self) -> bool:
        if self._process is None:
            return False
        try:
            self._control.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True  # it never sends anything
        except OSError:
            pass
        return False

    def _start(self) -> None:
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
        # One thread for numerical libraries: there are many workers, and forking is sound only without other threads.
        threads = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
        with theirs, tempfile.TemporaryFile() as job:
            for part in (sys.path, (theirs.fileno(), os.getpid(), self._preload, self._factory)):
                pickle.dump(part, job)
            job.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT],
                stdin=job,
                stdout=2,
                pass_fds=[theirs.fileno()],
                env={**threads, **os.environ},
                start_new_session=True,
            )


def _open_schedule(pid: int) -> int:
    """A descriptor of Linux's figures on a process: nanoseconds run, nanoseconds waited, slices. -1: there are none."""
    try:
        return os.open(f"/proc/{pid}/schedstat", os.O_RDONLY)
    except OSError:
        return -1


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}" + (" (when memory runs out, the kernel does that)" if name == "SIGKILL" else "")


def _wait_readable(end: socket.socket, limit_s: float) -> bool:
    poll = select.poll()  # unlike select.select, it takes descriptors above 1023
    poll.register(end, select.POLLIN)
    return bool(poll.poll(limit_s * 1000))
