"""The checker: each fault of `faulty_envs.py` is found and named, alone; sound ones pass; the command line."""

import itertools
import json
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from ragen.env import check
from ragen.env.checker import play
from ragen.env.checker.host import examine
from ragen.env.checker.play import estimate_tokens
from ragen.env.checker.registry import all_checks
from ragen.env.checker.worker import ADVICE, FAULT, Job, Journal
from tests.env.tags import ENVS_YAML

sys.path.insert(0, str(Path(__file__).parent))
import faulty_envs  # noqa: E402

#: Class → the one finding: check, severity, words of the message.
FAULTS = {
    "NotBuilt": ("raises", FAULT, "no data set here"),
    "RaisesAtTheGoal": ("raises", FAULT, "KeyError: 'goal'"),
    "HangsOnEmpty": ("hangs", FAULT, "did not return within 1 s"),
    "HangsInReset": ("hangs", FAULT, "reset did not return within 1 s"),
    "DiesOfLength": ("crashes", FAULT, "exit code 5"),
    "RaisesOnEmpty": ("raises", FAULT, "step('') raised IndexError"),
    "EvaluatesActions": ("raises", FAULT, "step('') raised SyntaxError"),
    "FourValues": ("returns", FAULT, "not five values"),
    "InfoLacksKey": ("info_keys", FAULT, "lacks 'action_is_effective'"),
    "SuccessIsText": ("info_keys", FAULT, "has 'success' as 'no'"),
    "SilentInstruction": ("describes_itself", FAULT, "instruction() is '  '"),
    "UndeclaredRange": ("describes_itself", ADVICE, "promises nothing"),
    "SeparatorInName": ("action_names", FAULT, "holds '||'"),
    "NamesDifferInCase": ("action_names", FAULT, "several actions are called 'add'"),
    "NothingToDraw": ("action_names", ADVICE, "random_action draws none"),
    "RewardOutOfRange": ("rewards", FAULT, "outside reward_range (-0.1, 1)"),
    "RewardNaN": ("rewards", FAULT, "no number"),
    "SuccessForgotten": ("success", FAULT, "success is True in step"),
    "SuccessNeverSet": ("oracle", FAULT, "none with success"),
    "WorstOracle": ("oracle", FAULT, "the oracle does worse than random play: mean success rate"),
    "PaysForSilence": ("oracle", ADVICE, "random play does worse than doing nothing: mean return"),
    "UnknownIsValid": ("absurd_actions", ADVICE, "counts as valid"),
    "OwnGenerator": ("same_episode", FAULT, "one seed gave two episodes"),
    "GlobalRandom": ("global_random", FAULT, "step touched the global generator of random"),
    "SeedsNumpy": ("global_random", FAULT, "reset touched the global generator of numpy.random"),
    "HashedStart": ("other_process", FAULT, "in two processes: it starts as"),
    "StartDependsOnLuck": ("group_start", FAULT, "observation depends on luck"),
    "LuckNotSeeded": ("own_luck", FAULT, "gave two episodes"),
    "LuckOfTheLevel": ("own_luck", ADVICE, "draws from level_rng"),
    "SeedIgnored": ("seeds_differ", ADVICE, "20 seeds all start alike"),
    "ForgetsToForget": ("reset_forgets", FAULT, "played before"),
    "GoesOnAfterTheEnd": ("steps_only_in_an_episode", ADVICE, "goes on playing"),
    "SharedDefault": ("shared_state", FAULT, "config's visited"),
    "ClassState": ("shared_state", FAULT, "ClassState.board changed"),
    "ModuleState": ("shared_state", FAULT, "faulty_envs:_TURNS changed"),
    "HiddenState": ("alone_or_beside", FAULT, "plays beside it: in step 1"),
    "RenderPlays": ("render_only_looks", FAULT, "if render() is called in between"),
    "Lambda": ("pickles", ADVICE, "cannot be pickled: rule"),
    "ClosesOnce": ("closes", FAULT, "close a second time (new) raised AttributeError"),
    "LeavesFilesOpen": ("closes", ADVICE, "leaves open files behind"),
    "SlowStep": ("latency", ADVICE, "more than 0.005 s"),
    "SlowInline": ("latency", ADVICE, "more than 0.002 s"),
    "EndlessObservation": ("context", FAULT, "the first prompt takes about"),
    "LongObservation": ("context", ADVICE, "5 turns may take about"),
    "Echo": ("absurd_actions", ADVICE, "'long' ('aaaa"),
}
SHIPPED = yaml.safe_load(ENVS_YAML.read_text(encoding="utf-8"))["custom_envs"]
SOUND = ["Sound", "Spoken", "LambdaExplained"]


