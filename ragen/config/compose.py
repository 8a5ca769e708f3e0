"""From a config name and overrides to one resolved configuration, through Hydra's compose API.

`load` is what tests, evaluation and benches use. Composing imports neither torch nor veRL: veRL's YAML files
are read from its folder, which is found without importing it. Unknown keys are collected, not raised one by one.
"""

from __future__ import annotations

import functools
import importlib.util
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from ragen.config.errors import NO_VALUE, ConfigError, Fault, nearest

__all__ = [
    "CONFIG_DIR", "changed", "compose", "config_names", "default", "is_open", "leaves", "load", "schema",
    "verl_config_dir",
]  # fmt: skip

#: The project's own configs.
CONFIG_DIR = Path(__file__).resolve().parents[2] / "config"

#: Last part of the keys below which any key may stand: veRL, Ray, transformers, an environment or an API reads them.
_OPEN = frozenset(
    {
        "custom_envs", "override_config", "engine_kwargs", "apply_chat_template_kwargs", "chat_template_kwargs",
        "mm_processor_kwargs", "sampler_kwargs", "override_optimizer_config", "wrap_policy", "ray_init",
        "mixed_precision", "fused_kernel_options", "kwargs", "model_info",
    }
)  # fmt: skip


_COMPOSE_ERRORS = (HydraException, OmegaConfBaseException, YAMLError)


def load(
    config_name: str,
    overrides: Sequence[str] = (),
    config_dir: str | Path | None = None,
    *,
    beside: DictConfig | None = None,
) -> DictConfig:
    """Compose `config_name` with `overrides` ("key=value", as on the command line), unresolved.

    config_dir: a folder of the user's own configs, searched before the project's; those may inherit `base`.
    beside: further keys with their defaults, which the config and the overrides may set (evaluation's).
    Raises ConfigError with every unknown key, bad override and missing file.
    """
    cfg, faults = compose(config_name, overrides, config_dir, beside=beside)
    if faults or cfg is None:
        raise ConfigError(faults)
    return cfg


def compose(
    config_name: str,
    overrides: Sequence[str] = (),
    config_dir: str | Path | None = None,
    *,
    beside: DictConfig | None = None,
) -> tuple[DictConfig | None, list[Fault]]:
    """Like `load`, but returns the faults beside the config composed without the faulty overrides.

    The config is None where nothing could be composed at all.
    """
    folder = Path(config_dir).expanduser().resolve() if config_dir is not None else CONFIG_DIR
    if not folder.is_dir():
        return None, [Fault("--config-dir", folder, "no such folder", "give the folder that holds your YAML files")]
    name = config_name.removesuffix(".yaml")
    try:
        return _compose(name, overrides, folder, beside)
    except _COMPOSE_ERRORS as error:
        return None, [_fault_of(name, folder, error)]


@functools.lru_cache(maxsize=1)
def schema() -> dict[str, Any]:
    """Every known leaf key and its default in `base`: dotted path → value as `leaves` yields it."""
    return dict(leaves(_base()))


def changed(cfg: DictConfig, key: str) -> bool:
    """True where `key` was set to something else than in `base`; following another key is no change."""
    raw, default = _raw(cfg, key), _raw(_base(), key)
    return raw != default and _plain(OmegaConf.select(cfg, key)) != _plain(OmegaConf.select(_base(), key))


def leaves(cfg: DictConfig) -> Iterator[tuple[str, Any]]:
    """Dotted path and value as written (an interpolation is its text) of each leaf.

    A list, an empty mapping and a node in which any key may stand are leaves.
    """
    yield from _leaves(cfg, "")


def default(key: str) -> Any:
    """The value of `key` in `base`, resolved and plain; None where it is left open (`???`)."""
    return None if OmegaConf.is_missing(*_parent(_base(), key)) else _plain(OmegaConf.select(_base(), key))


def is_open(key: str) -> bool:
    """True for a key below which, or as which, anything may stand."""
    return any(part in _OPEN for part in key.split("."))


