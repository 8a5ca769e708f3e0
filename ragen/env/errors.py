"""What can be wrong with an environment before it is ever stepped. Messages name the key, its value and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EnvConfigError(ValueError):
    """An entry of `config/envs.yaml`, an `env_type` or an `env_config` that cannot work as written."""


class MissingDependency(ImportError):
    """The environment exists, but a package that it needs is not installed."""


class MissingData(MissingDependency):
    """The environment exists, but files that it needs and that do not come with RAGEN are not there."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`did you mean 'x'? known: a, b, x`, the first half only where a name is close."""
    known = sorted(known)
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(str(name).lower(), by_lower, n=1, cutoff=0.5)
    hint = f"did you mean {by_lower[close[0]]!r}? " if close else ""
    return f"{hint}known: {', '.join(known) or 'none'}"
