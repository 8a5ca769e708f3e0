"""Served environments: a server and its clients in one process, over a real port."""

import base64
import contextlib
import pickle
import socket
import threading
import time

import httpx
import numpy as np
import pytest
import uvicorn

from ragen.env import load_specs, make_env
from ragen.env.remote.env import RemoteEnvError
from ragen.env.serve import MAX_BODY, create_app, find_spec, main, parser


@contextlib.contextmanager
def serving(spec, max_sessions=8, idle_s=60.0):
    """A server of `spec` on a free port, as its url."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        app = create_app(spec, max_sessions=max_sessions, idle_s=idle_s)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        deadline = time.monotonic() + 60
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        try:
            yield url
        finally:
            server.should_exit = True
            thread.join(20)


def remote(url, **config):
    return make_env("remote", {"url": url, "retry_s": 0.5, "timeout_s": 20.0, **config})


def spec_of(tag="Served", **entry):
    return load_specs({tag: entry})[tag]


SOKOBAN = {"env_type": "sokoban", "env_config": {"dim_x": 5, "dim_y": 5, "num_boxes": 1}}
LAKE = {"env_type": "frozen_lake"}


def test_a_remote_episode_is_the_local_one():
    spec = spec_of(**LAKE)
    with serving(spec) as url:
        near, far = spec.make(), remote(url)
        assert (far.tag, far.reward_range, far.render_mode) == ("Served", (0.0, 1.0), "text")
        for seed in range(3):
            assert far.reset(seed, luck=5) == near.reset(seed, luck=5)
            assert (far.instruction(), list(far.action_lookup())) == (near.instruction(), list(near.action_lookup()))
            over = False
            while not over:
                name = near.oracle_action()
                assert far.oracle_action() == name
                assert far.random_action(np.random.default_rng(1)) in near.action_lookup()
                result = near.step(near.action_lookup()[name])
                assert far.step(name) == result
                assert far.render() == near.render()
                assert (far.render("rgb_array") == near.render("rgb_array")).all()
                over = result[2] or result[3]
            with pytest.raises(RuntimeError, match="call reset first"):
                far.step("Left")
        far.close()
        far.close()


def test_members_start_alike_with_their_own_luck():
    with serving(spec_of(**LAKE)) as url:
        seen = set()
        for member in range(8):
            env = remote(url)
            start = env.reset(10, luck=member)[0]
            path = [start] + [env.step("Right")[0]]
            seen.add(tuple(path))
            env.close()
        assert len({path[0] for path in seen}) == 1 and len(seen) > 1


def test_actions_that_do_not_exist_are_invalid_and_not_sent():
    with serving(spec_of(**SOKOBAN)) as url:
        env = remote(url)
        start, _ = env.reset(1)
        for action in ("", "x" * 100_000, "<|im_end|>", "\udc80", "Up; import os", None, 99):
            observation, reward, terminated, truncated, info = env.step(action)
            assert (observation, reward, terminated, truncated) == (start, 0.0, False, False)
            assert info == {"action_is_valid": False, "action_is_effective": False, "success": False}
        assert env._turn == 0
        env.close()


def test_pictures_travel():
    spec = spec_of(**{**SOKOBAN, "env_config": {**SOKOBAN["env_config"], "render_mode": "rgb_array"}})
    with serving(spec) as url:
        env, near = remote(url), spec.make()
        assert env.render_mode == "rgb_array" and env.reset(3)[0] == near.reset(3)[0] == "<image>"
        assert (env.render("rgb_array") == near.render("rgb_array")).all()
        assert env.render("text") == near.render("text")
        answer = httpx.post(f"{url}/v1/sessions/{env._session}/render", json={"mode": "rgb_array"}).json()
        assert base64.b64decode(answer["png"]).startswith(b"\x89PNG")
        env.close()


def test_a_repeated_step_is_taken_once_and_a_copy_goes_on():
    with serving(spec_of(**LAKE)) as url:
        env = remote(url)
        env.reset(2, luck=1)
        copy = pickle.loads(pickle.dumps(env))
        assert env.step("Down") == copy.step("Down")
        at = f"{url}/v1/sessions/{env._session}"
        for turn in (0, 3):
            assert httpx.post(f"{at}/step", json={"turn": turn, "action": "Down"}).status_code in (409, 422)
        assert httpx.put(at, json={"seed": 2, "luck": 1}).status_code == 409
        env.close()


@pytest.mark.wide
def test_a_full_server_is_waited_for_and_then_named():
    with serving(spec_of(**SOKOBAN), max_sessions=1) as url:
        first, second = remote(url), remote(url)
        first.reset(1)
        refused = httpx.put(f"{url}/v1/sessions/{'a' * 32}", json={"seed": 1})
        assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
        with pytest.raises(RemoteEnvError, match=f"{url}: it is full: all 1 sessions are in use.*0.5 s"):
            second.reset(1)
        waiting = remote(url, retry_s=20.0)
        threading.Timer(0.3, first.close).start()
        waiting.reset(1)
        assert waiting.step("Up")[4]["action_is_valid"]
        waiting.close()


def test_finished_episodes_make_room_and_a_new_one_replaces_the_last():
    with serving(spec_of(env_type="bandit"), max_sessions=1) as url:
        first, second = remote(url), remote(url)
        first.reset(1)
        first.reset(2)
        assert first.step(next(iter(first.action_lookup())))[2]
        second.reset(1)  # the finished episode of `first` gave way
        second.close()


def test_an_unused_session_expires():
    with serving(spec_of(**SOKOBAN), max_sessions=1, idle_s=0.3) as url:
        env = remote(url)
        env.reset(1)
        deadline = time.monotonic() + 10
        while httpx.get(f"{url}/v1/handshake").json()["sessions"] and time.monotonic() < deadline:
            time.sleep(0.05)
        with pytest.raises(RemoteEnvError, match=f"{url}: there is no session .*unused for 0.3 s"):
            env.step("Up")
        env.reset(1)  # and there is room for the next
        env.close()


HANGING = """
import time
from dataclasses import dataclass
from ragen.env.base import Env

