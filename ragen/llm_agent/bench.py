"""How much time the agent proxy costs: `python -m ragen.llm_agent.bench`.

Two questions, each answered by the median of `--repeats` alternating runs (A B A B …):

**vllm: is the engine kept busy?** New tokens per second of the agent proxy (`LLMAgentProxy`, `EnvStateManager`,
`ContextManager`, unchanged, with an environment that costs nothing) against a bare asyncio loop over *the same engine
object*, without Ray. The bare loop holds token ids that were computed beforehand and does nothing but append each reply
and the next suffix and ask the engine again. Both ask for the same: prompts, sampling seeds, log-probs, exactly
`--tokens` new tokens a turn (`ignore_eos`), the next turn of an episode as soon as its reply is there, at most
`--concurrency` episodes at once in the same order. The clock runs from the first request to the last reply (for the
proxy: to the last finished `Trajectory`). Before the first pair the proxy plays once, unmeasured, which warms up the
engine and yields the suffixes; then the bare loop plays once. The prefix cache is emptied before every run, so that
neither side finds what the other computed. Starting the engine is not measured. The engine shares the machine with both
sides, as in a real rollout: time that a side takes from a core is time that the engine lacks.
Goal: proxy ≥ 0.95 of the bare loop.

**simulated: does a slow reply hold up the others?** The same proxy over an engine that only sleeps: latencies are
lognormal with p99/p50 = 10, independent, one for each episode and turn. Against it a lockstep loop, in which the slots
wait for the slowest reply of each turn and for the slowest episode of each wave; it does nothing but wait for the same
draws. `ideal` is the makespan of the same draws if nothing but the replies took time and there were no barrier. The
ratio is mostly a property of the distribution, `--episodes` and `--turns`; what the proxy adds is its distance from
`ideal`. Latencies are scaled down to save time (`--latency-ms`), which counts against the proxy: its own work, less
than a millisecond a turn, is not scaled. Each repeat has its own draws. Goal: lockstep ≥ 2 × proxy.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import heapq
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ragen.env.base import Env
from ragen.env.registry import load_specs
from ragen.llm_agent.agent_proxy import LLMAgentProxy
from ragen.llm_agent.ctx_manager import ContextConfig, ContextManager
from ragen.llm_agent.es_manager import EnvStateManager, Split
from ragen.llm_agent.policy import Generation, Policy, Sampling
from ragen.llm_agent.seeds import sampler_seed
from ragen.llm_agent.trajectory import Trajectory

PROXY_GOAL = 0.95
LOCKSTEP_GOAL = 2.0

#: Spread of the simulated latencies: the 99th percentile of a lognormal is exp(2.326 σ) times its median.
SIGMA = math.log(10) / statistics.NormalDist().inv_cdf(0.99)


# --- workload --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Workload:
    """What both sides of a comparison play."""

    episodes: int = 64
    turns: int = 10
    tokens: int = 32
    """New tokens of each turn."""
    concurrency: int = 64
    """Most episodes at once."""
    seed: int = 0

    @property
    def new_tokens(self) -> int:
        """Sampled tokens of one run."""
        return self.episodes * self.turns * self.tokens


@dataclasses.dataclass
class IdleConfig:
    """Nothing to configure."""


class IdleEnv(Env):
    """An environment that costs nothing: always the same board, any text is an action, and no end."""

    config_class = IdleConfig
    isolate = "inline"
    board = "######\n#____#\n#_P__#\n#_XO_#\n#____#\n######"

    def reset(self, seed, *, luck=None):
        return self.board, {}

    def step(self, action):
        return self.board, -0.1, False, False, {}

    def render(self, mode="text"):
        return self.board

    def instruction(self):
        return "Push the box X onto the target O. You are P, # is a wall, _ is floor."


def make_proxy(workload: Workload, tokenizer: Any, policy: Policy, *, max_model_len: int = 1 << 20) -> LLMAgentProxy:
    """The agent proxy over `workload.episodes` idle environments, `workload.concurrency` at once."""
    entry = {
        "env_type": "ragen.llm_agent.bench:IdleEnv",
        # One action a turn: the budget never ends an episode.
        "max_actions_per_traj": workload.turns + 1,
        "max_workers": workload.concurrency,
    }
    es = EnvStateManager(
        load_specs({"Idle": entry}),
        Split(workload.episodes, 1, ("Idle",), (workload.episodes,)),
        run_seed=workload.seed,
        base_seed=0,
    )
    config = ContextConfig(
        max_model_len=max_model_len,
        response_length=workload.tokens,
        max_turn=workload.turns,
        max_actions_per_turn=1,
    )
    return LLMAgentProxy(es, ContextManager(tokenizer, config), policy)


async def play(proxy: LLMAgentProxy) -> list[Trajectory]:
    """One rollout of the workload.

    Raises:
        RuntimeError: an episode failed or ended early: what was measured would not be the workload.
    """
    trajectories = await proxy.rollout()
    for t in trajectories:
        if t.end_reason != "max_turn":
            raise RuntimeError(
                f"episode {t.seed} ended as {t.status} ({t.end_reason}) after {t.num_turns} turns: see the log"
            )
    return trajectories


# --- the bare loop ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class EpisodePlan:
    """What the bare loop knows of one episode beforehand; K turns."""

    contexts: list[list[int]]
    """(K,) Token ids that the policy reads before each reply: the first prompt, then the suffixes."""
    samplings: list[Sampling]
    """(K,) Sampling of each reply."""


def make_plan(trajectories: Sequence[Trajectory], workload: Workload) -> list[EpisodePlan]:
    """Prompt, suffixes and samplings of each episode, as the proxy used them when it played `trajectories`."""
    return [
        EpisodePlan(
            contexts=[t.token_ids[(t.turn_ids == k) & ~t.policy_mask].tolist() for k in range(t.num_turns)],
            samplings=[
                Sampling(workload.tokens, seed=sampler_seed(workload.seed, t.seed, t.member, turn))
                for turn in range(t.num_turns)
            ],
        )
        for t in trajectories
    ]


async def bare_loop(
    contexts: Sequence[Sequence[list[int]]],
    requests: Sequence[Sequence[Any]],
    generate: Callable[[list[int], Any], Awaitable[list[int]]],
    concurrency: int,
) -> list[list[int]]:
    """Continue each sequence turn by turn; nothing else.

    Args:
        contexts: per episode and turn, the ids that come before the reply.
        requests: per episode and turn, what `generate` takes besides the prompt.
        generate: (prompt ids, request) → reply ids.
        concurrency: most episodes at once.

    Returns:
        Per episode, all ids up to the last reply's end.
    """
    slots = asyncio.Semaphore(concurrency)

    async def episode(pieces: Sequence[list[int]], own_requests: Sequence[Any]) -> list[int]:
        async with slots:
            ids: list[int] = []
            for piece, request in zip(pieces, own_requests, strict=True):
                ids = ids + piece  # a new list: the engine may still hold the last one
                ids = ids + await generate(ids, request)
            return ids

    return list(await asyncio.gather(*(episode(*pair) for pair in zip(contexts, requests, strict=True))))


# --- vLLM ------------------------------------------------------------------------------------------------------------


async def bench_vllm(workload: Workload, model: str, tokenizer: Any, repeats: int, **engine_args: Any) -> Comparison:
    """New tokens per second of the proxy and of the bare loop over one engine, see the module's text."""
    from ragen.llm_agent.vllm_policy import VllmPolicy, sampling_params

    async with _engine(model, max_num_seqs=workload.concurrency, **engine_args) as engine:
        limit = engine.model_config.max_model_len
        proxy = make_proxy(workload, tokenizer, VllmPolicy(engine, ignore_eos=True), max_model_len=limit)
        plan = make_plan(await play(proxy), workload)
        contexts = [episode.contexts for episode in plan]
        requests = [[sampling_params(s, ignore_eos=True) for s in episode.samplings] for episode in plan]

        async def generate(prompt_ids: list[int], params: Any) -> list[int]:
            async for output in engine.generate({"prompt_token_ids": prompt_ids}, params, str(next(numbers))):
                ids = output.outputs[0].token_ids  # the only output is the last
            return list(ids)

        async def timed(run: Callable[[], Awaitable[list[Any]]], speeds: list[float], cpu_ms: list[float]) -> list[Any]:
            await engine.reset_prefix_cache()
            start, cpu_start = time.perf_counter(), time.process_time()
            result = await run()
            cpu_ms.append(1000 * (time.process_time() - cpu_start) / (workload.episodes * workload.turns))
            speeds.append(workload.new_tokens / (time.perf_counter() - start))
            return result

        numbers = iter(range(sys.maxsize))
        await bare_loop(contexts, requests, generate, workload.concurrency)
        ours, bare, ours_cpu, bare_cpu, same = [], [], [], [], []
        for repeat in range(repeats):
            trajectories = await timed(lambda: play(proxy), ours, ours_cpu)
            sequences = await timed(
                lambda: bare_loop(contexts, requests, generate, workload.concurrency), bare, bare_cpu
            )
            same += [t.token_ids.tolist() == ids for t, ids in zip(trajectories, sequences, strict=True)]
            _say(f"vllm run {repeat + 1}/{repeats}: proxy {ours[-1]:,.0f}, bare loop {bare[-1]:,.0f} new tokens/s")
        proxy.es.close()
    note = (
        f"{sum(same) / len(same):.0%} of the episodes token-identical on both sides, all equally long; CPU time "
        "of this process, which holds the engine's front end as well, in ms a turn: "
        f"proxy {statistics.median(ours_cpu):.2f}, "
        f"bare loop {statistics.median(bare_cpu):.2f}"
    )
    return Comparison("vllm", "new tokens/s", ours, "bare loop", bare, PROXY_GOAL, inverse=False, note=note)


