"""Models behind an API: `model_path=api:<name>` plays the entry `model_info.<name>` (docs/evaluation.md).

The key of an endpoint is read from the environment variable that the entry names, when the evaluation starts, and
stands nowhere else: a config that holds one is refused without being shown.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from omegaconf import DictConfig, OmegaConf

from ragen.config.errors import NO_VALUE, ConfigError, Fault, nearest

__all__ = ["API", "API_KEYS", "PROVIDERS", "ApiModel", "api_faults", "read_key", "without_keys"]

#: What a `model_path` of an API's model begins with.
API = "api:"
#: Keys of a config that are this module's.
API_KEYS = ("model_config", "model_info")


@dataclass(frozen=True)
class Provider:
    """Where a provider's models are, unless an entry says otherwise."""

    package: str
    """Whose API it speaks: `openai` or `anthropic`."""
    base_url: str | None
    """None: an entry must say."""
    key_env: str | None
    """None: it wants no key."""


PROVIDERS: dict[str, Provider] = {
    "openai": Provider("openai", "https://api.openai.com/v1", "OPENAI_API_KEY"),
    "anthropic": Provider("anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY"),
    "together": Provider("openai", "https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    "deepseek": Provider("openai", "https://api.deepseek.com", "DEEPSEEK_API_KEY"),
    "vllm": Provider("openai", None, None),
}

_ENTRY = ("provider_name", "model_name", "base_url", "api_key_env", "generation_kwargs", "price_per_million", "seeded")
#: Parameters of a request that are set elsewhere → where.
_TAKEN = {
    "model": "model_info.<name>.model_name",
    "messages": "agent_proxy",
    "system": "agent_proxy.system_prompt",
    "stop": "agent_proxy.stop",
    "stop_sequences": "agent_proxy.stop",
    "seed": "model_info.<name>.seeded",
    "n": "n of the evaluation",
    "stream": "nowhere: a reply comes as a whole",
}
#: Number in `model_config` → least value, and whether null is one.
_NUMBERS: dict[str, tuple[float, bool]] = {
    "max_concurrency": (1, False),
    "requests_per_minute": (0.001, True),
    "max_retries": (0, False),
    "retry_wait_s": (0, False),
    "max_wait_s": (0, False),
    "request_timeout_s": (0.001, False),
}
_KEY_LIKE = re.compile(r"key|token|secret|auth|password|header", re.IGNORECASE)
# upper case: what does not look like this may be the key itself, which must not be shown
_ENV_NAME = re.compile(r"[A-Z_][A-Z0-9_]*")


@dataclass(frozen=True)
class ApiModel:
    """An entry of `model_info`, with its provider's defaults."""

    name: str
    provider_name: str
    model_name: str
    base_url: str
    key_env: str | None
    generation_kwargs: Mapping[str, Any]
    price: Mapping[str, float] | None
    """Per million tokens: `input`, `output`."""
    seeded: bool
    own_url: bool
    """The base_url is the entry's, not the provider's."""

    @classmethod
    def of(cls, cfg: DictConfig) -> ApiModel:
        """The entry that a config without `api_faults` plays."""
        name = str(cfg.model_path).removeprefix(API)
        entry = _entries(cfg)[name]
        provider = PROVIDERS[entry["provider_name"]]
        return cls(
            name=name,
            provider_name=entry["provider_name"],
            model_name=str(entry["model_name"]),
            base_url=(entry.get("base_url") or provider.base_url).rstrip("/"),
            key_env=entry.get("api_key_env") or provider.key_env,
            generation_kwargs=entry.get("generation_kwargs") or {},
            price=entry.get("price_per_million"),
            seeded=bool(entry.get("seeded")),
            own_url=bool(entry.get("base_url")),
        )

    @property
    def facts(self) -> dict[str, Any]:
        """What decides its replies, as far as it can be known; part of an evaluation's identity."""
        return {
            "provider_name": self.provider_name,
            "model_name": self.model_name,
            "base_url": self.base_url,
            "generation_kwargs": dict(self.generation_kwargs),
            "seeded": self.seeded,
        }

    def client(self, key: str, timeout_s: float) -> Any:
        """A `ChatClient` of it."""
        from ragen.llm_agent.api_clients import AnthropicClient, OpenAIClient

        common = {"base_url": self.base_url, "key": key, "model": self.model_name, "timeout_s": timeout_s,
                  "extra": self.generation_kwargs}  # fmt: skip
        if PROVIDERS[self.provider_name].package == "anthropic":
            return AnthropicClient(**common)
        # OpenAI itself has given the limit another name, which its copies do not all know
        limit = "max_completion_tokens" if self.provider_name == "openai" and not self.own_url else "max_tokens"
        return OpenAIClient(**common, limit=limit, seeded=self.seeded, full_top_k=self.provider_name == "vllm")

    @asynccontextmanager
    async def opened(self, ctx: Any, settings: Mapping[str, Any], key: str) -> AsyncIterator[Any]:
        """Its `Policy`. settings: `model_config`."""
        from ragen.llm_agent.api_policy import ApiPolicy, Pace

        client = self.client(key, settings["request_timeout_s"])
        pacing = {name: settings[name] for name in ("max_retries", "retry_wait_s", "max_wait_s")}
        try:
            yield ApiPolicy(client, ctx, name=self.name, pace=Pace(settings["requests_per_minute"]), **pacing)
        finally:
            await client.close()


def read_key(model: ApiModel) -> str:
    """The key of the model's endpoint; a word that says nothing where it wants none.

    Raises:
        ConfigError: the variable is not set, or holds what can be no key. Its value is not shown.
    """
    if model.key_env is None:
        return "none"
    key, where = os.environ.get(model.key_env, "").strip(), f"model_info.{model.name}.api_key_env"
    if not key:
        problem = "this environment variable is not set"
        raise ConfigError([Fault(where, model.key_env, problem, f"export {model.key_env}=<your key>")])
    if not (key.isascii() and key.isprintable()) or " " in key:
        problem = "this environment variable holds letters that no key has"
        raise ConfigError([Fault(where, model.key_env, problem, "export it again, without quotes inside")])
    return key


def api_faults(cfg: DictConfig) -> Iterator[Fault]:
    """What is wrong with the model that `model_path=api:<name>` names, and with the limits of its calls."""
    name = str(cfg.model_path).removeprefix(API)
    if any(cfg.get(key) is None for key in API_KEYS):
        fix = "take --config-name evaluate_api_llm, or a config that inherits it"
        yield Fault("model_path", cfg.model_path, "this config has no model_config and no model_info", fix)
        return
    yield from _settings_faults(OmegaConf.to_container(cfg.model_config, resolve=True))
    proxy = cfg.agent_proxy
    if proxy.context_overflow == "drop_oldest":
        yield Fault("agent_proxy.context_overflow", "drop_oldest", "how long a context is in its own tokens is only "
                    "known to the endpoint", "set context_window_mode and max_context_window instead")  # fmt: skip
    if proxy.chat_template_kwargs:
        yield Fault("agent_proxy.chat_template_kwargs", NO_VALUE, "the endpoint renders its own template",
                    f"a vLLM server takes model_info.{name}.generation_kwargs.chat_template_kwargs")  # fmt: skip
    entries = _entries(cfg)
    if name not in entries:
        close = nearest(name, entries)
        fix = f"did you mean {close}?" if close else f"known: {', '.join(entries)}"
        yield Fault("model_config.model_name", name, "no entry of model_info", fix)
        return
    yield from _entry_faults(f"model_info.{name}", entries[name])


def without_keys(fault: Fault) -> Fault:
    """A fault of a config, its value left out where that may be a key."""
    own = fault.key.startswith(tuple(f"{each}." for each in API_KEYS))
    return dataclasses.replace(fault, value=NO_VALUE) if own and _KEY_LIKE.search(fault.key) else fault


def _entries(cfg: DictConfig) -> dict[str, Any]:
    return {str(name): entry for name, entry in OmegaConf.to_container(cfg.model_info, resolve=True).items()}


def _settings_faults(settings: Mapping[str, Any]) -> Iterator[Fault]:
    for name, (least, may_be_null) in _NUMBERS.items():
        value = settings[name]
        if value is None and may_be_null:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < least:
            yield Fault(f"model_config.{name}", value, f"not a number from {least:g}", "set one")


def _entry_faults(at: str, entry: Any) -> Iterator[Fault]:
    if not isinstance(entry, dict):
        yield Fault(at, NO_VALUE, "no entry of a model", f"keys: {', '.join(_ENTRY)}")
        return
    for key in sorted(entry.keys() - set(_ENTRY)):
        if _KEY_LIKE.search(str(key)):
            yield Fault(f"{at}.{key}", NO_VALUE, "a config holds no key: it is written to the results' folder",
                        "export it and name its environment variable in api_key_env")  # fmt: skip
        else:
            close = nearest(str(key), _ENTRY)
            fix = f"did you mean {at}.{close}?" if close else f"known: {', '.join(_ENTRY)}"
            yield Fault(f"{at}.{key}", entry[key], "no such key", fix)
    if not entry.get("model_name"):
        yield Fault(f"{at}.model_name", None, "not set", "the name of the model at its provider")
    key_env = entry.get("api_key_env")
    if key_env is not None and not _ENV_NAME.fullmatch(str(key_env)):
        yield Fault(f"{at}.api_key_env", NO_VALUE, "not the name of an environment variable in capitals",
                    "give the variable's name, such as OPENAI_API_KEY, never the key")  # fmt: skip
    yield from _generation_faults(f"{at}.generation_kwargs", entry.get("generation_kwargs") or {})
    yield from _price_faults(f"{at}.price_per_million", entry.get("price_per_million"))
    name = entry.get("provider_name")
    if name not in PROVIDERS:
        close = nearest(str(name), PROVIDERS)
        fix = f"did you mean {close}?" if close else f"known: {', '.join(PROVIDERS)}"
        yield Fault(f"{at}.provider_name", name, "no such provider", fix)
        return
    provider = PROVIDERS[name]
    yield from _url_faults(f"{at}.base_url", entry.get("base_url"), provider)
    if entry.get("seeded") and provider.package == "anthropic":
        yield Fault(f"{at}.seeded", True, "Anthropic's API takes no seed", "set it to false")
    if importlib.util.find_spec(provider.package) is None:
        yield Fault(f"{at}.provider_name", name, f"needs the package {provider.package}", 'pip install -e ".[api]"')


def _generation_faults(at: str, given: Any) -> Iterator[Fault]:
    if not isinstance(given, dict):
        yield Fault(at, given, "no mapping", "parameters of a request, name: value")
        return
    for name in given:
        if name in _TAKEN:
            yield Fault(f"{at}.{name}", NO_VALUE, "set elsewhere", f"see {_TAKEN[name]}")
        elif str(name).startswith("extra_"):
            yield Fault(f"{at}.{name}", NO_VALUE, "no parameter of a request", "give the parameter itself")


def _price_faults(at: str, price: Any) -> Iterator[Fault]:
    if price is None:
        return
    numbers = isinstance(price, dict) and price.keys() == {"input", "output"}
    if not numbers or any(isinstance(p, bool) or not isinstance(p, (int, float)) or p < 0 for p in price.values()):
        yield Fault(at, price, "not the two prices of a million tokens", "{input: 0.15, output: 0.6}, or null")


def _url_faults(at: str, url: Any, provider: Provider) -> Iterator[Fault]:
    if url is None:
        if provider.base_url is None:
            yield Fault(at, None, "this provider has no address of its own", "for example http://localhost:8000/v1")
        return
    parts = urlsplit(str(url))
    if parts.username or parts.password or parts.query:
        yield Fault(at, NO_VALUE, "holds more than an address, and a config holds no key",
                    "put the key in an environment variable and name it in api_key_env")  # fmt: skip
    elif parts.scheme not in ("http", "https") or not parts.hostname:
        yield Fault(at, url, "no address", "for example http://localhost:8000/v1")
