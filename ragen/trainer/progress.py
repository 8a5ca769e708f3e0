"""The progress bar of a rollout: episodes and turns done, failures, and the slowest environment."""

from __future__ import annotations

import sys
import threading

from tqdm import tqdm

from ragen.llm_agent.agent_proxy import LLMAgentProxy, Progress

#: Seconds between two redraws on a terminal, and in a log file.
TERMINAL_S, LOG_S = 0.2, 30.0


class RolloutBar:
    """Follows a proxy's progress from now on until `total` episodes are done or `close` is called."""

    def __init__(self, name: str, total: int, proxy: LLMAgentProxy):
        proxy.progress = Progress(on_change=self._update)
        self._lock = threading.Lock()
        interval = TERMINAL_S if sys.stderr.isatty() else LOG_S
        self._bar = tqdm(total=total, desc=name, unit="ep", leave=False, mininterval=interval, dynamic_ncols=True)

    def _update(self, progress: Progress) -> None:
        with self._lock:
            if self._bar.disable:
                return
            postfix = f"turns {progress.turns_done}"
            if progress.failed:
                postfix += f", failed {progress.failed}"
            if progress.episodes_done < progress.episodes:
                postfix += f", slowest {progress.slowest()}"
            self._bar.set_postfix_str(postfix, refresh=False)
            self._bar.update(progress.episodes_done - self._bar.n)

    def close(self) -> None:
        """Remove the bar. Safe to call twice."""
        with self._lock:
            self._bar.close()

    def __enter__(self) -> RolloutBar:
        return self

    def __exit__(self, *exc) -> None:
        self.close()
