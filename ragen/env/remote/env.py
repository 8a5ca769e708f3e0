"""An environment that runs elsewhere, behind `python -m ragen.env.serve`: an ordinary `Env` that talks HTTP.

A session is one episode. Calls are tried again, with growing random pauses, while the server is full or cannot be
reached; that is safe, since the client names its sessions and numbers its steps, and the server answers a repeated one
from memory. When it keeps failing, the episode fails with an error that names the url. Needs the extra `serve`.
"""

from __future__ import annotations

import base64
import contextlib
import io
import random
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np

from ragen.env.base import Env
from ragen.env.remote.config import RemoteConfig

#: Of the HTTP interface. Server and client must agree.
PROTOCOL = 1
#: Longest pause between two tries, in seconds.
_LONGEST_PAUSE_S = 5.0


class RemoteEnvError(RuntimeError):
    """The server cannot be reached, stays full, has lost the session, or its environment failed. Names the url."""


class _Again(Exception):
    """This try failed in a way that a later one may not. `pause_s`: what the server asks for."""

    def __init__(self, cause: str, pause_s: float = 0.0):
        super().__init__(cause)
        self.pause_s = pause_s


class RemoteEnv(Env):
    config_class = RemoteConfig
    isolate = "thread"  # it only waits, and every wait has its limit

    def __init__(self, config: RemoteConfig):
        super().__init__(config)
        self._client: Any = None
        self._session: str | None = None
        self._turn = 0
        self._over = True
        self._text = ""
        hello = self._call("GET", "/v1/handshake")
        if hello.get("protocol") != PROTOCOL:
            raise self._error(f"it speaks protocol {hello.get('protocol')}, this client {PROTOCOL}; use one release")
        self.tag: str = hello["tag"]
        self.render_mode = hello["render_mode"]
        low, high = hello["reward_range"]
        self.reward_range = (-np.inf if low is None else min(low, 0.0), np.inf if high is None else max(high, 0.0))
        self._describe(hello)

    def reset(self, seed: int, *, luck: int | None = None) -> tuple[str, dict[str, Any]]:
        """Open a session for the episode; the one before is given up. Raises RemoteEnvError."""
        before, self._session = self._session, uuid.uuid4().hex
        self._over = True
        body = {"seed": int(seed), "luck": None if luck is None else int(luck), "replaces": before}
        answer = self._call("PUT", f"/v1/sessions/{self._session}", body)
        self._describe(answer)
        self._turn, self._text, self._over = 0, answer["observation"], False
        return self._text, answer["info"]

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one step there. What is no action is not sent. Raises RemoteEnvError."""
        if self._over:
            raise RuntimeError(f"the episode at {self.config.url} is over; call reset first")
        if not isinstance(action, str) or (self._names is not None and action not in self._names):
            info = {"action_is_valid": False, "action_is_effective": False, "success": False}
            return self._text, 0.0, False, False, info
        # Lone surrogates cannot be sent.
        action = action.encode("utf-8", "replace").decode("utf-8")
        answer = self._call("POST", self._at("step"), {"turn": self._turn + 1, "action": action})
        self._turn += 1
        self._text, self._over = answer["observation"], answer["terminated"] or answer["truncated"]
        return self._text, float(answer["reward"]), answer["terminated"], answer["truncated"], answer["info"]

    def render(self, mode: str = "text") -> Any:
        if mode == "text" and self.render_mode == "text":
            return self._text
        answer = self._call("POST", self._at("render"), {"mode": mode})
        if "png" not in answer:
            return answer["text"]
        from PIL import Image

        return np.asarray(Image.open(io.BytesIO(base64.b64decode(answer["png"]))).convert("RGB"))

    def close(self) -> None:
        session, self._session, self._over = self._session, None, True
        if session is not None:
            with contextlib.suppress(Exception):  # the server's idle limit ends it in any case
                self._http().delete(f"/v1/sessions/{session}", timeout=2.0)
        if self._client is not None:
            self._client.close()
            self._client = None

    def instruction(self) -> str:
        return self._instruction

    def action_lookup(self) -> Mapping[str, str] | None:
        return self._names

    def tools(self) -> list[dict[str, Any]] | None:
        return self._tools

    def oracle_action(self) -> str | None:
        return None if self._over else self._call("POST", self._at("oracle_action"), {})["action"]

    def random_action(self, rng: np.random.Generator) -> str | None:
        if self._over:
            return super().random_action(rng)
        return self._call("POST", self._at("random_action"), {"seed": int(rng.integers(2**31))})["action"]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}  # a connection stays where it is

    # --- talking ----------------------------------------------------------------------------------------------------

    def _describe(self, answer: Mapping[str, Any]) -> None:
        self._instruction = answer["instruction"]
        self._tools = answer["tools"]
        self._names = None if answer["actions"] is None else {name: name for name in answer["actions"]}

    def _at(self, call: str) -> str:
        if self._session is None:
            raise RuntimeError(f"no episode at {self.config.url}; call reset first")
        return f"/v1/sessions/{self._session}/{call}"

    def _http(self) -> Any:
        if self._client is None:
            import httpx

            self._client = httpx.Client(base_url=self.config.url, timeout=self.config.timeout_s)
        return self._client

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        import tenacity

        tries = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_Again),
            stop=tenacity.stop_after_delay(self.config.retry_s),
            wait=_pause,
            reraise=True,
        )
        try:
            return tries(self._try, method, path, body)
        except _Again as last:
            raise self._error(f"{last}, for {self.config.retry_s:g} s (retry_s)") from last

    def _try(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        import httpx

        try:
            reply = self._http().request(method, path, json=body)
        except httpx.ReadTimeout as error:
            raise self._error(f"no answer within {self.config.timeout_s:g} s (timeout_s)") from error
        except httpx.TransportError as error:
            raise _Again(f"it cannot be reached ({type(error).__name__}: {error})") from error
        if reply.status_code == 503:
            pause = reply.headers.get("retry-after", "0")
            raise _Again(f"it is full: {_cause(reply)}", float(pause) if pause.isdigit() else 0.0)
        if reply.status_code != 200:
            raise self._error(_cause(reply))
        try:
            return reply.json()
        except ValueError as error:
            raise self._error(f"its answer is no JSON; is it `python -m ragen.env.serve`? {error}") from error

    def _error(self, cause: str) -> RemoteEnvError:
        return RemoteEnvError(f"the environment served at {self.config.url}: {cause}")


def _pause(state: Any) -> float:
    """Seconds before the next try: a random share of a limit that doubles, added to what the server asks for."""
    limit = min(_LONGEST_PAUSE_S, 0.1 * 2**state.attempt_number)
    # Not for the environment's draws: many clients that were refused together must not come back together.
    return min(state.outcome.exception().pause_s, _LONGEST_PAUSE_S) + random.SystemRandom().uniform(0, limit)


def _cause(reply: Any) -> str:
    try:
        return str(reply.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return f"status {reply.status_code}: {reply.text[:200]}"
