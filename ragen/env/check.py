"""Finds what is unsound in an environment before a training is spent on it.

    python -m ragen.env.check SimpleSokoban           one tag of envs.yaml
    python -m ragen.env.check --all                   all of them
    python -m ragen.env.check my_module:MyEnv         a class of your own, not in envs.yaml yet
    python -m ragen.env.check MyTag --config-name my_experiment --config-dir configs
    python -m ragen.env.check MyTag --only same_episode --seed 10003   see one finding again
    python -m ragen.env.check --all --json > checks.json

The environment runs in a process of its own, under the time limit of its entry: one that hangs or crashes is a finding,
too. Exit status: 0 no fault, 1 at least one, 2 the command itself cannot be carried out. Advice is no fault.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ragen.env.checker.host import TagReport, examine
from ragen.env.checker.registry import all_checks
from ragen.env.checker.worker import FAULT, Finding, Job, Limits
from ragen.env.errors import nearest
from ragen.env.registry import available_env_types

_USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit status."""
    options = _parser().parse_args(argv)
    try:
        jobs = _jobs(options)
    except ValueError as error:
        print(f"ragen.env.check: {error}", file=sys.stderr)
        return _USAGE
    reports = []
    bar = tqdm(jobs, unit="tag", disable=True if len(jobs) == 1 or options.json else None, file=sys.stderr, leave=False)
    for job in bar:
        bar.set_description(job.tag)
        reports.append(examine(job, options.only, here=options.here))
        if not options.json:
            tqdm.write(describe(reports[-1], options.seed, options.config_name), file=sys.stdout)
    if options.json:
        print(json.dumps(as_json(reports), indent=1))
    elif len(reports) > 1:
        print(_summary(reports))
    if len(reports) == 1 and reports[0].missing:
        return _USAGE
    return 1 if any(report.faults for report in reports) else 0


def describe(report: TagReport, seed: int = Job.seed, config_name: str = "base") -> str:
    """A tag's line, and below it what was found."""
    if report.missing:
        return f"{report.tag:<28} skipped: {report.missing}"
    counts = _counts(report.faults, report.advice)
    head = f"{report.tag:<28} {report.status}{f' ({counts})' if counts else ''}: {_measures(report)}"
    lines = [head]
    for finding in report.findings:
        lines += _finding_lines(report.tag, finding, seed, config_name)
    if report.not_checked:
        text = f"not checked until that is put right: {', '.join(report.not_checked)}"
        lines += textwrap.wrap(text, 116, initial_indent="  ", subsequent_indent="      ")
    return "\n".join(lines)


def as_json(reports: Sequence[TagReport]) -> dict[str, Any]:
    """All that was found, in plain values."""
    tags = []
    for report in reports:
        row = {"tag": report.tag, "status": report.status, **dataclasses.asdict(report)}
        for finding in row["findings"]:
            del finding["key"]
        tags.append(row)
    return {
        "tags": tags,
        "faults": sum(report.faults for report in reports),
        "advice": sum(report.advice for report in reports),
    }


def _finding_lines(tag: str, finding: Finding, seed: int, config_name: str) -> list[str]:
    mark = "FAULT" if finding.severity == FAULT else "advice"
    again = f"python -m ragen.env.check {tag} --only {finding.during}"
    if config_name != "base":
        again += f" --config-name {config_name}"
    if (finding.seed or seed) != Job.seed:
        again += f" --seed {finding.seed or seed}"
    rows = {"": finding.what, "where": finding.where, "do": finding.fix, "again": again}
    lines = textwrap.wrap(
        f"{mark} {finding.check}: {rows.pop('')}", 116, initial_indent="  ", subsequent_indent="      "
    )
    for name, text in rows.items():
        lines += textwrap.wrap(f"{name:<6}{text}", 112, initial_indent="      ", subsequent_indent="            ",
                               break_long_words=False, break_on_hyphens=False)  # fmt: skip
    return lines


def _measures(report: TagReport) -> str:
    got = report.measured
    parts = [f"{len(report.checked)} checks in {report.seconds:.1f} s"]
    parts += [f"{name} {_time(got[f'{name}_s'])}" for name in ("reset", "step") if f"{name}_s" in got]
    if "observation_tokens" in got:
        parts.append(f"{got['observation_tokens']:.0f} tokens an observation")
    rates = [f"{name} {got[f'{name}_success']:.0%}" for name in ("oracle", "random") if f"{name}_success" in got]
    return ", ".join(parts + ([f"success {' / '.join(rates)}"] if rates else []))


def _time(seconds: float) -> str:
    return (
        f"{seconds * 1e6:.0f} µs"
        if seconds < 1e-3
        else f"{seconds * 1e3:.1f} ms"
        if seconds < 1
        else f"{seconds:.1f} s"
    )


