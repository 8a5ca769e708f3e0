"""Finds, builds and describes environments.

`env_type` is a folder of `ragen/env/` (`sokoban`), a package of the user's with an `env.py` (`my_pkg.my_env`), or a
class (`my_pkg.module:MyEnv`). Nothing is registered by hand and nothing is imported before it is asked for.
`EnvSpec` is one entry of `custom_envs` in `config/envs.yaml`, checked.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ragen.env.base import Env
from ragen.env.errors import EnvConfigError, MissingDependency, nearest

ISOLATION = ("inline", "thread", "process")

_ENV_ROOT = Path(__file__).parent
#: Packages whose name on the index differs from the name that is imported.
_DISTRIBUTIONS = {"PIL": "pillow", "cv2": "opencv-python", "sklearn": "scikit-learn", "yaml": "pyyaml"}
#: Environments whose packages are an extra of pyproject.toml → its name.
_EXTRAS = {"search": "search", "textworld": "textworld", "alfworld": "alfworld"}
#: Names of environments that users may look for and that are left out, in lower case → why.
REFUSED = {
    "deepcoder": "it runs programs that the model writes, which is safe in a sandbox only, and RAGEN brings none",
    "lean": "it needs a Lean 4 installation with Mathlib as proof checker, which RAGEN does not bring or drive",
}


def available_env_types() -> list[str]:
    """The folders of `ragen/env/` that hold an `env.py`, sorted."""
    return sorted(path.parent.name for path in _ENV_ROOT.glob("*/env.py"))


def load_env_class(env_type: str) -> type:
    """The environment class of `env_type`: a subclass of `Env`, or a Gymnasium-like class (see `make_env`).

    Raises:
        EnvConfigError: no such environment, or its module does not hold exactly one environment class.
        MissingDependency: a package that the module imports is not installed.
    """
    if not isinstance(env_type, str) or not env_type:
        raise EnvConfigError(f"env_type must be a name such as 'sokoban', got {env_type!r}")
    if env_type.lower() in REFUSED:
        raise EnvConfigError(
            f"env_type {env_type!r} is not supported: {REFUSED[env_type.lower()]}. "
            "Write it as an environment of your own, 'package.folder' or 'package.module:Class'"
        )
    module_name, _, class_name = env_type.partition(":")
    if class_name:
        module = _import(module_name, env_type)
        found = getattr(module, class_name, None)
        if not _looks_like_env(found):
            classes = [name for name, value in vars(module).items() if _looks_like_env(value)]
            raise EnvConfigError(f"env_type {env_type!r}: no environment class there; {nearest(class_name, classes)}")
        return found
    if "." in module_name:
        package = _import(module_name, env_type)
        module = _import(f"{module_name}.env", env_type) if hasattr(package, "__path__") else package
    elif module_name in available_env_types():
        module = _import(f"ragen.env.{module_name}.env", env_type)
    else:
        raise EnvConfigError(
            f"env_type {env_type!r} is no folder of ragen/env with an env.py: "
            f"{nearest(env_type, available_env_types())}. "
            "An environment kept elsewhere is written 'package.folder' or 'package.module:Class'"
        )
    return _only_env_class(module, env_type)


def make_env(env_type: str, env_config: Mapping[str, Any] | None = None) -> Env:
    """A new environment with its own fresh config, `env_config` overriding the defaults.

    A class that is no `Env` but has `reset` and `step` is adapted (`ragen.env.gym_adapter`). Its config is the
    dataclass named by its `config_class`, or the only one in the `config.py` beside it; with neither, `env_config`
    goes to its constructor as keyword arguments.

    Raises:
        EnvConfigError: unknown environment, unknown field, or a value that the environment refuses.
        MissingDependency: a package is missing.
    """
    cls = load_env_class(env_type)
    values = _plain(env_config or {})
    if not isinstance(values, dict):
        raise EnvConfigError(f"env_config of env_type {env_type!r} must be a mapping, got {values!r}")
    config_class = _config_class(cls, env_type)
    try:
        if config_class is not None:
            config = _build(config_class, values, env_type)
            instance = cls(config)
        else:
            config = None
            if issubclass(cls, Env):
                raise EnvConfigError(f"env_type {env_type!r}: {cls.__name__} needs config_class, a dataclass")
            _check_names(values, _keyword_names(cls), env_type)
            instance = cls(**values)
    except ModuleNotFoundError as error:
        raise _missing(error, env_type) from error
    except EnvConfigError:
        raise
    except (TypeError, ValueError) as error:
        raise EnvConfigError(f"env_type {env_type!r} cannot be built with env_config {values}: {error}") from error
    if isinstance(instance, Env):
        return instance
    from ragen.env.gym_adapter import GymAdapter

    return GymAdapter(instance, config)


@dataclasses.dataclass(frozen=True)
class EnvSpec:
    """One entry of `custom_envs`: a tag, and how its environments are built and run."""

    #: The name by which configs and metrics know it.
    tag: str
    #: What `load_env_class` takes.
    env_type: str
    #: Actions that one episode may execute. It also becomes `solvable_within` where the environment's config has such a
    #: field and `env_config` does not set it: every level can then be solved within the budget.
    max_actions_per_traj: int = 10
    #: Text that replaces the environment's own `instruction()`; None keeps it.
    env_instruction: str | None = None
    #: Most new tokens in a turn; None: `actor_rollout_ref.rollout.response_length`.
    max_tokens: int | None = None
    #: Fields of the environment's config dataclass. Treat as read-only.
    env_config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    #: Where `step` runs: `inline` on the event loop, in a `thread`, or in a `process`, which alone can be killed.
    isolate: str = "process"
    #: Seconds that `reset` or `step` may take before the episode fails (not enforced inline).
    step_timeout_s: float = 60.0
    #: Threads or processes that serve the tag; None leaves it to the environment state manager.
    max_workers: int | None = None
    #: True: instances may be stepped at once in one process, so `isolate` defaults to `thread`. False: they may not, so
    #: `isolate: thread` is refused. None: no statement.
    parallel_friendly: bool | None = None

    def make(self) -> Env:
        """A new environment of this tag, `env_instruction` and `solvable_within` applied."""
        values = dict(self.env_config)
        config_class = _config_class(load_env_class(self.env_type), self.env_type)
        if config_class is not None and "solvable_within" in {f.name for f in dataclasses.fields(config_class)}:
            values.setdefault("solvable_within", self.max_actions_per_traj)
        try:
            env = make_env(self.env_type, values)
        except EnvConfigError as error:
            raise EnvConfigError(f"custom_envs.{self.tag}: {error}") from error
        if self.env_instruction:
            env.instruction = functools.partial(str, self.env_instruction)
        return env


def load_specs(custom_envs: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> dict[str, EnvSpec]:
    """Check `custom_envs` (tag → entry, or a list of such mappings) and return tag → `EnvSpec`, in its order.

    Unless an entry says `isolate`, it is the class's own `isolate` (`inline` for those that come with RAGEN and never
    block), else `process`.

    Raises:
        EnvConfigError: an unknown key, a value of the wrong kind, a tag given twice, an unknown `env_type`.
    """
    entries: dict[str, Any] = {}
    for part in [custom_envs] if isinstance(custom_envs, Mapping) else list(custom_envs):
        if not isinstance(part, Mapping):
            raise EnvConfigError(f"custom_envs must map tags to entries, got the item {part!r}")
        for tag, entry in part.items():
            if tag in entries:
                raise EnvConfigError(f"custom_envs.{tag} is given twice; rename one")
            entries[tag] = _plain(entry)
    return {str(tag): _spec(str(tag), entry) for tag, entry in entries.items()}


# --- entries of envs.yaml --------------------------------------------------------------------------------------------


def _spec(tag: str, entry: Any) -> EnvSpec:
    where = f"custom_envs.{tag}"
    if not isinstance(entry, dict):
        raise EnvConfigError(f"{where} must be a mapping with at least 'env_type', got {entry!r}")
    keys = [f.name for f in dataclasses.fields(EnvSpec) if f.name != "tag"]
    for key in entry:
        if key not in keys:
            raise EnvConfigError(f"{where}.{key} is no key of an environment entry: {nearest(key, keys)}")
    if "env_type" not in entry:
        raise EnvConfigError(f"{where} lacks env_type; set it to one of: {', '.join(available_env_types())}")
    # A key set to null means its default, as everywhere in these files.
    values = {key: value for key, value in entry.items() if value is not None}

    def check(key: str, sound: bool, wanted: str) -> None:
        if not sound:
            raise EnvConfigError(f"{where}.{key}: {values.get(key)!r} must be {wanted}")

    for key in ("max_actions_per_traj", "max_tokens", "max_workers"):
        if key in values:
            check(key, type(values[key]) is int and values[key] >= 1, "a whole number of at least 1")
    timeout = values.get("step_timeout_s", 1)
    check("step_timeout_s", type(timeout) in (int, float) and timeout > 0, "a number of seconds above 0")
    check("env_instruction", isinstance(values.get("env_instruction", ""), str), "text or null")
    check("env_config", isinstance(values.get("env_config", {}), dict), "a mapping of config fields")
    friendly = values.get("parallel_friendly")
    check("parallel_friendly", friendly in (None, True, False), "true or false")
    if "isolate" in values:
        check("isolate", values["isolate"] in ISOLATION, f"one of {', '.join(ISOLATION)}")
        check("isolate", values["isolate"] != "thread" or friendly is not False,
              "'process' or 'inline', since parallel_friendly is false")  # fmt: skip
    try:
        own = getattr(load_env_class(values["env_type"]), "isolate", "process")
    except EnvConfigError as error:
        raise EnvConfigError(f"{where}.{error}") from error
    except MissingDependency:
        own = "process"  # `make` reports it, if the tag is used at all
    values.setdefault("isolate", "thread" if friendly and own == "process" else own)
    return EnvSpec(tag=tag, **values)


def _plain(value: Any) -> Any:
    """A copy in plain dicts and lists, whatever container type the config library uses."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_plain(item) for item in value]
    return value


