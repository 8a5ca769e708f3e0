"""Evaluation of a model behind an API, against servers of its own: failures, limits, costs, and a key never shown."""

import asyncio
import copy
import importlib.util
import json
import time

import pytest
from omegaconf import OmegaConf

from ragen.config.compose import CONFIG_DIR
from ragen.config.errors import ConfigError
from ragen.eval.api_models import ApiModel, api_faults, read_key
from ragen.eval.evaluate import main
from ragen.eval.records import read_records
from ragen.eval.replay import replay_file, settings_for
from ragen.llm_agent.api_clients import CallFailed, _retry_after
from ragen.llm_agent.api_policy import Pace
from ragen.llm_agent.byte_chat import BYTE_TOKENS, byte_tokenizer
from ragen.llm_agent.ctx_manager import ContextConfig, ContextManager
from ragen.llm_agent.meter import episode_meter
from ragen.llm_agent.policy import GenerationError, Sampling
from tests.eval.chat_server import REPLY, ChatServer

pytest.importorskip("openai")
pytest.importorskip("anthropic")

KEY = "sk-THEKEY-0123456789"
SAMPLING = Sampling(max_tokens=7, temperature=0.5)


@pytest.fixture(autouse=True)
def key(monkeypatch):
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "TOGETHER_API_KEY", "DEEPSEEK_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MY_KEY", KEY)


@pytest.fixture
def cfg():
    """The config's own file, without what it inherits, which takes a while to compose."""
    cfg = copy.deepcopy(OmegaConf.load(CONFIG_DIR / "evaluate_api_llm.yaml"))
    cfg.agent_proxy.update(context_overflow="end", chat_template_kwargs={})
    cfg.model_config.retry_wait_s = 0.001
    return cfg


def options(server, *more, provider="openai"):
    """A command line against `server`, with waits too short to notice."""
    url = f"{server.url}/v1" if provider != "anthropic" else server.url
    entry = f"{{provider_name: {provider}, model_name: stub, base_url: '{url}', api_key_env: MY_KEY}}"
    return ["--config-name", "evaluate_api_llm", "model_config.model_name=mine", f"+model_info.mine={entry}",
            "model_config.retry_wait_s=0.001", "agent_proxy.max_turn=1", *more]  # fmt: skip


def everything(folder):
    return "".join(path.read_text() for path in folder.rglob("*") if path.is_file())


def entry(cfg, server, provider="openai", **more):
    """`cfg` with a model at `server`."""
    url = f"{server.url}/v1" if provider != "anthropic" else server.url
    cfg.model_config.model_name = "mine"
    cfg.model_info.mine = {"provider_name": provider, "model_name": "stub", "base_url": url, **more}
    return cfg


def ask(cfg, sampling=SAMPLING):
    """One call of the client that `cfg` makes."""
    client = ApiModel.of(cfg).client(KEY, timeout_s=float(cfg.model_config.request_timeout_s))

    async def call():
        try:
            return await client.complete(
                [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}], sampling
            )
        finally:
            await client.close()

    return asyncio.run(call())