def config_names(config_dir: str | Path | None = None) -> list[str]:
    """Names that `--config-name` takes: the YAML files of `config_dir`, then the project's own."""
    folders = [CONFIG_DIR] if config_dir is None else [Path(config_dir).expanduser(), CONFIG_DIR]
    hidden = {"envs", "ppo_trainer"}
    return list(dict.fromkeys(p.stem for f in folders for p in sorted(f.glob("*.yaml")) if p.stem not in hidden))


class _RagenSearchPath(SearchPathPlugin):
    """Adds the project's configs and veRL's, so that a config anywhere can inherit `base`."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append(provider="ragen", path=CONFIG_DIR.as_uri())
        # not pkg://verl.trainer.config: that would import veRL, and torch with it, to read a few YAML files
        search_path.append(provider="verl", path=verl_config_dir().as_uri())


@functools.lru_cache(maxsize=1)
def _register_search_path() -> None:
    Plugins.instance().register(_RagenSearchPath)


def verl_config_dir() -> Path:
    """veRL's own configs, found without importing veRL. Raises ConfigError where it is not installed."""
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations or spec.origin is None:
        raise ConfigError([Fault("", NO_VALUE, "veRL is not installed", "run scripts/setup_ragen.sh")])
    return Path(spec.origin).parent / "trainer" / "config"


def _compose(
    name: str, overrides: Sequence[str], folder: Path, beside: DictConfig | None
) -> tuple[DictConfig, list[Fault]]:
    faults: list[Fault] = []
    parsed = [o for text in overrides if (o := _parse(text, faults)) is not None]
    groups = {o.input_line or "": o for o in parsed if _is_group(o, folder)}
    cfg = pickle.loads(_packed_config(name, tuple(groups), folder, _stamp(folder)))
    if beside is not None:
        OmegaConf.set_struct(cfg, False)
        cfg = OmegaConf.merge(beside, cfg)
    known = [cfg, _base()]
    OmegaConf.set_struct(cfg, False)
    for override in parsed:
        if (override.input_line or "") in groups or not _usable(override, known, faults):
            continue
        try:
            OmegaConf.update(cfg, override.key_or_group, override.value(), merge=True, force_add=True)
        except OmegaConfBaseException as error:
            faults.append(Fault(override.input_line or "", NO_VALUE, _first_line(error)))
    OmegaConf.set_struct(cfg, True)
    return cfg, faults


@functools.lru_cache(maxsize=32)
def _plain_config(name: str, groups: tuple[str, ...], folder: Path, stamp: tuple[int, int]) -> DictConfig:
    """The config without overrides of single keys. Not to be changed: it is kept, since reading takes a second."""
    _register_search_path()
    with initialize_config_dir(config_dir=str(folder), version_base="1.3"):
        return hydra_compose(name, overrides=list(groups))


@functools.lru_cache(maxsize=32)
def _packed_config(name: str, groups: tuple[str, ...], folder: Path, stamp: tuple[int, int]) -> bytes:
    """`_plain_config` as bytes, from which a copy takes an eighth of the time of `copy.deepcopy`."""
    return pickle.dumps(_plain_config(name, groups, folder, stamp))


def _stamp(folder: Path) -> tuple[int, int]:
    """Changes when a YAML file is added, removed or written."""
    times = [path.stat().st_mtime_ns for root in {folder, CONFIG_DIR} for path in root.rglob("*.yaml")]
    return len(times), max(times, default=0)


def _base() -> DictConfig:
    return _plain_config("base", (), CONFIG_DIR, (0, 0))


def _raw(cfg: DictConfig, key: str) -> Any:
    """The value as written: an interpolation is its text."""
    *parents, last = key.split(".")
    node: Any = cfg
    for part in parents:
        node = node._get_node(part) if isinstance(node, DictConfig) and part in node.keys() else None
    child = node._get_node(last) if isinstance(node, DictConfig) and last in node.keys() else None
    return None if child is None else _written(child)


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _parse(text: str, faults: list[Fault]) -> Override | None:
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException as error:
        faults.append(Fault(text, NO_VALUE, f"not an override ({_first_line(error)})", "write key=value"))
        return None
    if override.is_sweep_override():
        faults.append(Fault(text, NO_VALUE, "several values", "add -m to run one after another"))
        return None
    return override