@contextlib.asynccontextmanager
async def _engine(model: str, **engine_args: Any) -> AsyncIterator[Any]:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    from ragen.llm_agent.vllm_policy import start_engine

    engine = start_engine(model, **engine_args)
    try:
        yield engine
    finally:
        engine.shutdown()


# --- simulated engine ------------------------------------------------------------------------------------------------


class SimulatedEngine:
    """A `Policy` that sleeps and then returns `max_tokens` ids. Serves any number of requests at once.

    Args:
        median_s: median latency of a reply, seconds.
        vocabulary: ids are drawn below it.
    """

    def __init__(self, median_s: float, vocabulary: int):
        self.median_s, self.vocabulary = median_s, vocabulary

    def latency_s(self, seed: int) -> float:
        """Seconds that the reply with this sampling seed takes: lognormal, p99/p50 = 10."""
        return self.median_s * float(np.random.default_rng(seed).lognormal(0.0, SIGMA))

    async def generate(
        self, prompt_ids: list[int], sampling: Sampling, images: list[Any] | None = None, episode: str = ""
    ) -> Generation:
        """See `Policy.generate`."""
        await asyncio.sleep(self.latency_s(sampling.seed))
        ids = np.random.default_rng([sampling.seed, 1]).integers(self.vocabulary, size=sampling.max_tokens).tolist()
        return Generation(ids, [-math.log(self.vocabulary)] * len(ids))