def play(cfg, replies=1):
    """So many replies of the policy that `cfg` makes, one after another, and what the meter says."""
    config = ContextConfig(max_model_len=1 << 20, response_length=7, max_turn=1, max_actions_per_turn=1)
    ctx = ContextManager(byte_tokenizer(), config)
    prompt = ctx.encode("<|user|>U<|end|><|assistant|>")

    async def generate():
        async with ApiModel.of(cfg).opened(ctx, cfg.model_config, KEY) as policy:
            return [await policy.generate(prompt, SAMPLING) for _ in range(replies)]

    with episode_meter() as meter:
        return asyncio.run(generate()), meter


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_panel_is_played_though_calls_fail(tmp_path, capsys, caplog, provider):
    reply = "<think>x</think><answer>Phoenix</answer>"
    with ChatServer(fail_share=0.2, limit_share=0.1, seed=2, reply=reply) as server:
        price = "+model_info.mine.price_per_million={input: 1.0, output: 10.0}"
        given = options(server, "panel=bandit", "limit=16", f"output_dir={tmp_path}", "model_config.max_retries=1",
                        price, provider=provider)  # fmt: skip
        assert main(given) == 0
        calls = len(server.statuses)
        table = capsys.readouterr()
        if provider == "openai":
            assert main(given) == 0 and len(server.statuses) == calls  # finished episodes are not paid for again
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["complete"] and summary["kept"] == (32 if provider == "openai" else 0)
    uses = [tag["api"] for tag in summary["tags"].values()]
    assert sum(use["calls"] for use in uses) == calls
    answered, failed = server.statuses.count(200), sum(tag["failed"] for tag in summary["tags"].values())
    assert failed == 32 - answered and 0 < failed < 10  # one call an episode
    assert sum(use["retries"] for use in uses) == calls - 32 > 0
    assert sum(use["input_tokens"] for use in uses) == 100 * answered
    assert sum(use["cost"] for use in uses) == pytest.approx(answered * (100 * 1.0 + 10 * 10.0) / 1e6)
    for tag, each in summary["tags"].items():
        assert each["tokens"] == 10.0  # the endpoint's, not bytes
        if each["failed"]:
            assert set(each["failures"]) == {"generation_error"}
            over = f"{tag}: success is over all 16 episodes; over the {16 - each['failed']} that did not fail it is"
            assert over in table.out
    assert any("***" in text for text in caplog.messages)  # the server said the key
    assert KEY not in everything(tmp_path) + table.out + table.err + caplog.text


def test_records_say_what_their_ids_are_and_replay(tmp_path):
    with ChatServer() as server:
        assert (
            main(options(server, "panel=sokoban", "limit=2", "agent_proxy.max_turn=3", f"output_dir={tmp_path}")) == 0
        )
    path = tmp_path / "rollouts.jsonl"
    for record in read_records(path):
        t = record.trajectory
        assert t.metrics[BYTE_TOKENS] == 1.0 and not t.log_probs.any()
        assert {turn.reply.removesuffix("<|end|>") for turn in t.turns} == {REPLY}
    report = replay_file(path, settings_for(path))
    assert report.exit_status == 0, report.summary()
    [system, user, *_] = server.requests[-1]["messages"]
    assert (system["role"], user["role"]) == ("system", "user")