#: These take long each.
SLOW = {"SlowStep", "SlowInline", "HangsOnEmpty", "Spoken", "LambdaExplained"}
#: One fault of each check and severity; the other faults are left to the wide tests.
QUICK = {kind[:2]: name for name, kind in reversed(FAULTS.items()) if name not in SLOW}
WIDE = SLOW | (FAULTS.keys() - set(QUICK.values()))
#: These need a process that can be killed; the others are examined here, which is faster.
ISOLATED = {"HangsOnEmpty", "HangsInReset", "DiesOfLength"}


def rows(names):
    return [pytest.param(name, marks=pytest.mark.wide) if name in WIDE else name for name in names]


def examined(name, *only, here=True, **changes):
    entry = {"env_type": f"faulty_envs:{name}", "max_actions_per_traj": 12, "step_timeout_s": 1.0}
    return examine(Job(tag=name, entry=entry, **changes), only, here=here)


@pytest.mark.parametrize("name", rows(FAULTS))
def test_each_fault_is_found_and_named_and_nothing_else(name, monkeypatch):
    if name in ("SlowStep", "SlowInline"):  # thresholds that do not cost minutes
        monkeypatch.setattr(play, "SLOW_STEP_S", 0.005)
        monkeypatch.setattr(play, "SLOW_INLINE_S", 0.002)
    code, severity, words = FAULTS[name]
    # Another interpreter for each would take most of the time.
    checks = [c for c in all_checks() if name == "HashedStart" or c != "other_process"]
    report = examined(name, *checks, here=name not in ISOLATED)
    assert [(f.check, f.severity) for f in report.findings] == [(code, severity)], report.findings
    [finding] = report.findings
    assert words in finding.what
    assert "faulty_envs.py:" in finding.where or finding.where == f"custom_envs.{name}"
    assert finding.fix and finding.during in all_checks()


def test_every_faulty_environment_has_its_row():
    classes = {n for n, c in vars(faulty_envs).items() if isinstance(c, type) and issubclass(c, faulty_envs.Sound)}
    assert classes == FAULTS.keys() | set(SOUND)


@pytest.mark.parametrize("name", rows(SOUND))
def test_nothing_is_found_where_nothing_is_wrong(name):
    report = examined(name)
    assert report.findings == [] and report.not_checked == []
    assert report.checked == list(all_checks())
    assert 0 < report.measured["step_s"] < 0.1 and report.measured["oracle_success"] > 0.5


@pytest.mark.wide
@pytest.mark.parametrize("tag", SHIPPED)
def test_no_shipped_environment_has_a_fault(tag):
    checks = [c for c in all_checks() if c != "other_process"]
    report = examine(Job(tag=tag, entry=SHIPPED[tag], episodes=3), checks, here=True)
    if report.missing:
        pytest.skip(report.missing)
    assert [f for f in report.findings if f.severity == FAULT] == [] and report.not_checked == []


def test_half_an_entry_of_the_journal_is_never_read(tmp_path):
    """A writer that is interrupted at any byte: the reader sees the old entry, the new one, or none."""
    (tmp_path / "journal").write_bytes(bytes(Journal.SIZE))
    journal = Journal(str(tmp_path / "journal"))
    stop, seen = threading.Event(), set()

    def write():
        while not stop.is_set():
            journal.begin("a" * 50, 5.0)
            journal.begin("b" * 90, 9.0)
            journal.end()

    writer, interval, until = threading.Thread(target=write), sys.getswitchinterval(), time.monotonic() + 10
    sys.setswitchinterval(1e-6)  # threads alternate in the middle of everything
    try:
        writer.start()
        for turn in itertools.count():
            entry = journal.running()
            seen.add(entry and (entry[0], entry[2]))
            if turn > 2000 and len(seen) == 3 or time.monotonic() > until:
                break
    finally:
        stop.set()
        writer.join()
        sys.setswitchinterval(interval)
    assert seen == {None, ("a" * 50, 5.0), ("b" * 90, 9.0)}


def test_torchs_generator_is_watched_where_torch_is_loaded(monkeypatch):
    class Torch:
        state = np.zeros(3, np.uint8)

        @classmethod
        def get_rng_state(cls):
            return type("Tensor", (), {"numpy": lambda _: cls.state.copy()})()

    monkeypatch.setitem(sys.modules, "torch", Torch)
    assert examined("Sound", "global_random").findings == []
    monkeypatch.setattr(faulty_envs.Sound, "slips", lambda self: Torch.state.__iadd__(1).any() and False)
    [finding] = examined("Sound", "global_random").findings
    assert finding.what == "step touched the global generator of torch"


def test_checks_run_after_those_that_they_need():
    order = list(all_checks())
    assert all(order.index(need) < order.index(c.name) for c in all_checks().values() for need in c.needs)
    assert all(c.about.endswith(".") for c in all_checks().values())