def draw_latencies(engine: SimulatedEngine, workload: Workload, proxy: LLMAgentProxy) -> np.ndarray:
    """(episodes, turns) float64, seconds: what `engine` takes for each reply when `proxy` plays."""
    return np.array(
        [
            [
                engine.latency_s(sampler_seed(workload.seed, task.seed, task.member, turn))
                for turn in range(workload.turns)
            ]
            for task in proxy.es.tasks()
        ]
    )


async def lockstep(latencies: np.ndarray, concurrency: int) -> None:
    """Wait as a loop with barriers does: each turn for its slowest reply, each wave of slots for its last turn."""
    for first in range(0, len(latencies), concurrency):
        for turn in latencies[first : first + concurrency].T:
            await asyncio.gather(*(asyncio.sleep(delay) for delay in turn))


def ideal_makespan(latencies: np.ndarray, concurrency: int) -> float:
    """Seconds until the last reply if only replies took time: a slot that is free takes the next episode."""
    free_at = [0.0] * concurrency
    for total in latencies.sum(axis=1):
        heapq.heapreplace(free_at, free_at[0] + float(total))
    return max(free_at)


async def bench_simulated(workload: Workload, tokenizer: Any, repeats: int, median_s: float) -> Comparison:
    """Makespans of the proxy and of a lockstep loop, see the module's text."""
    engine = SimulatedEngine(median_s, len(tokenizer))
    ours, barrier, ideal = [], [], []
    clock = asyncio.get_running_loop().time
    for repeat in range(-1, repeats):  # the first is a warm-up
        draws = dataclasses.replace(workload, seed=workload.seed + max(repeat, 0))
        proxy = make_proxy(draws, tokenizer, engine)
        latencies = draw_latencies(engine, draws, proxy)
        start = clock()
        await play(proxy)
        middle = clock()
        await lockstep(latencies, draws.concurrency)
        end = clock()
        proxy.es.close()
        if repeat < 0:
            continue
        ours.append(middle - start)
        barrier.append(end - middle)
        ideal.append(ideal_makespan(latencies, draws.concurrency))
        _say(f"simulated run {repeat + 1}/{repeats}: proxy {ours[-1]:.2f} s, lockstep {barrier[-1]:.2f} s")
    note = f"ideal {statistics.median(ideal):.2f} s: the same replies without any barrier or overhead"
    return Comparison(
        "simulated", "s, makespan", ours, "lockstep loop", barrier, LOCKSTEP_GOAL, inverse=True, note=note
    )


