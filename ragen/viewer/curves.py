"""Training curves of several runs on one page: seeds of one config as mean and band, and how the configs differ.

matplotlib draws them as SVG inside the page: no script, sharp at any size, the same library that makes figures for a
paper, and a few dozen kilobytes a chart, where interactive chart libraries add megabytes to every page.
"""

from __future__ import annotations

import fnmatch
import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from tqdm import tqdm

__all__ = ["CurvesError", "DEFAULT_METRICS", "Experiment", "Run", "charts", "differences", "experiments", "load_run"]

#: Charts of a page, in this order, unless --metrics names others.
DEFAULT_METRICS = (
    "val-env/*/success",
    "train/*/success",
    "train/*/return",
    "train/*/num_turns",
    "train/response_length",
    "rollout/in_group_std",
    "rollout/groups_kept",
    "actor/entropy",
    "actor/pg_loss",
    "actor/grad_norm",
    "actor/ppo_kl",
    "critic/vf_loss",
    "critic/vf_explained_var",
    "training/rollout_log_prob_diff_mean",
    "timing_s/step",
)
#: Config keys that make no other experiment: the seed, and where things are written and shown.
_NOT_EXPERIMENT = ("seed", "trainer.output_dir", "trainer.default_local_dir", "trainer.experiment_name",
                   "trainer.project_name", "trainer.logger", "trainer.rollout_data_dir",
                   "trainer.validation_data_dir", "trainer.resume_mode", "trainer.resume_from_path")  # fmt: skip
#: Colours that can be told apart on white and on black, and by most colour-blind readers (Okabe and Ito 2008).
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8f7fe0", "#7f7f7f")
_MISSING = "(unset)"


class CurvesError(ValueError):
    """No curves where they were looked for."""


@dataclass(frozen=True)
class Run:
    """One run's folder, read."""

    name: str
    config: dict[str, Any]
    """Dotted key → value; empty where the run kept no config.yaml."""
    series: dict[str, dict[int, float]]
    """Metric → step → value."""


@dataclass
class Experiment:
    """Runs that differ in nothing but the seed."""

    runs: list[Run]
    label: str = ""
    colour: str = field(default=_COLOURS[0])

    def band(self, metric: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
        """(steps, mean, low, high) over the seeds that have the step; low and high are one standard deviation off.

        None: no run has the metric.
        """
        at: dict[int, list[float]] = {}
        for run in self.runs:
            for step, value in run.series.get(metric, {}).items():
                at.setdefault(step, []).append(value)
        if not at:
            return None
        steps = np.asarray(sorted(at))
        mean = np.asarray([np.mean(at[step]) for step in steps])
        spread = np.asarray([np.std(at[step], ddof=1) if len(at[step]) > 1 else 0.0 for step in steps])
        return steps, mean, mean - spread, mean + spread


def load_run(folder: Path) -> Run:
    """Read `metrics.jsonl` and `config.yaml` of a run. A last line that a crash cut is left out.

    Raises:
        CurvesError: no metrics.jsonl, or a line that is none of it.
    """
    path = folder / "metrics.jsonl" if folder.is_dir() else folder
    if not path.is_file():
        raise CurvesError(f"{folder}: holds no metrics.jsonl; name a run's folder")
    series: dict[str, dict[int, float]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(keepends=True), start=1):
        if not line.endswith("\n"):
            break
        try:
            record = json.loads(line)
            step = int(record.pop("step"))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise CurvesError(f"{path}:{number}: no line of metrics: {error!r}") from error
        for name, value in record.items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                series.setdefault(name, {})[step] = float(value)
    if not series:
        raise CurvesError(f"{path}: holds no step yet")
    config = path.parent / "config.yaml"
    values = OmegaConf.to_container(OmegaConf.load(config), resolve=False) if config.is_file() else {}
    return Run(path.resolve().parent.name, dict(_leaves(values)), series)


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from _leaves(value, f"{prefix}.{key}" if prefix else str(key))
    elif prefix:
        yield prefix, node


def experiments(runs: Sequence[Run]) -> list[Experiment]:
    """Group runs that differ in nothing but the seed, in their order, with a colour and a label each.

    A run without a config is an experiment of its own.
    """
    found: dict[Any, Experiment] = {}
    for number, run in enumerate(runs):
        own = {key: value for key, value in run.config.items() if not _ignored(key)}
        key = json.dumps(own, sort_keys=True, default=str) if own else number
        found.setdefault(key, Experiment([])).runs.append(run)
    result = list(found.values())
    names = [re.sub(r"(-seed\d+)?(-[0-9a-f]{8})?(-\d+)?$", "", one.runs[0].name) for one in result]
    for number, (one, name) in enumerate(zip(result, names, strict=True)):
        one.label = name if names.count(name) == 1 else f"{name} ({chr(ord('A') + number)})"
        one.colour = _COLOURS[number % len(_COLOURS)]
    return result


def _ignored(key: str) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in _NOT_EXPERIMENT)


