"""The rollout bench without vLLM: both sides of each comparison do the same work, and the command line."""

import asyncio
import dataclasses
import json
import selectors

import numpy as np
import pytest

from ragen.llm_agent import bench
from ragen.llm_agent.bench import Workload, bare_loop, bench_simulated, ideal_makespan, lockstep, make_plan, make_proxy
from ragen.llm_agent.policy import Generation
from tests.llm_agent.tokenizers_for_tests import byte_tokenizer

TOKENIZER = byte_tokenizer()
SMALL = Workload(episodes=6, turns=3, tokens=20, concurrency=4)


class VirtualClock(asyncio.SelectorEventLoop):
    """An event loop whose sleeps take no time: where it would wait, its clock jumps ahead."""

    def __init__(self):
        super().__init__(_NoWait(self))
        self.now = 0.0

    def time(self):
        return self.now


class _NoWait(selectors.DefaultSelector):
    def __init__(self, loop):
        super().__init__()
        self.loop = loop

    def select(self, timeout=None):
        self.loop.now += max(timeout or 0.0, 0.0)
        return super().select(0)


def run(coroutine):
    """`asyncio.run` on the virtual clock."""
    loop = VirtualClock()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()


class Recorder:
    """Replies that depend on the sampling seed alone, now and then well-formed; keeps the prompts."""

    def __init__(self):
        self.prompts = []
        self.running = self.most_at_once = 0

    async def generate(self, prompt_ids, sampling, images=None, episode=""):
        self.prompts.append((list(prompt_ids), sampling))
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        rng = np.random.default_rng(sampling.seed)
        await asyncio.sleep(float(rng.random()))
        self.running -= 1
        ids = rng.integers(len(TOKENIZER), size=sampling.max_tokens).tolist()
        if rng.random() < 0.5:
            good = TOKENIZER("<think></think><answer>a</answer>")["input_ids"][: sampling.max_tokens - 1]
            ids[-len(good) - 1 :] = [*good, TOKENIZER.eos_token_id]
        return Generation(ids, [-1.0] * len(ids))


def by_seed(recorder):
    return {sampling.seed: (ids, sampling) for ids, sampling in recorder.prompts}


@pytest.fixture
def both_sides():
    """One workload on both sides: (trajectories, the proxy's calls, sequences, the bare loop's calls)."""
    workload = dataclasses.replace(SMALL, tokens=40)  # room for a well-formed reply
    proxy_side, bare_side = Recorder(), Recorder()
    proxy = make_proxy(workload, TOKENIZER, proxy_side)
    trajectories = run(bench.play(proxy))
    plan = make_plan(trajectories, workload)

    async def generate(ids, sampling):
        return (await bare_side.generate(ids, sampling)).token_ids

    sequences = run(bare_loop([e.contexts for e in plan], [e.samplings for e in plan], generate, workload.concurrency))
    return trajectories, proxy_side, sequences, bare_side


def test_the_bare_loop_sends_the_same_requests_as_the_proxy(both_sides):
    trajectories, proxy_side, sequences, bare_side = both_sides
    assert len(proxy_side.prompts) == SMALL.episodes * SMALL.turns
    assert by_seed(bare_side) == by_seed(proxy_side)
    assert sequences == [t.token_ids.tolist() for t in trajectories]


def test_both_sides_start_turns_in_the_same_order_with_the_same_slots(both_sides):
    _, proxy_side, _, bare_side = both_sides
    assert [s.seed for _, s in bare_side.prompts] == [s.seed for _, s in proxy_side.prompts]
    assert proxy_side.most_at_once == bare_side.most_at_once == SMALL.concurrency


def test_an_episode_that_cannot_play_all_turns_is_no_measurement():
    proxy = make_proxy(SMALL, TOKENIZER, Recorder(), max_model_len=450)
    with pytest.raises(RuntimeError, match=r"episode \d+ ended as truncated \(context\) after 1 turns"):
        run(bench.play(proxy))


def test_simulated_latencies_have_the_tail_that_is_promised():
    engine = bench.SimulatedEngine(0.5, 10)
    draws = [engine.latency_s(seed) for seed in range(20_000)]
    p50, p99 = np.percentile(draws, [50, 99])
    assert p50 == pytest.approx(0.5, rel=0.03)
    assert p99 / p50 == pytest.approx(10, rel=0.06)


def test_the_proxy_waits_for_exactly_the_draws_that_lockstep_gets():
    slept = []

    class Watched(bench.SimulatedEngine):
        async def generate(self, prompt_ids, sampling, images=None, episode=""):
            slept.append(self.latency_s(sampling.seed))
            return await super().generate(prompt_ids, sampling, images, episode)

    engine = Watched(0.1, len(TOKENIZER))
    proxy = make_proxy(SMALL, TOKENIZER, engine)
    latencies = bench.draw_latencies(engine, SMALL, proxy)
    run(bench.play(proxy))
    assert latencies.shape == (SMALL.episodes, SMALL.turns)
    assert sorted(slept) == sorted(latencies.ravel())