@dataclass
class Config:
    pass

class Hanging(Env):
    config_class = Config
    def reset(self, seed, *, luck=None):
        return "start", {"odd": {1, 2}, "bad": float("nan")}
    def step(self, action):
        if action == "hang":
            time.sleep(3600)
        if action == "raise":
            raise RuntimeError("the board broke")
        info = {"action_is_valid": True, "action_is_effective": True, "success": False}
        return "echo " + action, float("nan") if action == "nan" else 0.0, False, False, info
    def render(self, mode="text"):
        return "drawn"
    def instruction(self):
        return "Say anything."
"""


@pytest.mark.wide
def test_a_failing_environment_costs_its_own_session(tmp_path, monkeypatch):
    (tmp_path / "hanging_env.py").write_text(HANGING, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = spec_of(env_type="hanging_env:Hanging", step_timeout_s=1.0)
    assert spec.isolate == "process"
    with serving(spec, max_sessions=2) as url:
        env, other = remote(url), remote(url)
        assert env.action_lookup() is None and env.reward_range == (-np.inf, np.inf)
        other.reset(2)
        assert env.reset(1)[1] == {"odd": [1, 2], "bad": "nan"}
        with pytest.raises(RemoteEnvError, match=f"{url}: environment 'Served', seed 1, step: no answer within 1 s"):
            env.step("hang")
        absurd = "\u2603\x00</answer><|im_end|>" * 5_000
        assert other.step(absurd)[0] == "echo " + absurd
        assert other.step("\udc80")[0] == "echo ?"
        env.reset(3)
        with pytest.raises(RemoteEnvError, match="seed 3, step: raised RuntimeError: the board broke"):
            env.step("raise")
        env.reset(4)
        with pytest.raises(RemoteEnvError, match="a reward of nan"):
            env.step("nan")
        env.close()
        other.close()


def test_a_server_that_dies_fails_the_episode_and_is_named():
    with serving(spec_of(**SOKOBAN)) as url:
        env = remote(url)
        env.reset(1)
        env.step("Up")
    with pytest.raises(RemoteEnvError, match=f"the environment served at {url}: it cannot be reached"):
        env.step("Up")
    env.close()
    with pytest.raises(RemoteEnvError, match=f"{url}: it cannot be reached"):
        remote(url)


def test_what_is_no_server_of_ours_is_said_to_be_none():
    async def app(scope, receive, send):
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"<html>"})

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        with pytest.raises(RemoteEnvError, match="its answer is no JSON"):
            remote(f"http://127.0.0.1:{listening.getsockname()[1]}", retry_s=10.0)
        server.should_exit = True
        thread.join(20)


def test_bad_requests_are_refused():
    with serving(spec_of(**SOKOBAN)) as url:
        ident = "b" * 32
        assert httpx.put(f"{url}/v1/sessions/short", json={"seed": 1}).status_code == 422
        assert httpx.put(f"{url}/v1/sessions/{ident}", json={"seed": "x"}).status_code == 422
        assert httpx.put(f"{url}/v1/sessions/{ident}", content=b" " * (MAX_BODY + 1)).status_code == 413
        assert httpx.put(f"{url}/v1/sessions/{ident}", content=iter([b"{}"])).status_code == 413  # no length
        assert httpx.post(f"{url}/v1/sessions/{ident}/step", json={"turn": 1, "action": "Up"}).status_code == 404
        assert httpx.delete(f"{url}/v1/sessions/{ident}").status_code == 200


@pytest.mark.parametrize(
    "config, message",
    [({}, "url is ''"), ({"url": "localhost:1"}, "give the server's address"),
     ({"url": "http://x", "retry_s": 0}, "retry_s is 0")],
)  # fmt: skip
def test_faulty_configs(config, message):
    with pytest.raises(ValueError, match=message):
        make_env("remote", config)


def test_the_command_line(capsys):
    assert parser().parse_args(["SimpleSokoban"]).host == "127.0.0.1"
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0 and "no authentication" in capsys.readouterr().out
    assert find_spec("ragen.env.sokoban.env:Sokoban").make().action_lookup()
    with pytest.raises(SystemExit):
        main(["SimpleSokoban", "--max-sessions", "0"])
    assert main(["SimpleSokobann"]) == 2
    assert "no tag 'SimpleSokobann' in custom_envs of config 'base': did you mean 'SimpleSokoban'" in (
        capsys.readouterr().err
    )
