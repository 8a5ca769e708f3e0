"""Settings of the client of a served environment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class RemoteConfig:
    url: str = ""
    """Where `python -m ragen.env.serve` listens, such as `http://127.0.0.1:8900`."""
    timeout_s: float = 30.0
    """Seconds to wait for one answer. Longer than the server's own limit of a step, or the server cannot report it."""
    retry_s: float = 20.0
    """Seconds for which a call is tried again while the server is full or cannot be reached. Together with `timeout_s`
    it should stay below the tag's `step_timeout_s`."""

    def __post_init__(self):
        if not isinstance(self.url, str) or not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url is {self.url!r}; give the server's address, such as 'http://127.0.0.1:8900'")
        self.url = self.url.rstrip("/")
        for key in ("timeout_s", "retry_s"):
            value = getattr(self, key)
            if type(value) not in (int, float) or not value > 0:
                raise ValueError(f"{key} is {value!r}; give a number of seconds above 0")