def differences(groups: Sequence[Experiment]) -> list[tuple[str, list[str]]]:
    """(key, value in each experiment) of every config key in which they differ, sorted; seeds and paths left out."""
    configs = [one.runs[0].config for one in groups]
    keys = sorted({key for config in configs for key in config if not _ignored(key)})
    rows = [(key, [str(config.get(key, _MISSING)) for config in configs]) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]


def chosen_metrics(groups: Sequence[Experiment], patterns: Iterable[str]) -> list[str]:
    """Names of the metrics that the patterns ask for and a run has, in the patterns' order.

    Raises:
        CurvesError: no metric is like that.
    """
    have = Counter(name for one in groups for run in one.runs for name in run.series)
    patterns = list(patterns)
    names = dict.fromkeys(
        name
        for pattern in patterns
        for name in sorted(have)
        if fnmatch.fnmatchcase(name, pattern) and ("/non-zero/" in pattern or "/non-zero/" not in name)
    )
    if not names:
        raise CurvesError(f"no run has a metric like {', '.join(patterns)}; there are {', '.join(sorted(have))}")
    return list(names)


def charts(groups: Sequence[Experiment], metrics: Sequence[str], *, progress: bool = False) -> list[tuple[str, str]]:
    """(metric, SVG) of each chart.

    Raises:
        CurvesError: matplotlib is missing.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise CurvesError(
            "curves are drawn with matplotlib, which is not installed: pip install 'ragen[viewer]'"
        ) from error
    drawn = []
    # text stays text, so that the page's colours and fonts apply; a fixed salt, so that equal runs give equal pages
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "ragen", "font.family": "sans-serif"}):
        for metric in tqdm(metrics, desc="charts", leave=False, disable=not progress):
            figure = Figure(figsize=(5.6, 3.3), layout="constrained")
            axes = figure.add_subplot()
            for one in groups:
                _draw(axes, one, metric)
            axes.set_xlabel("step")
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25, linewidth=0.6)
            drawn.append((metric, _svg(figure)))
    return drawn


def _draw(axes: Any, one: Experiment, metric: str) -> None:
    band = one.band(metric)
    if band is None:
        return
    steps, mean, low, high = band
    marker = "o" if len(steps) < 15 else None
    axes.plot(steps, mean, color=one.colour, linewidth=1.8, marker=marker, markersize=3, label=one.label)
    if len(one.runs) > 1:
        axes.fill_between(steps, low, high, color=one.colour, alpha=0.18, linewidth=0)
        for run in one.runs:
            own = dict(sorted(run.series.get(metric, {}).items()))
            axes.plot(list(own), list(own.values()), color=one.colour, linewidth=0.6, alpha=0.45)


def _svg(figure: Any) -> str:
    """The figure as an SVG element whose lines and texts take the page's colour."""
    figure.patch.set_alpha(0)
    for axes in figure.axes:
        axes.patch.set_alpha(0)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r'<svg[^>]*viewBox="([^"]+)"[^>]*>', r'<svg viewBox="\1" role="img" class="chart">', text, count=1)
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    for black in ("#000000", "black"):
        text = text.replace(f"fill: {black}", "fill: currentColor").replace(f"stroke: {black}", "stroke: currentColor")
    # texts are black by default and carry no fill of their own
    return text.replace("<text ", '<text fill="currentColor" ').replace("stroke: #b0b0b0", "stroke: currentColor")
