"""What the start is doing, and how long each part took: it takes minutes, and silence looks like a hang."""

from __future__ import annotations

import sys
import time

import psutil


def seconds_since_command() -> float:
    """Seconds since this process was started."""
    return time.time() - psutil.Process().create_time()


def say(what: str) -> None:
    """Print one line of the start-up's time line."""
    print(f"[{seconds_since_command():4.0f} s] {what}", file=sys.stderr, flush=True)