def _counts(faults: int, advice: int) -> str:
    parts = [f"{faults} fault{'s' * (faults != 1)}"] if faults else []
    return ", ".join(parts + ([f"{advice} advice"] if advice else []))


def _summary(reports: Sequence[TagReport]) -> str:
    number = {status: sum(r.status == status for r in reports) for status in ("sound", "faulty", "skipped")}
    counts = _counts(sum(r.faults for r in reports), sum(r.advice for r in reports)) or "nothing found"
    seconds = sum(r.seconds for r in reports)
    return (
        f"\n{len(reports)} tags: {number['sound']} sound, {number['faulty']} faulty, {number['skipped']} skipped; "
        f"{counts}; {seconds:.0f} s"
    )


# --- what to check ---------------------------------------------------------------------------------------------------


def _jobs(options: argparse.Namespace) -> list[Job]:
    """The entries to check. Raises ValueError (ConfigError is one) where the command names what does not exist."""
    unknown = sorted(set(options.only) - set(all_checks()))
    if unknown:
        raise ValueError(f"--only {unknown[0]}: no such check; {nearest(unknown[0], all_checks())}")
    if options.all == bool(options.targets):
        raise ValueError("name tags or classes, or give --all for every tag")
    entries, limits = read_config(options.config_name, options.config_dir)
    chosen = entries if options.all else {target: _entry(target, entries) for target in options.targets}
    return [
        Job(
            tag=tag,
            entry=entry,
            seed=options.seed,
            episodes=options.episodes,
            limits=limits,
            tokenizer=_tokenizer(options.model),
        )
        for tag, entry in chosen.items()
    ]


def read_config(config_name: str = "base", config_dir: str | None = None) -> tuple[dict[str, Any], Limits]:
    """`custom_envs` of a config, and what it says of contexts. Raises ConfigError."""
    from omegaconf import OmegaConf

    from ragen.config.compose import load

    cfg = load(config_name, (), config_dir)
    proxy, rollout = cfg.agent_proxy, cfg.actor_rollout_ref.rollout
    held = {"limited_multi_turn": 1 + proxy.max_context_window, "single_turn": 1}.get(proxy.context_window_mode, -1)
    limits = Limits(
        max_model_len=rollout.max_model_len,
        response_length=rollout.response_length,
        max_turn=proxy.max_turn,
        turns_seen=1 if proxy.context_overflow == "drop_oldest" else held,
        action_sep=proxy.action_sep,
    )
    return OmegaConf.to_container(cfg.custom_envs, resolve=True), limits


def _entry(target: str, entries: Mapping[str, Any]) -> dict[str, Any]:
    if target in entries:
        return entries[target]
    top = target.partition(":")[0].partition(".")[0]
    if target in available_env_types() or (":" in target or "." in target) and importlib.util.find_spec(top):
        return {"env_type": target}
    raise ValueError(
        f"{target!r} is no tag of custom_envs, and no 'module:Class' whose module {top!r} is on the Python path; "
        f"{nearest(target, entries)}"
    )


def _tokenizer(model: str | None) -> str | None:
    if model is None:
        return None
    path = Path(model).expanduser() / "tokenizer.json"
    if not path.is_file():
        raise ValueError(f"--model {model}: no tokenizer.json there; give a model's folder")
    return str(path)


def _parser() -> argparse.ArgumentParser:
    checks = "\n".join(f"  {check.name:<26}{check.about}" for check in all_checks().values())
    parser = argparse.ArgumentParser(
        prog="python -m ragen.env.check",
        description=__doc__,
        epilog=f"checks, in the order in which they run:\n{checks}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("targets", nargs="*", metavar="TAG|module:Class", help="what to check")
    parser.add_argument("--all", action="store_true", help="every tag of the config's custom_envs")
    parser.add_argument("--episodes", type=_positive, default=Job.episodes, help="seeds to play (default %(default)s)")
    parser.add_argument("--seed", type=_natural, default=Job.seed, help="the first of them (default %(default)s)")
    parser.add_argument("--only", nargs="+", default=[], metavar="CHECK", help="these checks alone")
    parser.add_argument("--here", action="store_true", help="in this process, for a debugger; no time limits")
    parser.add_argument("--json", action="store_true", help="print everything as JSON instead of text")
    parser.add_argument("--model", metavar="FOLDER", help="count tokens with its tokenizer.json instead of estimating")
    parser.add_argument("--config-name", default="base", help="the config that names tags and limits (default base)")
    parser.add_argument("--config-dir", help="a folder of configs of your own")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: give at least 1")
    return number


def _natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text}: give 0 or more")
    return number


if __name__ == "__main__":
    sys.exit(main())
