"""A tiny language model that needs no hub: `path()` builds, warm-starts and caches it.

A Qwen3-architecture causal LM of about 0.6M parameters with its own ChatML tokenizer, taught by scripted play of
middling skill, collected through the real agent proxy. Afterwards it keeps the reply format and plays half-well, so
that what reinforcement learning adds is skill. The prompts are those of the config `quickstart`, read from there.

`scripts/make_tiny_model.py` is the command line. Only a build imports torch: a cached model is found in seconds.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import importlib.metadata
import json
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np
from filelock import FileLock
from tqdm import tqdm

from ragen.config.compose import load
from ragen.env.registry import EnvSpec, load_specs
from ragen.llm_agent.agent_proxy import LLMAgentProxy
from ragen.llm_agent.ctx_manager import ContextConfig, ContextManager
from ragen.llm_agent.es_manager import EnvStateManager, EpisodeTask, Split
from ragen.llm_agent.policy import Generation, Sampling, ScriptedPolicy, mixed_actions
from ragen.llm_agent.trajectory import Trajectory
from ragen.trainer.settings import composed_context_config

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["CHECK_FILE", "Recipe", "build", "cache_root", "check", "make_tokenizer", "path"]

#: Beside the weights: the recipe, and what was measured.
CHECK_FILE = "warm_start.json"

EOS, PAD, OPEN = "<|im_end|>", "<|endoftext|>", "<|im_start|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
#: How text is cut before the vocabulary is asked: tags, separator, words with the space before them, and single
#: characters; capitals in a row are cut apart, since on a board each is a symbol. A piece that the vocabulary lacks
#: becomes its bytes, so no text is lost.
_PIECES = r"</?(?:think|answer)>|\|\|| ?\p{Lu}?\p{Ll}+|\p{L}|\p{N}|\s|[^\s\p{L}\p{N}]"
_SPECIAL = "|".join(re.escape(token) for token in (PAD, OPEN, EOS))


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Everything that shapes the model, apart from the prompts."""

    seed: int = 0
    #: Tags of `config/envs.yaml` whose prompts become vocabulary and whose play is taught; equal shares.
    tags: tuple[str, ...] = ("FrozenLake",)
    #: Chance that the script plays a best action; else it plays a random one.
    skill: float = 0.4
    #: Scripted episodes that are collected.
    episodes: int = 2400
    #: Optimiser steps on single turns (short, hence cheap: most of the game is learned here), then on whole episodes.
    turn_batches: int = 150
    episode_batches: int = 100
    #: Turns, and episodes, in one optimiser step.
    turns_per_batch: int = 96
    episodes_per_batch: int = 16
    #: Of Muon for the matrices, and of AdamW for the rest; AdamW alone would learn nothing of the game in this time.
    matrix_learning_rate: float = 2e-2
    learning_rate: float = 3e-3
    hidden_size: int = 128
    layers: int = 3
    heads: int = 4
    intermediate_size: int = 384
    #: Base of the rotary position code: distances here are those within a board, not within a book.
    rope_theta: float = 1000.0
    #: Standard deviation of the first weights.
    init_std: float = 0.05
    #: Environment seeds from here on; below those of any training run (10000) and above the validation panel (123–378).
    first_seed: int = 1_000
    #: Held out: seeds of the episodes that `check` plays.
    check_seed: int = 9_000

    def __post_init__(self) -> None:
        if self.first_seed + self.episodes > self.check_seed:
            raise ValueError(
                f"episodes {self.episodes}: at most {self.check_seed - self.first_seed} keep the check's seeds apart"
            )


def cache_root() -> Path:
    """`$RAGEN_CACHE`, else `$XDG_CACHE_HOME/ragen`, else `~/.cache/ragen`."""
    if own := os.environ.get("RAGEN_CACHE"):
        return Path(own).expanduser().resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().resolve() / "ragen"


