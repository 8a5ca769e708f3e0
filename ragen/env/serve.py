"""Serves one tag's environments over HTTP, to `env_type: remote` of another process or machine.

    python -m ragen.env.serve SimpleSokoban --port 8900

A session is one episode: it holds one environment of the tag's pool (`ragen.env.isolation`), so a call that hangs costs
its own session. JSON only; pictures as PNG in base64. There is no authentication: whoever reaches the port can use it,
so it binds to this machine alone unless told otherwise; across machines use an SSH tunnel, or a proxy that checks who
asks.

The interface (`GET /docs` shows it as served):

    GET    /v1/handshake                     protocol, tag, instruction, actions, tools, reward_range (null: unbounded)
    PUT    /v1/sessions/ID                   {seed, luck, replaces}: start an episode under an id of the client's choice
    POST   /v1/sessions/ID/step              {turn, action}: turn counts from 1; the last one may be repeated
    POST   /v1/sessions/ID/render            {mode}
    POST   /v1/sessions/ID/oracle_action, …/random_action {seed}
    DELETE /v1/sessions/ID

404: no such session, it may have expired. 409: a turn out of order. 500: the environment failed, its session is over.
503: all sessions are in use; `Retry-After` says when to ask again.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import dataclasses
import io
import math
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import numpy as np
from fastapi import FastAPI, HTTPException, Path, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from ragen.env.isolation import EnvClient, EnvError, EnvPool
from ragen.env.registry import EnvSpec, load_env_class, load_specs
from ragen.env.remote.env import PROTOCOL

#: Longest request in bytes. An action of 100,000 characters fits, whatever its script.
MAX_BODY = 1 << 20
#: Seconds that `Retry-After` asks for.
RETRY_AFTER_S = 1

_SESSION_ID = Path(pattern=r"^[0-9A-Za-z_-]{8,64}$")


class Start(BaseModel):
    seed: int = Field(ge=0)
    luck: int | None = Field(default=None, ge=0)
    replaces: str | None = None
    """A session of the same client that is given up for this one."""


class Step(BaseModel):
    turn: int = Field(ge=1)
    action: str


class Render(BaseModel):
    mode: str = "text"


class Draw(BaseModel):
    seed: int = Field(ge=0)


@dataclasses.dataclass
class Session:
    """One episode. `lock` serialises its calls; `answer` is what its last start or step got."""

    stack: contextlib.AsyncExitStack
    seed: int
    lock: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)
    client: EnvClient | None = None
    turn: int = 0
    answer: dict[str, Any] | None = None
    over: bool = False
    used: float = dataclasses.field(default_factory=time.monotonic)


class Sessions:
    """The sessions of one tag, at most `limit` at once."""

    def __init__(self, spec: EnvSpec, limit: int, idle_s: float):
        self.limit, self.idle_s = limit, idle_s
        self._open: dict[str, Session] = {}
        self._pool = EnvPool(
            spec.make, tag=spec.tag, isolate=spec.isolate, workers=limit, timeout_s=spec.step_timeout_s,
            preload=[load_env_class(spec.env_type).__module__],
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self._open)

    async def start(self, session_id: str, start: Start) -> dict[str, Any]:
        session = self._open.get(session_id)
        if session is None:
            if start.replaces is not None:
                await self.end(start.replaces)
            await self._make_room()
            session = self._open[session_id] = Session(contextlib.AsyncExitStack(), start.seed)
        async with self._calling(session_id, session):
            if session.answer is None:  # else it is asked again, since the first answer was lost
                session.client = await session.stack.enter_async_context(self._pool.lease())
                observation, info = await session.client.reset(start.seed, start.luck)
                described = await session.client.describe()
                session.answer = {"observation": observation, "info": _jsonable(info), **dataclasses.asdict(described)}
            if session.turn:
                raise HTTPException(409, f"session {session_id} is at turn {session.turn}; start one with another id")
            return session.answer

    async def step(self, session_id: str, step: Step) -> dict[str, Any]:
        session = self._get(session_id)
        async with self._calling(session_id, session):
            if step.turn == session.turn:
                return session.answer
            if step.turn != session.turn + 1 or session.over:
                ended = " and over" if session.over else ""
                raise HTTPException(409, f"session {session_id} is at turn {session.turn}{ended}, not {step.turn - 1}")
            result = await session.client.step(step.action)
            if not math.isfinite(result.reward):
                raise EnvError(self._pool.tag, session.seed, "step", f"it paid a reward of {result.reward}")
            session.turn, session.over = step.turn, result.terminated or result.truncated
            session.answer = {**result._asdict(), "info": _jsonable(result.info)}
            return session.answer

    async def ask(self, session_id: str, call: str, *args: Any) -> Any:
        session = self._get(session_id)
        async with self._calling(session_id, session):
            return await getattr(session.client, call)(*args)

    async def end(self, session_id: str) -> None:
        """Give the environment back, once a call that runs is over. Nothing happens if there is no such session."""
        session = self._open.get(session_id)
        if session is not None:
            async with session.lock:
                await self._drop(session_id)

    async def expire(self) -> None:
        """End sessions that nobody has used for `idle_s`."""
        for session_id, session in list(self._open.items()):
            if not session.lock.locked() and time.monotonic() - session.used > self.idle_s:
                await self._drop(session_id)

    def close(self) -> None:
        self._pool.close()

    async def _make_room(self) -> None:
        if len(self._open) < self.limit:
            return
        for session_id, session in list(self._open.items()):
            if session.over and not session.lock.locked():
                return await self._drop(session_id)
        raise HTTPException(
            503, f"all {self.limit} sessions are in use (--max-sessions)", headers={"Retry-After": str(RETRY_AFTER_S)}
        )

    async def _drop(self, session_id: str) -> None:
        session = self._open.pop(session_id, None)
        if session is not None:
            await session.stack.aclose()

    def _get(self, session_id: str) -> Session:
        session = self._open.get(session_id)
        if session is None:
            raise HTTPException(
                404, f"there is no session {session_id}; it was unused for {self.idle_s:g} s (--idle-s), gave way when "
                "over, failed, or the server started anew"
            )  # fmt: skip
        return session

    @contextlib.asynccontextmanager
    async def _calling(self, session_id: str, session: Session) -> AsyncIterator[None]:
        """One call of a session at a time. A failed environment ends its session, and no other."""
        async with session.lock:
            if self._open.get(session_id) is not session:
                self._get(session_id)
            session.used = time.monotonic()
            try:
                yield
            except EnvError as error:
                await self._drop(session_id)
                raise HTTPException(500, str(error)) from error
            finally:
                session.used = time.monotonic()


def create_app(spec: EnvSpec, *, max_sessions: int, idle_s: float) -> FastAPI:
    """The server's application. Builds one environment at once, for the handshake.

    Raises what building, resetting or describing the environment raises.
    """
    hello = _hello(spec)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.sessions = sessions = Sessions(spec, max_sessions, idle_s)

        async def sweep() -> None:
            while True:
                await asyncio.sleep(min(1.0, idle_s / 4))
                await sessions.expire()

        sweeper = asyncio.create_task(sweep())
        try:
            yield
        finally:
            sweeper.cancel()
            sessions.close()

    app = FastAPI(title=f"RAGEN environment {spec.tag}", lifespan=lifespan)
    app.middleware("http")(_limit_body)

    @app.get("/v1/handshake")
    async def handshake() -> dict[str, Any]:
        return {**hello, "sessions": len(app.state.sessions), "max_sessions": max_sessions}

    @app.put("/v1/sessions/{session_id}")
    async def start(body: Start, session_id: str = _SESSION_ID) -> dict[str, Any]:
        return await app.state.sessions.start(session_id, body)

    @app.post("/v1/sessions/{session_id}/step")
    async def step(body: Step, session_id: str = _SESSION_ID) -> dict[str, Any]:
        return await app.state.sessions.step(session_id, body)

    @app.post("/v1/sessions/{session_id}/render")
    async def render(body: Render, session_id: str = _SESSION_ID) -> dict[str, Any]:
        shown = await app.state.sessions.ask(session_id, "render", body.mode)
        return {"png": _png(shown)} if isinstance(shown, np.ndarray) else {"text": str(shown)}

    @app.post("/v1/sessions/{session_id}/oracle_action")
    async def oracle_action(session_id: str = _SESSION_ID) -> dict[str, Any]:
        return {"action": await app.state.sessions.ask(session_id, "oracle_action")}

    @app.post("/v1/sessions/{session_id}/random_action")
    async def random_action(body: Draw, session_id: str = _SESSION_ID) -> dict[str, Any]:
        return {"action": await app.state.sessions.ask(session_id, "random_action", body.seed)}

    @app.delete("/v1/sessions/{session_id}")
    async def end(session_id: str = _SESSION_ID) -> dict[str, Any]:
        await app.state.sessions.end(session_id)
        return {}

    return app


def _hello(spec: EnvSpec) -> dict[str, Any]:
    env = spec.make()
    try:
        env.reset(0)
        lookup, tools = env.action_lookup(), env.tools()
        return {
            "protocol": PROTOCOL,
            "tag": spec.tag,
            "instruction": env.instruction(),
            "actions": None if lookup is None else [str(name) for name in lookup],
            "tools": None if tools is None else list(tools),
            "reward_range": [float(bound) if math.isfinite(bound) else None for bound in env.reward_range],
            "render_mode": env.render_mode,
        }
    finally:
        env.close()


async def _limit_body(request: Request, call_next: Any) -> Any:
    """Refuse what is longer than `MAX_BODY`, or does not say how long it is, before it is read."""
    length = request.headers.get("content-length", "")
    if request.method in ("PUT", "POST") and not (length.isdigit() and int(length) <= MAX_BODY):
        return JSONResponse({"detail": f"a request needs a Content-Length of at most {MAX_BODY}"}, 413)
    return await call_next(request)


def _jsonable(value: Any) -> Any:
    """What of an `info` JSON can hold; anything else as text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_jsonable(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return _jsonable(value.tolist())
    return str(value)


def _png(picture: np.ndarray) -> str:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, format="PNG")
    return base64.b64encode(stream.getvalue()).decode("ascii")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m ragen.env.serve",
        description="Serve one tag's environments over HTTP, to tags of env_type remote.",
        epilog="There is no authentication, and whoever reaches the port can use it. Bind to other addresses than the "
        "default only in a network that you trust; else use an SSH tunnel.",
    )
    made.add_argument("tag", metavar="TAG", help="a tag of the config's custom_envs, or module:Class")
    made.add_argument("--host", default="127.0.0.1", help="address to bind to (default: 127.0.0.1, this machine only)")
    made.add_argument("--port", type=int, default=8900, help="port (default: 8900; 0: any free one, which is printed)")
    made.add_argument("--max-sessions", type=int, default=64, metavar="N", help="most episodes at once (default: 64)")
    made.add_argument(
        "--idle-s", type=float, default=300.0, metavar="S", help="seconds after which an unused session ends (300)"
    )
    made.add_argument("--config-name", default="base", metavar="NAME", help="config that defines TAG (default: base)")
    made.add_argument("--config-dir", metavar="DIR", help="a folder of configs of your own")
    return made


def find_spec(tag: str, config_name: str = "base", config_dir: str | None = None) -> EnvSpec:
    """The entry of a tag in a config, or of a class. Raises ValueError (a config fault, an unknown tag)."""
    if ":" in tag:
        return load_specs({tag: {"env_type": tag}})[tag]
    from ragen.config.compose import load
    from ragen.env.errors import nearest

    entries = load(config_name, (), config_dir).custom_envs
    if tag not in entries:
        raise ValueError(f"no tag {tag!r} in custom_envs of config {config_name!r}: {nearest(tag, entries)}")
    return load_specs({tag: entries[tag]})[tag]


def main(arguments: Sequence[str] | None = None) -> int:
    import uvicorn

    made = parser()
    options = made.parse_args(arguments)
    if options.max_sessions < 1 or not options.idle_s > 0:
        made.error("--max-sessions must be at least 1, and --idle-s above 0")
    try:
        app = create_app(
            find_spec(options.tag, options.config_name, options.config_dir),
            max_sessions=options.max_sessions,
            idle_s=options.idle_s,
        )
    except (ValueError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    uvicorn.run(app, host=options.host, port=options.port, access_log=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