def test_no_key_ends_it_before_anything_is_played(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("MY_KEY")
    with ChatServer() as server:
        assert main(options(server, "panel=bandit", f"output_dir={tmp_path / 'out'}")) == 2
        assert server.requests == []
    shown = capsys.readouterr().err
    assert shown == ("model_info.mine.api_key_env=MY_KEY: this environment variable is not set; "
                     "export MY_KEY=<your key>\n")  # fmt: skip
    assert not (tmp_path / "out").exists()


def test_a_key_that_is_none_is_not_shown(cfg, monkeypatch):
    monkeypatch.setenv("MY_KEY", KEY + "\u201d")
    with ChatServer() as server, pytest.raises(ConfigError, match="letters that no key has") as caught:
        read_key(ApiModel.of(entry(cfg, server, api_key_env="MY_KEY")))
    assert KEY not in str(caught.value)


def test_a_refused_key_stops_it(tmp_path, capsys):
    with ChatServer(status=401) as server:
        assert main(options(server, "panel=bandit", "limit=2", f"output_dir={tmp_path}")) == 2
    shown = capsys.readouterr().err
    assert "AuthenticationError" in shown and KEY not in shown + everything(tmp_path)
    assert (tmp_path / "rollouts.jsonl").read_text() == ""  # the same command plays all of it


@pytest.mark.parametrize(
    "status, complaint, words",
    [
        (429, {"code": "insufficient_quota"}, "look at the key and the account"),
        (404, {}, "model_info.mine.model_name: NotFoundError"),
        (400, {"param": "temperature"}, "model_info.mine.generation_kwargs.temperature: the endpoint refuses"),
        (400, {"message": "Unsupported parameter: max_tokens"}, "max_completion_tokens=<n> is its other name"),
    ],
)
def test_what_no_episode_can_survive_stops_it(cfg, status, complaint, words):
    with ChatServer(status=status, complaint=complaint) as server:
        with pytest.raises(ConfigError) as caught:
            play(entry(cfg, server))
    assert words in str(caught.value) and KEY not in str(caught.value) and len(server.statuses) == 1


def test_one_refused_chat_is_one_failed_episode(cfg):
    with ChatServer() as server:
        entry(cfg, server)
        server.then = 400  # after an answer: a context that is too long, or a chat that is moderated
        with pytest.raises(GenerationError, match="mine: BadRequestError"):
            play(cfg, replies=2)


def test_no_server_stops_it(cfg):
    with ChatServer() as server:
        pass
    cfg.model_config.max_retries = 1
    with pytest.raises(ConfigError, match="is the server up"):
        play(entry(cfg, server))


def test_retries_are_bounded_and_counted(cfg):
    cfg.model_config.max_retries = 3
    with ChatServer(status=500) as server:
        with pytest.raises(GenerationError, match="InternalServerError"):
            play(entry(cfg, server))
    assert len(server.statuses) == 4
    with ChatServer(limit_share=0.5, seed=1) as server:
        replies, meter = play(entry(cfg, server), replies=5)
    assert len(replies) == 5 and meter["api_calls"] == len(server.statuses) > 5
    assert meter["api_retries"] == server.statuses.count(429) == meter["api_calls"] - 5


def test_a_longer_pause_than_allowed_is_a_failure(cfg):
    with ChatServer(status=429, retry_after="3600") as server:
        with pytest.raises(GenerationError, match="RateLimitError"):
            play(entry(cfg, server))
    assert len(server.statuses) == 1


def test_a_reply_of_nothing_but_thoughts_is_cut_and_no_failure(cfg):
    with ChatServer(reply=None, finish="length") as server:
        [reply], meter = play(entry(cfg, server))
    assert reply.token_ids == [byte_tokenizer().eos_token_id] and meter["truncated_replies"] == 1


def test_sampling_is_passed_on_and_may_be_overruled(cfg):
    sampling = Sampling(max_tokens=7, temperature=0.5, top_p=0.9, top_k=3, seed=5, stop=("</answer>",))
    with ChatServer(stop_reason="</answer>", reply="<answer>Up") as server:
        assert ask(entry(cfg, server), sampling).text == "<answer>Up</answer>"
        changes = {"temperature": None, "max_completion_tokens": 9, "logprobs": True}
        ask(entry(cfg, server, generation_kwargs=changes, seeded=True), sampling)
        assert ask(entry(cfg, server, "anthropic"), sampling).text == "<answer>Up</answer>"
    plain, changed, anthropic = server.requests
    wanted = {"max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "stop": ["</answer>"]}
    assert {name: plain[name] for name in wanted} == wanted and "seed" not in plain
    assert changed["max_completion_tokens"] == 9 and changed["seed"] == 5 and changed["logprobs"] is True
    assert not {"temperature", "max_tokens"} & changed.keys()
    assert (anthropic["system"], anthropic["messages"]) == ("S", [{"role": "user", "content": "U"}])
    assert (anthropic["max_tokens"], anthropic["stop_sequences"]) == (7, ["</answer>"])
    assert KEY in anthropic["key"] and plain["key"] == f"Bearer {KEY}"


def test_an_open_tag_is_closed_where_the_endpoint_does_not_say_where_it_stopped(cfg):
    stops = Sampling(max_tokens=7, stop=("</think>", "</answer>"))
    with ChatServer(reply="<think>a</think><answer>Up") as server:
        assert ask(entry(cfg, server), stops).text.endswith("<answer>Up</answer>")
        server.finish = "length"
        cut = ask(entry(cfg, server), stops)
        assert cut.cut and cut.text.endswith("<answer>Up")


def test_a_call_over_its_time_is_given_up(cfg):
    cfg.model_config.request_timeout_s = 0.001
    with ChatServer() as server, pytest.raises(CallFailed, match="request_timeout_s=0.001") as caught:
        ask(entry(cfg, server))
    assert caught.value.again and caught.value.timed_out


def test_openai_itself_gets_its_own_name_of_the_limit(cfg):
    cfg.model_path = "api:gpt-4o"
    assert ApiModel.of(cfg).client(KEY, 1.0)._limit == "max_completion_tokens"


def test_the_pace_is_even_and_a_pause_holds_for_all():
    async def times(pace, calls):
        began = time.monotonic()

        async def one():
            await pace.turn()
            return time.monotonic() - began

        return sorted(await asyncio.gather(*(one() for _ in range(calls))))

    paced = asyncio.run(times(Pace(60 / 0.02), 3))
    assert paced[0] < 0.015 and paced[1] >= 0.02 and paced[2] >= 0.04
    paused = Pace(None)
    paused.pause(0.03)
    assert min(asyncio.run(times(paused, 2))) >= 0.029


def test_retry_after_is_seconds_milliseconds_or_a_date():
    assert _retry_after({"retry-after": "1.5"}) == 1.5
    assert _retry_after({"retry-after": "2", "retry-after-ms": "20"}) == 0.02
    assert _retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0.0
    assert _retry_after({"retry-after": "soon"}) is None and _retry_after({}) is None


@pytest.mark.parametrize(
    "key, value, words",
    [
        ("model_config.model_name", "gpt-4o-mimi", "no entry of model_info; did you mean gpt-4o-mini?"),
        ("model_config.max_concurrency", 0, "model_config.max_concurrency=0: not a number from 1"),
        ("model_info.gpt-4o-mini.provider_name", "openay", "no such provider; did you mean openai?"),
        ("model_info.gpt-4o-mini.provider_name", "vllm", "base_url=null: this provider has no address of its own"),
        ("model_info.gpt-4o-mini.model_name", None, "model_name=null: not set"),
        ("model_info.gpt-4o-mini.base_url", "localhost:8000", "base_url=localhost:8000: no address"),
        ("model_info.gpt-4o-mini.generation_kwargs", {"stop": ["x"]}, "generation_kwargs.stop: set elsewhere"),
        ("model_info.gpt-4o-mini.price_per_million", 3, "not the two prices of a million tokens"),
        ("model_info.gpt-4o-mini.seed", 3, "did you mean model_info.gpt-4o-mini.seeded?"),
        ("agent_proxy.context_overflow", "drop_oldest", "only known to the endpoint"),
        ("agent_proxy.chat_template_kwargs", {"enable_thinking": False}, "renders its own template"),
    ],
)
def test_faults_of_the_config_are_found(cfg, key, value, words):
    OmegaConf.update(cfg, key, value, force_add=True)
    [fault] = api_faults(cfg)
    assert words in str(fault)


@pytest.mark.parametrize(
    "key, value",
    [
        ("api_key", KEY),
        ("api_key_env", KEY),
        ("base_url", f"https://u:{KEY}@x/v1"),
        ("generation_kwargs", {"extra_headers": {"a": KEY}}),
    ],
)
def test_a_config_that_holds_a_key_is_refused_and_not_shown(cfg, key, value):
    cfg.model_info["gpt-4o-mini"][key] = value
    [fault] = api_faults(cfg)
    assert KEY not in str(fault)


def test_unknown_keys_are_found_and_one_that_may_be_a_key_is_not_shown(capsys):
    wrong = ["model_config.max_concurency=3", f"model_config.api_key={KEY}"]
    assert main(["--config-name", "evaluate_api_llm", "panel=bandit", *wrong]) == 2
    shown = capsys.readouterr().err
    assert "did you mean model_config.max_concurrency?" in shown and "model_config.api_key" in shown
    assert KEY not in shown


def test_a_missing_package_gives_the_line_that_installs_it(cfg, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "anthropic" else find(name))
    cfg.model_config.model_name = "claude-haiku"
    [fault] = api_faults(cfg)
    assert 'needs the package anthropic; pip install -e ".[api]"' in str(fault)


def test_another_config_has_no_such_models():
    [fault] = api_faults(OmegaConf.create({"model_path": "api:gpt-4o-mini"}))
    assert "take --config-name evaluate_api_llm" in str(fault)
