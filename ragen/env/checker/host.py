"""The checker's own side: runs every check in a worker process, watches its journal, and gathers what was found.

A call of the environment that runs over its limit has its worker killed; it and a call that ends the process are
findings like any other, and the remaining checks go on in a new worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ragen.env.checker.registry import Check, all_checks
from ragen.env.checker.worker import FAULT, JOURNAL_SEP, Bench, Finding, Job, Journal, Report
from ragen.env.isolation import EnvClient, EnvError, EnvPool

#: How often the journal is read, in seconds.
_WATCH_S = 0.05
#: After so many hung or ended workers the rest is not checked: every further one costs its whole time limit.
_MOST_LOST = 2
#: Seconds that a whole check may take; its calls have their own limits.
_CHECK_LIMIT_S = 900.0


@dataclass
class TagReport:
    """What the checks of one environment found."""

    tag: str
    findings: list[Finding] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    """Checks that a fault of another one made pointless."""
    missing: str = ""
    """Nothing was checked: a package is not installed."""
    measured: dict[str, float] = field(default_factory=dict)
    """Medians in seconds (`step_s`, `reset_s`, `build_s`), tokens, and mean success and return by who played."""
    seconds: float = 0.0

    @property
    def faults(self) -> int:
        return sum(finding.severity == FAULT for finding in self.findings)

    @property
    def advice(self) -> int:
        return len(self.findings) - self.faults

    @property
    def status(self) -> str:
        """skipped, faulty or sound."""
        return "skipped" if self.missing else "faulty" if self.faults else "sound"


class _Lost(Exception):
    """The worker was killed because a call hung, or it ended by itself."""

    def __init__(self, finding: Finding):
        super().__init__(finding)
        self.finding = finding


def examine(job: Job, only: Sequence[str] = (), *, here: bool = False) -> TagReport:
    """Run all checks on one entry, or only those named.

    here: in this process, where a debugger can look; nothing stops a call that hangs then.
    """
    with tempfile.TemporaryDirectory(prefix="ragen-check-") as folder:
        path = os.path.join(folder, "journal")
        with open(path, "wb") as file:
            file.write(bytes(Journal.SIZE))
        return asyncio.run(_examine(dataclasses.replace(job, journal=path), only, here))


async def _examine(job: Job, only: Sequence[str], here: bool) -> TagReport:
    started, report = time.monotonic(), TagReport(job.tag)
    journal = Journal(job.journal)
    pool = EnvPool(
        functools.partial(Bench, job),
        tag=job.tag,
        isolate="inline" if here else "process",
        workers=1,
        timeout_s=_CHECK_LIMIT_S,
        preload=[check.run.__module__ for check in all_checks().values()],
    )
    blocked: set[str] = set()
    reusable, lost = False, 0
    try:
        for check in all_checks().values():
            if only and check.name not in only:
                continue
            if blocked.intersection(check.needs) or lost >= _MOST_LOST:
                report.not_checked.append(check.name)
                blocked.add(check.name)
                continue
            try:
                async with pool.lease() as client:
                    result = await _run(client, check, reusable, journal)
            except _Lost as loss:
                lost += 1
                result = Report(findings=[loss.finding], reusable=reusable)
            if result.missing:
                report.missing = result.missing
                break
            reusable = result.reusable
            report.checked.append(check.name)
            report.measured.update(result.measured)
            _add(report, check, result.findings)
            if any(finding.severity == FAULT for finding in result.findings):
                blocked.add(check.name)
    finally:
        pool.close()
    report.seconds = time.monotonic() - started
    return report


def _add(report: TagReport, check: Check, findings: Sequence[Finding]) -> None:
    known = {_key(finding) for finding in report.findings}
    for finding in findings:
        if _key(finding) not in known:
            known.add(_key(finding))
            report.findings.append(dataclasses.replace(finding, during=check.name))


def _key(finding: Finding) -> str:
    return finding.key or f"{finding.check} {finding.what}"


async def _run(client: EnvClient, check: Check, reusable: bool, journal: Journal) -> Report:
    """One check, its calls watched. Raises `_Lost`."""
    journal.end()
    call = asyncio.ensure_future(client.step((check.name, reusable)))
    while not call.done():
        await asyncio.wait({call}, timeout=_WATCH_S)
        running = journal.running()
        if not call.done() and running is not None and running[1] > running[2]:
            call.cancel()  # which kills the worker
            with contextlib.suppress(asyncio.CancelledError, EnvError):
                await call
            raise _Lost(_lost(check, running[0], f"did not return within {running[2]:g} s", "hangs"))
    try:
        return call.result().observation
    except EnvError as error:
        running = journal.running()
        cause = " ".join(error.cause.split())
        story = running[0] if running else JOURNAL_SEP.join((f"the check {check.name}", "", ""))
        raise _Lost(_lost(check, story, f"failed: {cause[:300]}", "crashes")) from error


def _lost(check: Check, entry: str, what: str, code: str) -> Finding:
    story, seed, where = (entry.split(JOURNAL_SEP) + ["", ""])[:3]
    fix = (
        "bound the work of a call; if it is merely slow, raise the entry's step_timeout_s"
        if code == "hangs"
        else "let no call end the process: bound recursion and memory, and never exit"
    )
    method = story.partition("(")[0]
    return Finding(
        code, FAULT, f"{story} {what}", where, fix, int(seed) if seed else None, key=f"{code} {method} {where}",
        during=check.name,
    )  # fmt: skip
