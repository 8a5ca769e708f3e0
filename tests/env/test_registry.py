"""How environments are found and built: names, configs, entries of envs.yaml, users' own classes."""

import logging
import subprocess
import sys
import textwrap

import gymnasium
import numpy as np
import pytest
from omegaconf import OmegaConf

from ragen.env import EnvConfigError, MissingDependency, available_env_types, load_env_class, load_specs, make_env
from ragen.env.base import Env
from ragen.env.sokoban.env import Sokoban


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A function (path, source) that writes a module where `import` finds it, for this test only."""
    made = []

    def write(path, source):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(source), encoding="utf-8")
        made.append(path.split("/")[0].removesuffix(".py"))

    monkeypatch.syspath_prepend(str(tmp_path))
    yield write
    for name in list(sys.modules):
        if name.split(".")[0] in made:
            del sys.modules[name]


COUNTER = """
    class Counter:
        ACTION_LOOKUP = {1: "Up", 2: "Down"}
        def __init__(self, start=0):
            self.start = start
        def reset(self, seed):
            self.n = self.start + seed
            return f"at {self.n}"
        def step(self, action):
            self.n += 1 if action == 1 else -1
            return f"at {self.n}", 1, self.n >= 5, {}
"""


# --- finding ------------------------------------------------------------------------------------------------------


def test_importing_the_registry_is_light():
    code = (
        "import sys, ragen.env.registry; "
        "print([m for m in ('torch', 'verl', 'gym', 'gymnasium', 'gym_sokoban', 'PIL', 'ragen.env.sokoban.env') "
        "if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_folders_are_found_by_name():
    assert {"bandit", "frozen_lake", "sokoban"} <= set(available_env_types())
    assert load_env_class("sokoban") is Sokoban
    for env_type in available_env_types():
        assert issubclass(load_env_class(env_type), Env)


@pytest.mark.parametrize(
    ("env_type", "message"),
    [
        ("sokobn", "'sokobn' is no folder of ragen/env.*did you mean 'sokoban'.*bandit, .*frozen_lake"),
        ("no_such.thing", "module 'no_such' cannot be found; is its folder on PYTHONPATH"),
        ("ragen.env.sokoban.env:Sokobam", "did you mean 'Sokoban'"),
        (None, "got None"),
    ],
)
def test_unknown_environments_raise_with_the_nearest_name(env_type, message):
    with pytest.raises(EnvConfigError, match=message):
        load_env_class(env_type)


def test_a_missing_package_gives_the_install_line(package):
    package("needy/env.py", "import no_such_dependency\n")
    package("needy/__init__.py", "")
    with pytest.raises(MissingDependency, match="pip install no-such-dependency"):
        load_env_class("needy.env")


def test_a_package_missing_only_when_built_gives_the_install_line_too(package):
    package("late.py", COUNTER.replace("Counter", "Late").replace("self.start = start", "import PIL_nope"))
    with pytest.raises(MissingDependency, match="env_type 'late:Late' needs 'PIL_nope'.*pip install PIL-nope"):
        make_env("late:Late")


def test_a_module_must_hold_exactly_one_environment(package):
    package("none/env.py", "x = 1\n")
    package("two.py", COUNTER + "\n    class Other(Counter): pass\n")
    with pytest.raises(EnvConfigError, match="found none"):
        load_env_class("none.env")
    package("twofold/__init__.py", "")
    package("twofold/env.py", COUNTER + "\n    class Other(Counter): pass\n")
    with pytest.raises(EnvConfigError, match=r"found Counter, Other; name the one you mean: 'twofold.env:Class'"):
        load_env_class("twofold.env")
    assert make_env("two:Other").reset(3)[0] == "at 3"


def test_a_folder_elsewhere_needs_only_env_and_config(package):
    package("mine/__init__.py", "")
    package("mine/walk/__init__.py", "")
    package("mine/walk/config.py", "from dataclasses import dataclass\n@dataclass\nclass C:\n    width: int = 3\n")
    package(
        "mine/walk/env.py",
        """
        from ragen.env.base import Env
        from mine.walk.config import C

        class Walk(Env):
            config_class = C
            def reset(self, seed, *, luck=None):
                self.seed_streams(seed, luck)
                self.at = 0
                return self.render(), {}
            def step(self, action):
                self.at += action
                won = self.at >= self.config.width
                info = {"action_is_valid": True, "action_is_effective": True, "success": won}
                return self.render(), float(won), won, False, info
            def render(self, mode="text"):
                return f"{self.at}/{self.config.width}"
            def instruction(self):
                return "walk"
            def action_lookup(self):
                return {"On": 1}
        """,
    )
    env = make_env("mine.walk", {"width": 1})
    assert env.reset(0)[0] == "0/1" and env.step(1)[1] == 1.0
    assert load_specs({"W": {"env_type": "mine.walk"}})["W"].isolate == "process"
    with pytest.raises(EnvConfigError, match="env_config.widht is no field.*did you mean 'width'"):
        make_env("mine.walk", {"widht": 1})


# --- building -----------------------------------------------------------------------------------------------------


def test_unknown_fields_name_the_nearest_and_bad_values_say_which():
    with pytest.raises(EnvConfigError, match="env_config.dimx is no field of env_type 'sokoban': did you mean 'dim_x'"):
        make_env("sokoban", {"dimx": 6})
    with pytest.raises(EnvConfigError, match="'sokoban' cannot be built.*num_boxes is 0"):
        make_env("sokoban", {"num_boxes": 0})
    with pytest.raises(EnvConfigError, match="env_config of env_type 'sokoban' must be a mapping"):
        make_env("sokoban", ["dim_x"])


def test_the_callers_config_is_not_shared_with_the_environment():
    given = {"symbols": {"box": "B"}}
    one, other = make_env("sokoban", given), make_env("sokoban", given)
    one.config.symbols["box"] = "?"
    assert other.config.symbols["box"] == "B" and given == {"symbols": {"box": "B"}}


def test_gyms_four_values_are_adapted_with_one_warning(package, caplog):
    package("counting.py", COUNTER)
    caplog.set_level(logging.WARNING)
    for _ in range(3):
        env = make_env("counting:Counter", {"start": 2})
        assert env.reset(1) == ("at 3", {})
        observation, reward, terminated, truncated, info = env.step(env.action_lookup()["Up"])
        assert (observation, reward, terminated, truncated) == ("at 4", 1.0, False, False) and type(reward) is float
        assert info == {"action_is_valid": True, "action_is_effective": True, "success": False}
        assert env.step(1)[2] is True and env.render() == "at 5"
        env.close()
    assert sum("older four values" in record.getMessage() for record in caplog.records) == 1
    with pytest.raises(EnvConfigError, match="Counter has no instruction.*env_instruction"):
        env.instruction()
    with pytest.raises(EnvConfigError, match="env_config.strat is no field.*did you mean 'start'"):
        make_env("counting:Counter", {"strat": 1})


def test_a_time_limit_in_gyms_four_values_truncates(package):
    package("limited.py", COUNTER.replace(", {}", ', {"TimeLimit.truncated": True, "success": np.bool_(False)}')
            .replace("class", "import numpy as np\n    class"))  # fmt: skip
    env = make_env("limited:Counter", {"start": 9})
    env.reset(0)
    _, _, terminated, truncated, info = env.step(2)
    assert (terminated, truncated, info["success"]) == (False, True, False) and type(info["success"]) is bool


def test_a_class_with_a_config_file_gets_a_fresh_config_and_its_lookup(package):
    package("shop/__init__.py", "")
    package("shop/config.py", """
        from dataclasses import dataclass, field
        @dataclass
        class ShopConfig:
            action_lookup: dict = field(default_factory=lambda: {"buy": "b", "sell": "s"})
    """)  # fmt: skip
    package("shop/env.py", """
        import numpy as np
        class Shop:
            instruction = "Trade."
            def __init__(self, config): self.config = config
            def reset(self, s): return np.int64(s)
            def step(self, action): return np.int64(4), np.float32(0.5), np.bool_(True), np.bool_(False), {}
            def render(self): return "shelf"
    """)  # fmt: skip
    one, other = make_env("shop.env"), make_env("shop.env:Shop")
    assert one.config is not other.config
    assert one.reset(3)[0] == "shelf" and one.instruction() == "Trade."
    assert one.action_lookup() == {"buy": "b", "sell": "s"}
    _, reward, terminated, truncated, info = one.step("b")
    assert [type(value) for value in (reward, terminated, truncated)] == [float, bool, bool]
    assert info["success"] is True and info["action_is_effective"] is False


def test_a_gymnasium_environment_has_a_common_start_and_own_luck():
    class Dice(gymnasium.Env):
        action_space = gymnasium.spaces.Discrete(2, start=1)

        def reset(self, seed=None, options=None):
            super().reset(seed=seed)
            return int(self.np_random.integers(1000)), {}

        def step(self, action):
            return int(self.np_random.integers(1000)), 0.0, False, False, {"success": False}

    from ragen.env.gym_adapter import GymAdapter

    starts, rolls = set(), set()
    for luck in range(6):
        env = GymAdapter(Dice())
        starts.add(env.reset(3, luck=luck)[0])
        rolls.add(env.step(1)[0])
        again = GymAdapter(Dice())
        again.reset(3, luck=luck)
        assert again.step(1)[0] in rolls
    assert len(starts) == 1 and len(rolls) > 3
    assert env.action_lookup() == {"1": 1, "2": 2}


def test_pictures_of_a_gymnasium_environment():
    from ragen.env.gym_adapter import GymAdapter

    class Painting(gymnasium.Env):
        def __init__(self, render_mode):
            self.render_mode, self.closed = render_mode, 0

        def reset(self, seed=None, options=None):
            return np.zeros(3), {}

        def render(self):
            return np.zeros((4, 5, 3), dtype=np.uint8) if self.render_mode == "rgb_array" else None

        def close(self):
            self.closed += 1

    env = GymAdapter(Painting("rgb_array"))
    assert env.reset(1)[0] == "<image>" and env.render_mode == "rgb_array"
    assert env.render("rgb_array").shape == (4, 5, 3)
    env.close()
    env.close()
    assert env.inner.closed == 1
    blank = GymAdapter(Painting(None))
    assert blank.reset(1)[0] == "[0. 0. 0.]" == blank.render()
    with pytest.raises(ValueError, match="Painting.render.. gave no .* picture; build it with"):
        blank.render("rgb_array")


# --- entries of envs.yaml -----------------------------------------------------------------------------------------


def test_an_entry_becomes_a_spec_with_defaults():
    spec = load_specs({"A": {"env_type": "sokoban", "env_config": {"num_boxes": 1}, "max_tokens": None}})["A"]
    assert (spec.tag, spec.env_type, spec.isolate) == ("A", "sokoban", "inline")
    assert (spec.max_actions_per_traj, spec.max_tokens, spec.step_timeout_s, spec.max_workers) == (10, None, 60.0, None)
    with pytest.raises(AttributeError):
        spec.tag = "B"


def test_a_list_and_a_config_librarys_containers_are_accepted():
    entries = [{"A": {"env_type": "sokoban", "env_config": {"symbols": {"box": "B"}}}}, {"B": {"env_type": "bandit"}}]
    assert list(load_specs(entries)) == ["A", "B"]
    spec = load_specs(OmegaConf.create({"c": entries}).c)["A"]
    assert type(spec.env_config["symbols"]) is dict and spec == load_specs(entries)["A"]
    with pytest.raises(EnvConfigError, match="custom_envs.A is given twice"):
        load_specs([*entries, {"A": {"env_type": "bandit"}}])


def test_the_action_budget_bounds_the_level_unless_the_entry_says_otherwise():
    def spec(**entry):
        return load_specs({"A": {"env_type": "sokoban", **entry}})["A"].make().config.solvable_within

    assert spec() == 10 and spec(max_actions_per_traj=4) == 4
    assert spec(env_config={"solvable_within": None}) is None and spec(env_config={"solvable_within": 7}) == 7
    assert load_specs({"A": {"env_type": "bandit"}})["A"].make().config == load_env_class("bandit").config_class()


def test_env_instruction_replaces_the_environments_own(package):
    package("told.py", COUNTER)
    specs = load_specs({
        "A": {"env_type": "bandit", "env_instruction": "Pull."},
        "B": {"env_type": "told:Counter", "env_instruction": "Count."},
    })  # fmt: skip
    assert [specs[tag].make().instruction() for tag in "AB"] == ["Pull.", "Count."]


def test_parallel_friendly_chooses_threads_for_environments_that_do_not_say(package):
    package("friendly.py", COUNTER)

    def isolate(**entry):
        return load_specs({"A": {"env_type": "friendly:Counter", **entry}})["A"].isolate

    assert isolate() == "process" and isolate(parallel_friendly=True) == "thread"
    assert isolate(parallel_friendly=False) == "process"
    assert isolate(parallel_friendly=True, isolate="inline") == "inline"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"env_typ": "bandit"}, "custom_envs.A.env_typ is no key.*did you mean 'env_type'"),
        ({}, "custom_envs.A lacks env_type; set it to one of: .*bandit"),
        ("bandit", "custom_envs.A must be a mapping"),
        ({"env_type": "bandid"}, "custom_envs.A.env_type 'bandid'.*did you mean 'bandit'"),
        ({"env_type": "bandit", "max_actions_per_traj": 0}, "max_actions_per_traj: 0 must be a whole number"),
        ({"env_type": "bandit", "max_workers": True}, "max_workers: True must be a whole number"),
        ({"env_type": "bandit", "max_tokens": "100"}, "max_tokens: '100' must be a whole number"),
        ({"env_type": "bandit", "step_timeout_s": 0}, "step_timeout_s: 0 must be a number of seconds"),
        ({"env_type": "bandit", "isolate": "fork"}, "isolate: 'fork' must be one of inline, thread, process"),
        ({"env_type": "bandit", "isolate": "thread", "parallel_friendly": False}, "since parallel_friendly is false"),
        ({"env_type": "bandit", "parallel_friendly": "yes"}, "parallel_friendly: 'yes' must be true or false"),
        ({"env_type": "bandit", "env_config": [1]}, "env_config: .1. must be a mapping"),
        ({"env_type": "bandit", "env_instruction": 3}, "env_instruction: 3 must be text"),
    ],
)
def test_faulty_entries_name_key_value_and_fix(entry, message):
    with pytest.raises(EnvConfigError, match=message):
        load_specs({"A": entry})


def test_a_fault_in_env_config_names_the_tag():
    with pytest.raises(EnvConfigError, match="custom_envs.A: env_config.num_boxs is no field.*'num_boxes'"):
        load_specs({"A": {"env_type": "sokoban", "env_config": {"num_boxs": 1}}})["A"].make()


@pytest.mark.parametrize(("name", "reason"), [("lean", "Lean 4 installation"), ("DeepCoder", "safe in a sandbox only")])
def test_environments_that_are_left_out_say_why(name, reason):
    with pytest.raises(EnvConfigError, match=f"env_type '{name}' is not supported: .*{reason}"):
        load_env_class(name)
