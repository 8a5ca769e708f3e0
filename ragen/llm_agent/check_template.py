"""Shows that the right tokens are trained under a model's chat template.

    python -m ragen.llm_agent.check_template MODEL [--config-name NAME] [key=value …]

MODEL is a folder, a hub name, tiny or smollm. Prints an episode, token by token, as it would be trained under the
config, and the verdicts of all checks (docs/templates.md). Exit status: 0 the training would be right, 1 it would not,
2 usage.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ragen.config.compose import load
from ragen.env.registry import load_specs
from ragen.llm_agent.policy import SCRIPTS, ScriptedPolicy
from ragen.llm_agent.replies import reply_format
from ragen.llm_agent.template_checks import Subject, Verdict, check_template, play, stop_ids
from ragen.llm_agent.trajectory import Trajectory
from ragen.trainer.settings import composed_context_config

_STYLES = {"sampled": "bold green", "environment": "cyan", "template": "magenta", "reward": "yellow"}
_VERDICT_STYLES = {"ok": "green", "adapted": "yellow", "wrong": "bold red"}


@dataclass(frozen=True)
class Span:
    """Tokens in a row that one writer wrote."""

    writer: str
    """sampled (by the policy: these are trained), environment, or template."""
    turn: int
    token_ids: list[int]
    text: str


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit status."""
    options = _parser().parse_intermixed_args(argv)
    try:
        cfg = load(options.config_name, options.overrides, options.config_dir)
        context = composed_context_config(cfg)
        reply_format(context.parser)
    except ValueError as error:  # a ConfigError among them
        print(error, file=sys.stderr)
        return 2
    try:
        tokenizer, folder = load_model_tokenizer(options.model)
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        print(f"{options.model}: no tokenizer can be loaded: {reason}", file=sys.stderr)
        return 2
    verdicts = check_template(tokenizer, context, stop_ids(tokenizer, folder))
    right = all(verdict.status != "wrong" for verdict in verdicts)
    episode = _episode(cfg, tokenizer, options.policy, options.seed)
    if options.json:
        print(json.dumps(_record(options, verdicts, right, episode), indent=2, ensure_ascii=False))
    else:
        _show(Console(highlight=False), options, verdicts, right, episode)
    return 0 if right else 1


def load_model_tokenizer(model: str) -> tuple[Any, Path | None]:
    """The tokenizer of a folder, a hub name, `tiny` or `smollm`, and the folder that tells where replies end.

    Raises:
        OSError, ValueError: there is no such model, or no tokenizer in it.
        ImportError: `smollm` needs packages that are not installed.
    """
    if model == "tiny":
        from ragen.tiny_model import Recipe, make_tokenizer

        return make_tokenizer(Recipe()), None  # a model that is built has the same, and its end token alone
    from huggingface_hub import try_to_load_from_cache
    from transformers import AutoTokenizer

    from ragen.config.to_verl import resolve_model_path

    name = resolve_model_path(model)
    tokenizer = AutoTokenizer.from_pretrained(name)
    if Path(name).is_dir():
        return tokenizer, Path(name)
    found = (try_to_load_from_cache(name, file) for file in ("generation_config.json", "tokenizer_config.json"))
    return tokenizer, next((Path(path).parent for path in found if isinstance(path, str)), None)


def spans(subject: Subject, t: Trajectory) -> list[Span]:
    """The tokens of an episode of context mode `full`, by who wrote them."""
    found: list[Span] = []
    for turn in range(t.num_turns):
        mine = t.turn_ids == turn
        read, wrote = (t.token_ids[mine & (t.policy_mask == mask)].tolist() for mask in (False, True))
        head, _, tail = _around(subject, first=t.context_starts[turn] == np.flatnonzero(mine)[0])
        start = _shared(read, subject.encode(head))
        stop = len(read) - _shared(read[start:][::-1], subject.encode(tail)[::-1])
        said = [("template", read[:start]), ("environment", read[start:stop]), ("template", read[stop:])]
        for writer, ids in [*said, ("sampled", wrote)]:
            if ids:
                found.append(Span(writer, turn, ids, subject.tokenizer.decode(ids, skip_special_tokens=False)))
    return found