def _is_group(override: Override, folder: Path) -> bool:
    """True for the choice of a file, such as +hw=cpu: its key is a folder of configs."""
    key = override.key_or_group.replace("@", "/").partition("/")[0]
    return "." not in key and any((root / key).is_dir() for root in (folder, CONFIG_DIR))


def _usable(override: Override, known: Sequence[DictConfig], faults: list[Fault]) -> bool:
    """True where the override sets a key that may be set, `+` or none; else a fault is added."""
    key, text = override.key_or_group, override.input_line or ""
    if override.type is OverrideType.DEL:
        faults.append(Fault(text, NO_VALUE, "a key cannot be taken away", "set it to its off value"))
        return False
    if not any(_has(tree, key) for tree in known) and not is_open(key.rpartition(".")[0]):
        faults.append(_unknown(key, override.value(), known))
        return False
    return True


def _unknown(key: str, value: Any, known: Sequence[DictConfig]) -> Fault:
    paths = dict.fromkeys(path for tree in known for path in _paths(tree, ""))
    return Fault(key, value, "no such key", suggestion(key, list(paths)))


def suggestion(key: str, paths: Sequence[str]) -> str:
    """A sentence that names the known key meant by `key`, as far as it can be guessed."""
    head, _, last = key.rpartition(".")
    siblings = [p for p in paths if p.rpartition(".")[0] == head]
    close = nearest(key, siblings) or next((p for p in paths if p.rpartition(".")[2] == last), None)
    close = close or nearest(key, paths)
    return f"did you mean {close}?" if close else "python train.py --cfg job lists all keys"


def _paths(node: DictConfig, prefix: str) -> Iterator[str]:
    for key in node:
        path = f"{prefix}{key}"
        child = node._get_node(key)
        yield path
        if isinstance(child, DictConfig) and not child._is_none() and not child._is_interpolation():
            yield from _paths(child, path + ".")


def _has(node: DictConfig, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(node, DictConfig) or node._is_none() or part not in node.keys():
            return False
        node = node._get_node(part)
    return True


def _leaves(node: DictConfig, prefix: str) -> Iterator[tuple[str, Any]]:
    for key in node:
        path, child = f"{prefix}{key}", node._get_node(key)
        nested = isinstance(child, DictConfig) and not child._is_none() and not child._is_interpolation() and len(child)
        if nested and str(key) not in _OPEN:
            yield from _leaves(child, path + ".")
        else:
            yield path, _written(child)


def _written(node: Any) -> Any:
    return OmegaConf.to_container(node) if OmegaConf.is_config(node) else node._value()


def _parent(cfg: DictConfig, key: str) -> tuple[DictConfig, str]:
    head, _, last = key.rpartition(".")
    return (OmegaConf.select(cfg, head) if head else cfg), last


def _fault_of(name: str, folder: Path, error: Exception) -> Fault:
    if not isinstance(error, MissingConfigException):
        return Fault("", NO_VALUE, _first_line(error))
    missing = error.missing_cfg_file or name
    if missing == name:
        options = config_names(None if folder == CONFIG_DIR else folder)
        key, problem = "--config-name", f"no such config in {folder}"
    else:
        options = list(error.options or [])
        key, problem = "defaults", "no such config"
        if "/" in missing:
            group, missing = missing.rsplit("/", 1)
            key = f"+{group}"
    close = nearest(missing, options)
    return Fault(key, missing, problem, f"did you mean {close}?" if close else f"known: {', '.join(options)}")


def _first_line(error: Exception) -> str:
    if isinstance(error, YAMLError):
        return "bad YAML: " + " ".join(str(error).split())
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