# --- classes and their configs ---------------------------------------------------------------------------------------


def _import(module_name: str, env_type: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        parts = module_name.split(".")
        if error.name in {".".join(parts[:n]) for n in range(1, len(parts) + 1)}:
            raise EnvConfigError(
                f"env_type {env_type!r}: module {error.name!r} cannot be found; is its folder on PYTHONPATH? "
                f"{nearest(env_type, available_env_types())}"
            ) from error
        raise _missing(error, env_type) from error


def _missing(error: ModuleNotFoundError, env_type: str) -> MissingDependency:
    package = (error.name or "").partition(".")[0]
    requirements = _ENV_ROOT / env_type / "requirements.txt"
    wanted = f"-r {requirements}" if requirements.is_file() else _DISTRIBUTIONS.get(package, package.replace("_", "-"))
    if env_type in _EXTRAS:
        wanted = f"-e '.[{_EXTRAS[env_type]}]' in RAGEN's folder"
    return MissingDependency(
        f"env_type {env_type!r} needs {package!r}, which is not installed; install it: pip install {wanted}",
        name=error.name,
    )


def _looks_like_env(value: Any) -> bool:
    return inspect.isclass(value) and callable(getattr(value, "reset", None)) and callable(getattr(value, "step", None))


def _only_env_class(module: ModuleType, env_type: str) -> type:
    own = [value for name, value in vars(module).items()
           if _looks_like_env(value) and value.__module__ == module.__name__ and not name.startswith("_")]  # fmt: skip
    candidates = [cls for cls in own if issubclass(cls, Env)] or own
    if len(candidates) != 1:
        names = ", ".join(cls.__name__ for cls in candidates) or "none"
        raise EnvConfigError(
            f"env_type {env_type!r}: {module.__name__} must define exactly one environment class (with reset and "
            f"step), found {names}; name the one you mean: '{module.__name__}:Class'"
        )
    return candidates[0]


def _config_class(cls: type, env_type: str) -> type | None:
    declared = getattr(cls, "config_class", None)
    package = cls.__module__.rpartition(".")[0]
    if declared is not None or not package:
        return declared
    try:
        module = importlib.import_module(f"{package}.config")
    except ModuleNotFoundError as error:
        if error.name == f"{package}.config":
            return None
        raise _missing(error, env_type) from error
    found = [value for value in vars(module).values()
             if dataclasses.is_dataclass(value) and getattr(value, "__module__", None) == module.__name__]  # fmt: skip
    return found[0] if len(found) == 1 else None


def _keyword_names(cls: type) -> set[str] | None:
    """The names that the constructor accepts; None where it accepts any."""
    parameters = inspect.signature(cls).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def _check_names(values: Mapping[str, Any], known: set[str] | None, env_type: str) -> None:
    for name in values:
        if known is not None and name not in known:
            raise EnvConfigError(f"env_config.{name} is no field of env_type {env_type!r}: {nearest(name, known)}")


def _build(config_class: type, values: dict[str, Any], env_type: str) -> Any:
    _check_names(values, {f.name for f in dataclasses.fields(config_class) if f.init}, env_type)
    return config_class(**values)