def _around(subject: Subject, *, first: bool) -> tuple[str, str, str]:
    """What the template writes before and after what the environment says."""
    user = "RAGENUSERGOESHERE"
    return (subject.ctx._render(subject.ctx._messages(user)) if first else subject.after_reply(user)).partition(user)


def _shared(ids: list[int], template: list[int]) -> int:
    """How many of the first `ids` are the template's; its own first one is missing where it was sampled already."""
    best = 0
    for own in (template, template[1:]):
        count = 0
        while count < min(len(ids), len(own)) and ids[count] == own[count]:
            count += 1
        best = max(best, count)
    return best


def _episode(cfg: DictConfig, tokenizer: Any, policy: str, seed: int) -> tuple[Trajectory, list[Span]] | None:
    """An episode of the config's first training tag; None where none can be played."""
    tag = cfg.es_manager.train.env_configs.tags[0]
    try:
        subject = Subject(tokenizer, composed_context_config(cfg))
        [t] = play(
            subject.ctx, ScriptedPolicy(SCRIPTS[policy], subject.ctx), tag, load_specs(cfg.custom_envs), seed=seed
        )
    except Exception as error:  # the verdicts say what is wrong with the template
        print(f"no episode of {tag} could be played: {error}", file=sys.stderr)
        return None
    return (t, spans(subject, t)) if t.usable else None


# --- output ----------------------------------------------------------------------------------------------------------


def _record(options: Any, verdicts: list[Verdict], right: bool, episode: Any) -> dict[str, Any]:
    record: dict[str, Any] = {"model": options.model, "config": options.config_name, "right": right}
    record["checks"] = [asdict(verdict) for verdict in verdicts]
    if episode is not None:
        t, found = episode
        record["episode"] = {
            "tag": t.tag, "seed": t.seed, "end_reason": t.end_reason, "return": t.episode_return,
            "turn_rewards": t.turn_rewards.tolist(), "spans": [asdict(span) for span in found],
        }  # fmt: skip
    return record


def _show(console: Console, options: Any, verdicts: list[Verdict], right: bool, episode: Any) -> None:
    if episode is not None:
        t, found = episode
        last = {span.turn: span for span in found}
        console.print(f"An episode of {t.tag}, seed {t.seed}, policy {options.policy}:\n")
        for span in found:
            for line in span.text.replace("\n", "⏎\n").splitlines():
                console.print(
                    Text.assemble((f"{span.writer:>11} ", "dim"), "│ ", (line, _STYLES[span.writer])), soft_wrap=True
                )
            if span is last[span.turn]:
                reward = f"turn {span.turn + 1} ends, reward {t.turn_rewards[span.turn]:g}"
                console.print(Text.assemble((f"{'':>11} ", "dim"), "└ ", (reward, _STYLES["reward"])))
        sampled = int(t.policy_mask.sum())
        console.print(
            f"\n{sampled} of {len(t.token_ids)} tokens are trained; return {t.episode_return:g}, {t.end_reason}\n"
        )
    table = Table(title=f"{options.model} under {options.config_name}", title_justify="left", box=box.SIMPLE)
    table.add_column("check", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("", overflow="fold")
    for verdict in verdicts:
        words = f"{verdict.says}; {verdict.fix}" if verdict.fix else verdict.says
        table.add_row(verdict.check, Text(verdict.status, _VERDICT_STYLES[verdict.status]), Text(words))
    console.print(table)
    console.print("The right tokens are trained." if right else "A training would be wrong.")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ragen.llm_agent.check_template",
        description="Shows that the right tokens are trained under a model's chat template.",
        epilog="exit status: 0 the training would be right, 1 it would not, 2 usage",
    )
    parser.add_argument("model", metavar="MODEL", help="a folder, a hub name, tiny or smollm")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings that differ from the config")
    parser.add_argument("--config-name", "-cn", default="quickstart", metavar="NAME", help="default: quickstart")
    parser.add_argument("--config-dir", "-cd", metavar="DIR", help="a folder with configs of your own")
    parser.add_argument("--policy", choices=sorted(SCRIPTS), default="oracle", help="who plays the episode shown")
    parser.add_argument("--seed", type=int, default=0, help="level of the episode shown")
    parser.add_argument("--json", action="store_true", help="print verdicts and episode as JSON")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
