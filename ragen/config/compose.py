"""From a config name and overrides to one resolved configuration, through Hydra's compose API.

`load` is what tests, evaluation and benches use. Composing imports neither torch nor veRL: veRL's YAML files
are read from its folder, which is found without importing it. Unknown keys are collected, not raised one by one.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from ragen.config.errors import NO_VALUE, ConfigError, Fault, nearest

__all__ = ["CONFIG_DIR", "changed", "compose", "config_names", "is_open", "leaves", "load", "schema"]

#: The project's own configs.
CONFIG_DIR = Path(__file__).resolve().parents[2] / "config"

#: Last part of the keys below which any key may stand: veRL, Ray, transformers or an environment reads them by name.
_OPEN = frozenset(
    {
        "custom_envs", "override_config", "engine_kwargs", "apply_chat_template_kwargs", "chat_template_kwargs",
        "mm_processor_kwargs", "sampler_kwargs", "override_optimizer_config", "wrap_policy", "ray_init",
        "mixed_precision", "fused_kernel_options",
    }
)  # fmt: skip


_COMPOSE_ERRORS = (HydraException, OmegaConfBaseException, YAMLError)


def load(config_name: str, overrides: Sequence[str] = (), config_dir: str | Path | None = None) -> DictConfig:
    """Compose `config_name` with `overrides` ("key=value", as on the command line), unresolved.

    config_dir: a folder of the user's own configs, searched before the project's; those may inherit `base`.
    Raises ConfigError with every unknown key, bad override and missing file.
    """
    cfg, faults = compose(config_name, overrides, config_dir)
    if faults or cfg is None:
        raise ConfigError(faults)
    return cfg


def compose(
    config_name: str, overrides: Sequence[str] = (), config_dir: str | Path | None = None
) -> tuple[DictConfig | None, list[Fault]]:
    """Like `load`, but returns the faults beside the config composed without the faulty overrides.

    The config is None where nothing could be composed at all.
    """
    folder = Path(config_dir).expanduser().resolve() if config_dir is not None else CONFIG_DIR
    if not folder.is_dir():
        return None, [Fault("--config-dir", folder, "no such folder", "give the folder that holds your YAML files")]
    _register_search_path()
    _base()  # Hydra's contexts do not nest
    name = config_name.removesuffix(".yaml")
    try:
        with initialize_config_dir(config_dir=str(folder), version_base="1.3"):
            return _compose(name, overrides, folder)
    except _COMPOSE_ERRORS as error:
        return None, [_fault_of(name, folder, error)]


@functools.lru_cache(maxsize=1)
def schema() -> dict[str, Any]:
    """Every known leaf key and its default in `base`: dotted path → plain, resolved value."""
    return dict(leaves(_base()))


def changed(cfg: DictConfig, key: str) -> bool:
    """True where `key` was set to something else than in `base`; following another key is no change."""
    raw, default = _raw(cfg, key), _raw(_base(), key)
    return raw != default and _plain(OmegaConf.select(cfg, key)) != _plain(OmegaConf.select(_base(), key))


def leaves(cfg: DictConfig) -> Iterator[tuple[str, Any]]:
    """Dotted path and plain, resolved value of each leaf; a list, an empty mapping and an open node are leaves.

    An interpolation that cannot be resolved yields its own text.
    """
    yield from _leaves(cfg, "")


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
        search_path.append(provider="verl", path=_verl_config_dir().as_uri())


@functools.lru_cache(maxsize=1)
def _register_search_path() -> None:
    Plugins.instance().register(_RagenSearchPath)


def _verl_config_dir() -> Path:
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations or spec.origin is None:
        raise ConfigError([Fault("", NO_VALUE, "veRL is not installed", "run scripts/setup_ragen.sh")])
    return Path(spec.origin).parent / "trainer" / "config"


def _compose(name: str, overrides: Sequence[str], folder: Path) -> tuple[DictConfig | None, list[Fault]]:
    faults: list[Fault] = []
    parsed = [o for text in overrides if (o := _parse(text, faults)) is not None]
    groups = [o for o in parsed if _is_group(o)]
    plain = hydra_compose(name, overrides=[o.input_line for o in groups])
    known = _key_tree(plain)
    usable = [text for o in parsed if o not in groups and (text := _usable(o, known, faults)) is not None]
    cfg = plain
    if usable:
        try:
            cfg = hydra_compose(name, overrides=[o.input_line for o in groups] + usable)
        except _COMPOSE_ERRORS as error:
            faults.append(_fault_of(name, folder, error))
    return cfg, faults


@functools.lru_cache(maxsize=1)
def _base() -> DictConfig:
    """`base`, composed once. Not to be changed."""
    _register_search_path()
    with initialize_config_dir(config_dir=str(CONFIG_DIR), version_base="1.3"):
        return hydra_compose("base")


def _key_tree(plain: DictConfig) -> DictConfig:
    """The keys that a config may hold: those it has and those of `base`."""
    base = copy.deepcopy(_base())
    OmegaConf.set_struct(base, False)
    return OmegaConf.merge(base, plain)


def _raw(cfg: DictConfig, key: str) -> Any:
    """The value as written: an interpolation is its text."""
    *parents, last = key.split(".")
    node: Any = cfg
    for part in parents:
        node = node._get_node(part) if isinstance(node, DictConfig) and part in node.keys() else None
    child = node._get_node(last) if isinstance(node, DictConfig) and last in node.keys() else None
    return None if child is None else OmegaConf.to_container(child) if OmegaConf.is_config(child) else child._value()


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


def _is_group(override: Override) -> bool:
    loader = GlobalHydra.instance().config_loader()
    return override.key_or_group.replace(".", "/") in loader.list_groups("") and "." not in override.key_or_group


def _usable(override: Override, known: DictConfig, faults: list[Fault]) -> str | None:
    """The override as Hydra is to read it, or None with a fault added."""
    key, text = override.key_or_group, override.input_line
    assert text is not None
    if override.type is OverrideType.DEL:
        faults.append(Fault(text, NO_VALUE, "a key cannot be taken away", "set it to its off value"))
        return None
    exists = _has(known, key)
    if not exists and not is_open(key.rpartition(".")[0]):
        faults.append(_unknown(key, override.value(), known))
        return None
    # `+` on a key that exists, or none on a key below an open one: what is meant is plain
    return text.lstrip("+") if exists else "++" + text.lstrip("+")


def _unknown(key: str, value: Any, known: DictConfig) -> Fault:
    return Fault(key, value, "no such key", suggestion(key, [path for path, _ in _paths(known, "")]))


def suggestion(key: str, paths: Sequence[str]) -> str:
    """A sentence that names the known key meant by `key`, as far as it can be guessed."""
    head, _, last = key.rpartition(".")
    siblings = [p for p in paths if p.rpartition(".")[0] == head]
    close = nearest(key, siblings) or next((p for p in paths if p.rpartition(".")[2] == last), None)
    close = close or nearest(key, paths)
    return f"did you mean {close}?" if close else "python train.py --cfg job lists all keys"


def _paths(node: DictConfig, prefix: str) -> Iterator[tuple[str, Any]]:
    for key in node:
        path = f"{prefix}{key}"
        child = node._get_node(key)
        yield path, child
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
        path = f"{prefix}{key}"
        child = node._get_node(key)
        if isinstance(child, DictConfig) and not child._is_none() and not child._is_interpolation() and len(child):
            if str(key) not in _OPEN:
                yield from _leaves(child, path + ".")
                continue
        try:
            value = None if OmegaConf.is_missing(node, key) else node[key]
        except OmegaConfBaseException:
            value = str(child._value())
        yield path, _plain(value)


def _fault_of(name: str, folder: Path, error: Exception) -> Fault:
    text = _first_line(error)
    if "Cannot find primary config" in text or f"'{name}'" in text and "find" in text.lower():
        names = config_names(None if folder == CONFIG_DIR else folder)
        close = nearest(name, names)
        fix = f"did you mean {close}?" if close else f"known: {', '.join(names)}"
        return Fault("--config-name", name, f"no such config in {folder}", fix)
    return Fault("", NO_VALUE, text)


def _first_line(error: Exception) -> str:
    if isinstance(error, YAMLError):
        return "bad YAML: " + " ".join(str(error).split())
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