def path(recipe: Recipe = Recipe(), *, force: bool = False, progress: bool = True) -> Path:
    """Folder of the model, built first where the cache lacks it (minutes). Two callers at once build it once.

    Args:
        recipe: what to build; each recipe has its own folder.
        force: build even if it is there.
        progress: show a bar while building.
    """
    folder = cache_root() / f"tiny-{_fingerprint(recipe)}"
    if folder.is_dir() and not force:
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    asked_at = time.time()
    with FileLock(f"{folder}.lock"):
        # Whoever waited here finds what the other one built.
        if folder.is_dir() and (not force or folder.stat().st_mtime > asked_at):
            return folder
        build(recipe, folder, progress=progress)
    return folder


def build(recipe: Recipe, folder: Path, *, progress: bool = True) -> None:
    """Make the model and put it at `folder` in one rename; what was there is replaced.

    Deterministic by `recipe.seed` on one machine (same libraries and number of threads).
    """
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    started = time.monotonic()
    specs, context = _settings()
    tokenizer = make_tokenizer(recipe)
    token_id = tokenizer.convert_tokens_to_ids
    # Not Qwen2: for that type transformers 5 loads any tokenizer as Qwen's own, which would cut our text otherwise.
    with torch.random.fork_rng(devices=[]):  # weights are drawn from torch's global generator: leave it as it was
        torch.manual_seed(recipe.seed)
        model = Qwen3ForCausalLM(
            Qwen3Config(
                # Exactly the tokenizer's size: a rollout engine masks surplus rows, the trainer does not.
                vocab_size=len(tokenizer),
                hidden_size=recipe.hidden_size,
                intermediate_size=recipe.intermediate_size,
                num_hidden_layers=recipe.layers,
                num_attention_heads=recipe.heads,
                head_dim=recipe.hidden_size // recipe.heads,
                num_key_value_heads=recipe.heads,
                max_position_embeddings=4096,
                rope_parameters={"rope_type": "default", "rope_theta": recipe.rope_theta},
                initializer_range=recipe.init_std,
                tie_word_embeddings=True,
                bos_token_id=None,
                eos_token_id=token_id(EOS),
                pad_token_id=token_id(PAD),
                dtype="float32",
            )
        )
    model.generation_config = GenerationConfig(eos_token_id=token_id(EOS), pad_token_id=token_id(PAD), do_sample=True)
    lessons = scripted_play(recipe, ContextManager(tokenizer, context), specs)
    losses = _teach(model, lessons, recipe, progress=progress)

    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        record = {
            "recipe": dataclasses.asdict(recipe),
            "parameters": model.num_parameters(),
            "script_success": float(np.mean([lesson.success for lesson in lessons])),
            "loss_first": losses[0],
            "loss_last": float(np.mean(losses[-10:])),
            "build_s": round(time.monotonic() - started, 1),
            "versions": _versions(),
        }
        (unfinished / CHECK_FILE).write_text(json.dumps(record, indent=2) + "\n")
        unfinished.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def check(folder: Path, recipe: Recipe = Recipe(), *, episodes: int = 256) -> dict[str, dict[str, float]]:
    """Play held-out episodes at temperature 1 over the full vocabulary; the numbers also go into `warm_start.json`.

    Returns tag → {valid_replies, success, script_success, tokens_per_reply, episodes}: `valid_replies` is the share of
    turns without a format fault, `script_success` what the script of the warm start reaches on the same levels.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    specs, context = _settings()
    ctx = ContextManager(AutoTokenizer.from_pretrained(folder), context)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
    measured = {}
    for tag in recipe.tags:
        tasks = [EpisodeTask(tag, index, 0, recipe.check_seed + index) for index in range(episodes)]
        played = _play(TorchPolicy(model, ctx.tokenizer.eos_token_id), tasks, ctx, specs, recipe.seed)
        scripted = _play(ScriptedPolicy(mixed_actions(recipe.skill), ctx), tasks, ctx, specs, recipe.seed)
        turns = sum(t.num_turns for t in played)
        measured[tag] = {
            "valid_replies": 1 - sum(t.metrics["format_faults"] for t in played) / turns,
            "success": float(np.mean([t.metrics["success"] for t in played])),
            "script_success": float(np.mean([t.metrics["success"] for t in scripted])),
            "tokens_per_reply": float(sum(t.policy_mask.sum() for t in played) / turns),
            "episodes": episodes,
        }
    record = json.loads((folder / CHECK_FILE).read_text()) if (folder / CHECK_FILE).is_file() else {}
    (folder / CHECK_FILE).write_text(json.dumps({**record, "check": measured}, indent=2) + "\n")
    return measured


# --- settings and prompts --------------------------------------------------------------------------------------------


def _settings() -> tuple[dict[str, EnvSpec], ContextConfig]:
    """Environments and context settings of the config `quickstart`."""
    cfg = load("quickstart")
    return load_specs(cfg.custom_envs), composed_context_config(cfg)


class _Renderer:
    """A tokenizer where text is wanted: its 'ids' are characters and special tokens. Needs no torch."""

    chat_template = CHAT_TEMPLATE

    def apply_chat_template(self, messages, chat_template, tokenize, add_generation_prompt) -> str:
        return jinja2.Template(chat_template).render(messages=messages, add_generation_prompt=add_generation_prompt)

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[str]]:
        return {"input_ids": re.findall(f"{_SPECIAL}|.", text, re.DOTALL)}

    def decode(self, ids: list[str], skip_special_tokens: bool) -> str:
        return "".join(ids)


def sample_texts(recipe: Recipe) -> list[str]:
    """What the model will read: first prompts, suffixes and replies of every tag, with and without thinking."""
    specs, quickstart = _settings()
    variants = [quickstart]
    for think in (False, True):
        variants.append(
            dataclasses.replace(quickstart, enable_think=think, format_reminder=True, max_actions_per_turn=5)
        )
    texts = []
    for context in variants:
        ctx = ContextManager(_Renderer(), context)
        for tag in recipe.tags:
            # A good turn and bad ones: every sentence that a prompt may hold.
            for reply in (None, "nonsense", "<answer></answer>", "<answer>Jump || {first} || {first}</answer>"):
                texts.extend(asyncio.run(_first_turn(ctx, specs, EpisodeTask(tag, 0, 0, recipe.check_seed), reply)))
    return list(dict.fromkeys(texts))


async def _first_turn(
    ctx: ContextManager, specs: dict[str, EnvSpec], task: EpisodeTask, reply: str | None
) -> list[str]:
    es = EnvStateManager(specs, Split(1, 1, (task.tag,), (1,)), run_seed=0, base_seed=task.seed)
    async with es.episode(task) as episode:
        await episode.start()
        prompt = ctx.initial_ids(episode.description, episode.observation, max_actions=episode.actions_left)
        names = list(episode.description.actions)
        thought = "<think></think>" if ctx.config.enable_think else ""
        ids = ctx.reply_ids(names[:1]) if reply is None else list(thought + reply.format(first=names[0]))
        outcome = await episode.step(ctx.parse(ids)[1], ctx.config.max_actions_per_turn)
        suffix = ctx.suffix_ids(
            ids,
            outcome.observation,
            turn=1,
            reward=outcome.env_reward + outcome.penalty,
            actions_left=episode.actions_left,
            notes=outcome.notes,
        )
    es.close()
    return ["".join(prompt), "".join(suffix), "".join(ctx.reply_ids(names, thought="thought")), *names]


def _fingerprint(recipe: Recipe) -> str:
    """Ten hex digits that change with the recipe, the wording of the prompts, the levels and the library versions."""
    shape = [dataclasses.asdict(recipe), CHAT_TEMPLATE, _PIECES, sample_texts(recipe), _versions()]
    return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:10]


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in ("torch", "transformers", "tokenizers", "numpy")}


# --- tokenizer -------------------------------------------------------------------------------------------------------


def make_tokenizer(recipe: Recipe) -> Any:
    """A fast Hugging Face tokenizer: one token for each word of our prompts, each byte otherwise.

    Board symbols and action names are single tokens. `<think>`, `<answer>`, their ends and `||` are single, ordinary
    tokens (a decode that skips special tokens keeps them); special are `<|im_start|>`, `<|im_end|>`, `<|endoftext|>`.
    """
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    core = _core_tokenizer(_words(sample_texts(recipe)))
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (PAD, OPEN, EOS)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=EOS,
        pad_token=PAD,
        additional_special_tokens=[OPEN],
        chat_template=CHAT_TEMPLATE,
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
    )


def _core_tokenizer(words: Iterable[str]) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = dict.fromkeys([*sorted(pre_tokenizers.ByteLevel.alphabet()), *words])
    # No merges: a piece is one token where the vocabulary holds it whole (ignore_merges), else its bytes.
    core = Tokenizer(models.BPE({piece: i for i, piece in enumerate(vocabulary)}, [], ignore_merges=True))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    return core


def _words(texts: Iterable[str]) -> list[str]:
    """Pieces of `texts` longer than a byte, byte-level encoded, sorted."""
    cut = _core_tokenizer(()).pre_tokenizer.pre_tokenize_str
    spans = (span for text in (*texts, "<think></think><answer></answer>||") for span in re.split(_SPECIAL, text))
    return sorted({piece for span in spans for piece, _ in cut(span) if len(piece) > 1})


# --- play ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Lesson:
    """Tokens to learn from: a scripted episode, or one turn of it. T tokens."""

    token_ids: np.ndarray
    """(T,) int64."""
    policy_mask: np.ndarray
    """(T,) bool. True: taught."""
    turn_ids: np.ndarray
    """(T,) int64."""
    chances: dict[int, dict[int, float]]
    """Index of an action's token → token id → the script's chance of writing it. Other tokens are taught as written."""
    success: bool = False

    def turns(self) -> list[Lesson]:
        """Each turn after the first by itself: what it reads, without all that came before, and its reply."""
        cut = []
        for turn in range(1, int(self.turn_ids[-1]) + 1):
            first, stop = np.searchsorted(self.turn_ids, [turn, turn + 1])
            chances = {at - first: chance for at, chance in self.chances.items() if first <= at < stop}
            columns = (column[first:stop] for column in (self.token_ids, self.policy_mask, self.turn_ids))
            cut.append(Lesson(*columns, chances))
        return cut


def scripted_play(recipe: Recipe, ctx: ContextManager, specs: dict[str, EnvSpec]) -> list[Lesson]:
    """Episodes of the script, each on its own level, tags in turn.

    What is taught of an action is the script's chances and not its draw: the same on average, with far less noise.
    """
    best: dict[EpisodeTask, list[str | None]] = {}
    names: dict[EpisodeTask, tuple[str, ...]] = {}
    play = mixed_actions(recipe.skill)

    async def recorded(episode: Any, rng: np.random.Generator) -> list[str]:
        best.setdefault(episode.task, []).append(await episode.oracle_action())
        names[episode.task] = episode.description.actions
        return await play(episode, rng)

    tasks = [
        EpisodeTask(recipe.tags[index % len(recipe.tags)], index, 0, recipe.first_seed + index)
        for index in range(recipe.episodes)
    ]
    played = _play(ScriptedPolicy(recorded, ctx), tasks, ctx, specs, recipe.seed)
    return [_lesson(t, best[task], names[task], ctx, recipe.skill) for task, t in zip(tasks, played, strict=True)]


def _lesson(t: Trajectory, best: list[str | None], names: tuple[str, ...], ctx: ContextManager, skill: float) -> Lesson:
    replies = np.array(
        [ctx.reply_ids([name]) for name in names]
    )  # ragged, hence an error, if an action is several tokens
    (place,) = np.flatnonzero((replies != replies[0]).any(0))
    tokens = dict(zip(names, replies[:, place].tolist(), strict=True))
    starts = np.flatnonzero(np.diff(t.policy_mask.astype(int), prepend=0) == 1)
    chances = {}
    for start, action in zip(starts, best, strict=True):
        known = skill if action is not None else 0.0
        chances[int(start + place)] = {
            token: (1 - known) / len(names) + known * (name == action) for name, token in tokens.items()
        }
    return Lesson(t.token_ids, t.policy_mask, t.turn_ids, chances, bool(t.metrics["success"]))


def _play(
    policy: Any, tasks: list[EpisodeTask], ctx: ContextManager, specs: dict[str, EnvSpec], seed: int
) -> list[Trajectory]:
    tags = tuple(dict.fromkeys(task.tag for task in tasks))
    # Every episode holds its environment at once, so that a batching policy sees them all.
    roomy = {tag: dataclasses.replace(specs[tag], max_workers=len(tasks)) for tag in tags}
    es = EnvStateManager(roomy, Split(len(tags), 1, tags, (1,) * len(tags)), run_seed=seed, base_seed=0)
    try:
        played = asyncio.run(LLMAgentProxy(es, ctx, policy).rollout(tasks))
    finally:
        es.close()
    failed = [t for t in played if not t.usable]
    if failed:
        raise RuntimeError(
            f"{len(failed)} of {len(tasks)} episodes failed, first {failed[0].tag} seed {failed[0].seed}: see the log"
        )
    return played


class TorchPolicy:
    """A transformers model in this process as a policy: replies asked for at the same time are sampled in batches.

    Samples over the full vocabulary, without top-k or top-p. What one reply draws depends on its own seed alone.

    Args:
        model: causal LM, in eval mode.
        eos_token_id: ends a reply.
        batch_size: most sequences in one forward pass.
    """

    def __init__(self, model: Any, eos_token_id: int, batch_size: int = 64):
        self._model, self._eos, self._batch_size = model, eos_token_id, batch_size
        self._waiting: list[tuple[list[int], Sampling, asyncio.Future[Generation]]] = []

    async def generate(
        self, prompt_ids: list[int], sampling: Sampling, images: Any = None, episode: str = ""
    ) -> Generation:
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._flush_when_quiet, 0)
        future: asyncio.Future[Generation] = loop.create_future()
        self._waiting.append((prompt_ids, sampling, future))
        return await future

    def _flush_when_quiet(self, seen: int) -> None:
        """Sample once a few rounds of the event loop have brought no further request."""
        quiet_rounds, count = seen % 1000, len(self._waiting)
        if seen // 1000 != count:
            quiet_rounds = 0
        if quiet_rounds < 20:
            asyncio.get_running_loop().call_soon(self._flush_when_quiet, count * 1000 + quiet_rounds + 1)
            return
        waiting, self._waiting = sorted(self._waiting, key=lambda request: len(request[0])), []
        for start in range(0, len(waiting), self._batch_size):
            batch = waiting[start : start + self._batch_size]
            replies = sample_batch(self._model, [ids for ids, _, _ in batch], [s for _, s, _ in batch], self._eos)
            for (_, _, future), reply in zip(batch, replies, strict=True):
                if not future.done():
                    future.set_result(reply)


def sample_batch(model: Any, prompts: list[list[int]], samplings: list[Sampling], eos: int) -> list[Generation]:
    """One reply to each prompt, over the full vocabulary, each from its own seed."""
    import torch

    width = max(map(len, prompts))
    ids = torch.full((len(prompts), width), eos)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    limit = max(s.max_tokens for s in samplings)
    draws = torch.tensor(np.stack([np.random.default_rng(s.seed).random(limit) for s in samplings]))
    temperature = torch.tensor([[max(s.temperature, 1e-6)] for s in samplings])
    tokens: list[list[int]] = [[] for _ in prompts]
    log_probs: list[list[float]] = [[] for _ in prompts]
    cache, positions = None, mask.cumsum(1).sub(1).clamp(min=0)
    with torch.inference_mode():
        for step in range(limit):
            out = model(
                ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache, logits = out.past_key_values, out.logits[:, -1].float() / temperature
            share = logits.double().softmax(-1).cumsum(-1)
            chosen = torch.searchsorted(share, draws[:, step : step + 1] * share[:, -1:]).clamp(
                max=logits.shape[-1] - 1
            )
            chosen_log_probs = logits.log_softmax(-1).gather(1, chosen)[:, 0].tolist()
            going = False
            for row, token in enumerate(chosen[:, 0].tolist()):
                if len(tokens[row]) < samplings[row].max_tokens and (not tokens[row] or tokens[row][-1] != eos):
                    tokens[row].append(token)
                    log_probs[row].append(chosen_log_probs[row])
                    going = going or (token != eos and len(tokens[row]) < samplings[row].max_tokens)
            if not going:
                break
            ids, positions = chosen, positions[:, -1:] + 1
            mask = torch.cat([mask, torch.ones_like(chosen)], 1)
    return [Generation(*pair) for pair in zip(tokens, log_probs, strict=True)]


# --- warm start ------------------------------------------------------------------------------------------------------


def _teach(model: Any, lessons: list[Lesson], recipe: Recipe, *, progress: bool) -> list[float]:
    """Supervised steps on the policy's tokens alone; returns the mean loss of each batch (nats a token)."""
    import torch

    rng = np.random.default_rng([recipe.seed, 1])
    turns = [turn for lesson in lessons for turn in lesson.turns()]
    batches = [
        *_batches(turns, recipe.turns_per_batch, recipe.turn_batches, rng),
        *_batches(lessons, recipe.episodes_per_batch, recipe.episode_batches, rng),
    ]
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in named if p.ndim != 2 or "embed" in name]
    optimizers = [
        torch.optim.Muon(matrices, lr=recipe.matrix_learning_rate, weight_decay=0.0),
        torch.optim.AdamW(others, lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.01),
    ]

    def share_of_rate(step: int) -> float:  # a short rise, then half a cosine
        return min(1.0, (step + 1) / 20) * 0.5 * (1 + math.cos(math.pi * step / len(batches)))

    schedules = [torch.optim.lr_scheduler.LambdaLR(optimizer, share_of_rate) for optimizer in optimizers]
    model.train()
    losses = []
    with tqdm(batches, desc="tiny model: warm start", unit="batch", disable=not progress) as bar:
        for batch in bar:
            ids, taught, targets = _collate(batch, model.config.vocab_size)
            hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
            loss = torch.nn.functional.cross_entropy(model.lm_head(hidden[taught]), targets)
            model.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for stepped in (*optimizers, *schedules):
                stepped.step()
            losses.append(loss.item())
            bar.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
    model.eval()
    return losses