def makespan(coroutine_of):
    async def timed():
        start = asyncio.get_running_loop().time()
        await coroutine_of
        return asyncio.get_running_loop().time() - start

    return run(timed())


def test_lockstep_waits_for_the_slowest_reply_of_each_turn_and_of_each_wave():
    latencies = np.array([[1.0, 5.0], [4.0, 1.0], [2.0, 2.0]])
    assert makespan(lockstep(latencies, 3)) == pytest.approx(4 + 5)
    assert makespan(lockstep(latencies, 2)) == pytest.approx(4 + 5 + 2 + 2)


def test_ideal_makespan_gives_a_free_slot_to_the_next_episode():
    latencies = np.array([[1.0, 5.0], [4.0, 1.0], [2.0, 2.0]])
    assert ideal_makespan(latencies, 3) == 6
    assert ideal_makespan(latencies, 2) == 9
    assert ideal_makespan(latencies, 1) == 15


@pytest.mark.wide
def test_the_proxy_loses_nothing_to_slow_replies_and_twice_beats_lockstep():
    workload = dataclasses.replace(Workload(), tokens=8)
    result = run(bench_simulated(workload, TOKENIZER, repeats=5, median_s=0.02))
    assert len(result.ours) == len(result.other) == len(set(result.ours)) == 5
    assert result.ratio >= bench.LOCKSTEP_GOAL
    engine = bench.SimulatedEngine(0.02, len(TOKENIZER))
    for repeat, measured in enumerate(result.ours):
        draws = dataclasses.replace(workload, seed=repeat)
        latencies = bench.draw_latencies(engine, draws, make_proxy(draws, TOKENIZER, engine))
        assert measured == pytest.approx(ideal_makespan(latencies, draws.concurrency), rel=1e-6)
        assert result.other[repeat] == pytest.approx(latencies.max(axis=0).sum(), rel=1e-6)


@pytest.mark.parametrize("inverse, expected", [(False, 0.5), (True, 2.0)])
def test_ratio_is_of_the_medians_and_counts_faster_as_larger(inverse, expected):
    comparison = bench.Comparison("x", "u", [1.0, 2.0, 90.0], "other", [4.0, 1.0, 9.0], 1.0, inverse, "")
    assert comparison.ratio == expected
    assert comparison.to_json()["pair_ratios"] == [0.25, 2.0, 10.0] if not inverse else [4.0, 0.5, 0.1]


def test_command_line_defaults_and_values():
    args = bench.parse_args([])
    assert (args.engine, args.model, args.repeats) == ("both", None, 5)
    assert (args.episodes, args.turns, args.tokens, args.concurrency) == dataclasses.astuple(Workload())[:4]
    args = bench.parse_args(
        "--engine vllm --model m --episodes 3 --turns 2 --tokens 5 --concurrency 2 --repeats 1 --json f".split()
    )
    assert (args.engine, args.model, args.episodes, args.turns, args.tokens) == ("vllm", "m", 3, 2, 5)
    assert (args.concurrency, args.repeats, str(args.json)) == (2, 1, "f")


@pytest.mark.parametrize(
    "line, message",
    [
        ("--episodes 0", "--episodes: 0: must be at least 1"),
        ("--turns x", "--turns: invalid"),
        ("--engine none", "invalid choice"),
        ("--latency-ms 0", "--latency-ms 0.0: must be above 0"),
    ],
)
def test_a_bad_command_line_names_the_option(line, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        bench.parse_args(line.split())
    assert exit_.value.code == 2 and message in capsys.readouterr().err


def test_a_model_folder_without_a_model_is_named():
    with pytest.raises(SystemExit, match="--model /nowhere: no config.json there"):
        bench.main(["--model", "/nowhere"])


def test_the_command_prints_a_table_and_writes_every_figure(tmp_path, capsys, monkeypatch):
    folder, figures = tmp_path / "model", tmp_path / "figures.json"
    TOKENIZER.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    size = "--episodes 4 --turns 2 --tokens 4 --concurrency 2 --repeats 2 --latency-ms 1"
    bench.main([*f"--engine simulated --model {folder} --json {figures}".split(), *size.split()])
    record = json.loads(figures.read_text())
    [comparison] = record["comparisons"]
    assert record["episodes"] == 4 and len(comparison["ours"]) == len(comparison["other"]) == 2
    out = capsys.readouterr().out
    assert "agent proxy" in out and "lockstep loop" in out and f"{comparison['ratio']:.3f}" in out