def test_a_finding_can_be_seen_again_by_its_check_and_seed_alone():
    [finding] = examined("RewardNaN", "rewards").findings
    [again] = examined("RewardNaN", finding.during, seed=finding.seed, episodes=1).findings
    assert again.check == "rewards" and again.seed == finding.seed


# --- the command line -------------------------------------------------------------------------------------------------


def run(capsys, *words):
    status = check.main([str(word) for word in words])
    return status, *capsys.readouterr()


def test_a_sound_tag(capsys):
    status, out, _ = run(capsys, "FrozenLake", "--only", "builds", "returns", "latency")
    assert status == 0 and out.startswith("FrozenLake") and "sound: 3 checks" in out


def test_a_fault_says_what_where_and_how_to_see_it_again(capsys):
    status, out, _ = run(capsys, "--here", "faulty_envs:RewardNaN", "--only", "returns", "rewards", "--seed", 5)
    assert status == 1
    flat = " ".join(out.split())
    assert "faulty_envs:RewardNaN faulty (1 fault)" in flat
    assert "FAULT rewards: step(" in flat and "paid nan, which is no number" in flat and "faulty_envs.py:" in flat
    assert "again python -m ragen.env.check faulty_envs:RewardNaN --only rewards --seed 5" in flat


def test_json_holds_everything(capsys):
    status, out, _ = run(capsys, "--here", "--json", "faulty_envs:WorstOracle", "--only", "oracle")
    found = json.loads(out)
    assert status == 1 and (found["faults"], found["advice"]) == (1, 0)
    [tag] = found["tags"]
    assert (tag["tag"], tag["status"], tag["checked"]) == ("faulty_envs:WorstOracle", "faulty", ["oracle"])
    [finding] = tag["findings"]
    assert finding["check"] == "oracle" and finding["fix"] and finding["where"] and finding["seed"] == 10_000


def test_a_missing_package_is_skipped_among_all_and_refused_alone(capsys, tmp_path, monkeypatch):
    (tmp_path / "needs_much.py").write_text("import no_such_package_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    lacking = {"env_type": "needs_much:Env"}
    monkeypatch.setattr(check, "read_config", lambda *_: ({"A": lacking, "B": {"env_type": "bandit"}}, check.Limits()))
    status, out, _ = run(capsys, "--all", "--here", "--only", "builds")
    assert status == 0 and "1 sound, 0 faulty, 1 skipped" in out
    assert "A " in out and "skipped: env_type" in out and "pip install no-such-package-at-all" in out
    assert run(capsys, "A", "--here", "--only", "builds")[0] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["SimpleSokoba"], "did you mean 'SimpleSokoban'?"),
        (["no_such_module_at_all:Env"], "no 'module:Class'"),
        ([], "name tags or classes, or give --all"),
        (["Bandit", "--all"], "name tags or classes, or give --all"),
        (["Bandit", "--only", "reward"], "did you mean 'rewards'?"),
        (["Bandit", "--config-name", "quickstrat"], "quickstart"),
        (["Bandit", "--model", "/no/such/folder"], "no tokenizer.json there"),
    ],
)
def test_a_command_that_cannot_be_carried_out_ends_with_2(capsys, words, message):
    status, out, err = run(capsys, *words)
    assert status == 2 and message in err and out == ""


def test_a_class_that_the_module_lacks_is_a_fault_of_the_entry(capsys):
    status, out, _ = run(capsys, "--here", "faulty_envs:Soundd", "--only", "builds")
    assert status == 1 and "did you mean 'Sound'?" in " ".join(out.split())


def test_the_config_sets_the_context(capsys):
    status, out, _ = run(capsys, "--here", "--json", "FrozenLake", "--only", "context", "--config-name", "quickstart")
    assert status == 0 and json.loads(out)["tags"][0]["measured"]["observation_tokens"] > 5
    limits = check.read_config("quickstart")[1]
    assert limits.max_model_len < check.read_config()[1].max_model_len == 3600


def test_a_models_own_tokenizer_counts(capsys, tmp_path):
    from tests.llm_agent.tokenizers_for_tests import byte_tokenizer

    byte_tokenizer().save_pretrained(tmp_path)
    words = ["--here", "--json", "faulty_envs:Sound", "--only", "context"]
    estimated, counted = (
        json.loads(run(capsys, *words, *more)[1])["tags"][0]["measured"]["observation_tokens"]
        for more in ([], ["--model", tmp_path])
    )
    assert counted > estimated > 5  # a byte is a token


def test_help_shows_examples_and_every_check(capsys):
    with pytest.raises(SystemExit) as ended:
        check.main(["--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "python -m ragen.env.check my_module:MyEnv" in out and all(name in out for name in all_checks())


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 0), ("word", 1), ("considerable", 2), ("12 34", 4), ("####\n#__#", 5), ("√√", 2)],
)
def test_tokens_are_estimated_without_a_tokenizer(text, tokens):
    assert estimate_tokens(text) == tokens