def _batches(lessons: list[Lesson], size: int, count: int, rng: np.random.Generator) -> list[list[Lesson]]:
    """`count` batches in random order, lessons of like length together (padding costs time)."""
    rounds = math.ceil(count * size / len(lessons))
    order = np.concatenate([rng.permutation(len(lessons)) for _ in range(rounds)])[: count * size]
    window = 16 * size
    alike = [
        index
        for start in range(0, len(order), window)
        for index in sorted(order[start : start + window], key=lambda i: len(lessons[i].token_ids))
    ]
    return [[lessons[i] for i in alike[n * size : (n + 1) * size]] for n in rng.permutation(count)]


def _collate(batch: list[Lesson], vocab_size: int) -> tuple[Any, Any, Any]:
    """What one step needs of B lessons, of at most T + 1 tokens.

    Returns:
        ids (B, T) int64, right-padded with 0, the last token of each left out; taught (B, T) bool, True where the next
        token is the policy's, N in all; targets (N, vocab_size) float32, the chances of that next token.
    """
    import torch

    width = max(len(lesson.token_ids) for lesson in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    taught = torch.zeros(len(batch), width, dtype=torch.bool)
    rows: list[dict[int, float]] = []
    for row, lesson in enumerate(batch):
        length = len(lesson.token_ids)
        ids[row, :length] = torch.from_numpy(lesson.token_ids)
        taught[row, :length] = torch.from_numpy(lesson.policy_mask)
        written = lesson.token_ids.tolist()
        rows.extend(lesson.chances.get(at, {written[at]: 1.0}) for at in np.flatnonzero(lesson.policy_mask).tolist())
    targets = torch.zeros(len(rows), vocab_size)
    for row, chances in enumerate(rows):
        targets[row, list(chances)] = torch.tensor(list(chances.values()))
    return ids[:, :-1], taught[:, 1:], targets