# --- figures ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Figures of two sides, run by run."""

    name: str
    unit: str
    ours: list[float]
    """The agent proxy."""
    other_name: str
    other: list[float]
    goal: float
    """Least ratio wanted."""
    inverse: bool
    """The unit is a time: the ratio is other/ours, else ours/other."""
    note: str

    @property
    def ratio(self) -> float:
        """Of the medians; above 1 the proxy is faster."""
        ratio = statistics.median(self.ours) / statistics.median(self.other)
        return 1 / ratio if self.inverse else ratio

    @property
    def pair_ratios(self) -> list[float]:
        """The ratio of each pair of runs."""
        pairs = zip(self.ours, self.other, strict=True)
        return [other / ours if self.inverse else ours / other for ours, other in pairs]

    def to_json(self) -> dict[str, Any]:
        """All figures, JSON-ready."""
        return {**dataclasses.asdict(self), "ratio": self.ratio, "pair_ratios": self.pair_ratios}


def print_table(comparisons: Sequence[Comparison], title: str) -> None:
    """Medians, spreads and ratios, on stdout."""
    from rich.console import Console
    from rich.table import Table

    table = Table("engine", "side", "unit", "median", "least … most", title=title, title_justify="left")
    for c in comparisons:
        form = "{:.2f}" if statistics.median(c.ours) < 100 else "{:,.0f}"
        for name, values in (("agent proxy", c.ours), (c.other_name, c.other)):
            spread = f"{form.format(min(values))} … {form.format(max(values))}"
            table.add_row(c.name, name, c.unit, form.format(statistics.median(values)), spread)
        met = "met" if c.ratio >= c.goal else "not met"
        pairs = f"{min(c.pair_ratios):.3f} … {max(c.pair_ratios):.3f}"
        table.add_row(c.name, "ratio", f"goal ≥ {c.goal:g}: {met}", f"{c.ratio:.3f}", pairs, end_section=True)
    console = Console(highlight=False)
    console.print(table)
    for c in comparisons:
        console.print(f"{c.name}: {c.note}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# --- model -----------------------------------------------------------------------------------------------------------


def built_tiny_model() -> Path | None:
    """The newest tiny model in the cache, if one has been built."""
    from ragen.tiny_model import cache_root

    built = [config.parent for config in cache_root().glob("tiny-*/config.json")]
    return max(built, key=lambda folder: folder.stat().st_mtime, default=None)


def make_throwaway(folder: Path) -> None:
    """Tokenizer and config of a small Qwen3 of the tiny model's shape, without weights (vLLM draws its own)."""
    from transformers import Qwen3Config

    from ragen.tiny_model import Recipe, make_tokenizer

    recipe = Recipe()
    tokenizer = make_tokenizer(recipe)
    tokenizer.save_pretrained(folder)
    Qwen3Config(
        architectures=["Qwen3ForCausalLM"],
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        head_dim=recipe.hidden_size // recipe.heads,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    ).save_pretrained(folder)


@contextlib.contextmanager
def model_folder(given: str | None):
    """Yields (folder, words that say which model it is, engine arguments)."""
    if given is not None:
        if not (Path(given) / "config.json").is_file():
            raise SystemExit(f"--model {given}: no config.json there; give a Hugging Face model folder")
        yield given, given, {}
    elif (built := built_tiny_model()) is not None:
        yield str(built), "tiny model", {}
    else:
        with tempfile.TemporaryDirectory(prefix="ragen-bench-") as folder:
            make_throwaway(Path(folder))
            yield folder, "throw-away Qwen3 with random weights (no tiny model is built)", {"load_format": "dummy"}


# --- command line ----------------------------------------------------------------------------------------------------


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; exits with 2 on a bad one."""
    defaults = Workload()
    parser = argparse.ArgumentParser(
        prog="python -m ragen.llm_agent.bench",
        description="Time of the agent proxy against the bare engine (vllm) and against a lockstep loop (simulated).",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--engine", choices=("both", "vllm", "simulated"), default="both", help="simulated needs no vLLM")
    add("--model", metavar="FOLDER", help="Hugging Face model; unset: the tiny model if built, else random weights")
    add("--episodes", type=_positive, default=defaults.episodes, help="episodes of one run")
    add("--turns", type=_positive, default=defaults.turns, help="turns of each episode")
    add("--tokens", type=_positive, default=defaults.tokens, help="new tokens of each turn")
    add("--concurrency", type=_positive, default=defaults.concurrency, help="most episodes at once")
    add("--repeats", type=_positive, default=5, help="runs of each side")
    add("--seed", type=int, default=defaults.seed, help="root of sampling seeds and latencies")
    add("--latency-ms", type=float, default=50.0, help="median of the simulated latencies")
    add("--json", metavar="FILE", type=Path, help="write all figures there as well")
    args = parser.parse_args(argv)
    if args.latency_ms <= 0:
        parser.error(f"--latency-ms {args.latency_ms}: must be above 0")
    return args


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{value}: must be at least 1")
    return value


def main(argv: Sequence[str] | None = None) -> None:
    """Run, print the table, write the JSON file."""
    args = parse_args(argv)
    workload = Workload(args.episodes, args.turns, args.tokens, args.concurrency, args.seed)
    with model_folder(args.model) as (folder, words, engine_args):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder)
        comparisons = []
        if args.engine != "vllm":
            comparisons.append(
                asyncio.run(bench_simulated(workload, tokenizer, args.repeats, median_s=args.latency_ms / 1000))
            )
        if args.engine != "simulated":
            comparisons.append(asyncio.run(bench_vllm(workload, folder, tokenizer, args.repeats, **engine_args)))
    title = (
        f"{args.episodes} episodes × {args.turns} turns × {args.tokens} tokens, {args.concurrency} at once; "
        f"median of {args.repeats}; {words}"
    )
    print_table(comparisons, title)
    if args.json is not None:
        record = {**vars(args), "json": None, "model": words, "comparisons": [c.to_json() for c in comparisons]}
        args.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
