"""Evaluation: panels, the summary's figures, continuing, and refusing another evaluation's folder."""

import json

import numpy as np
import pytest

from ragen.config.errors import ConfigError
from ragen.eval.compare import compare, load_panel
from ragen.eval.evaluate import Evaluation, load_config, main
from ragen.eval.models import player_of
from ragen.eval.panels import find_panel, panel_names
from ragen.eval.records import RecordWriter, read_records
from ragen.eval.replay import replay_file, settings_for
from ragen.eval.summary import Summary, markdown, summarize_tag
from ragen.llm_agent.trajectory import Trajectory, Turn


def episode(seed, member, success, status="finished", metrics=(), reason="terminated"):
    """One reply of two tokens, return = success."""
    return Trajectory(
        token_ids=np.array([100, 200, 201]),
        policy_mask=np.array([False, True, True]),
        turn_ids=np.zeros(3, int),
        log_probs=np.zeros(3, np.float32),
        turn_rewards=np.array([float(success)]),
        context_starts=np.zeros(1, int),
        turns=(Turn("", "", (), float(success)),),
        tag="A",
        group=seed,
        member=member,
        seed=seed,
        status=status,
        end_reason=reason,
        metrics={"success": float(success), "action_is_valid": 1.0, "seconds": 2.0, **dict(metrics)},
    ).validate()


def run(folder, *overrides):
    return main([f"output_dir={folder}", "model_path=scripted:random", "limit=3", *overrides])


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text())


def test_figures_of_a_tag_worked_by_hand():
    played = [
        episode(1, 0, 1), episode(1, 1, 0, metrics={"truncated_replies": 1.0}),
        episode(2, 0, 0), episode(2, 1, 1, status="failed", reason="generation_error"),
    ]  # fmt: skip
    tag = summarize_tag(played, n=2)
    # a failed episode is not solved, whatever its metrics say
    assert (tag.episodes, tag.solved, tag.success, tag.failed) == (4, 1, 0.25, 1)
    # Wilson for 1 of 4, z = 1.959964
    assert (tag.success_low, tag.success_high) == pytest.approx((0.04559, 0.69936), abs=1e-5)
    # pass@1: (1/2 + 0) / 2; pass@2: (1 + 0) / 2
    assert tag.pass_at == {"1": 0.25, "2": 0.5}
    assert (tag.mean_return, tag.truncated_replies) == pytest.approx((1 / 3, 1 / 3))
    assert (tag.tokens, tag.seconds, tag.turns) == (2.0, 2.0, 1.0)
    assert tag.failures == {"generation_error": 1} and tag.ended == {"terminated": 3}


def test_all_failed_has_no_means_and_still_a_table():
    tag = summarize_tag([episode(1, 0, 0, status="failed", reason="env_timeout")], n=1)
    assert (tag.mean_return, tag.turns, tag.success) == (None, None, 0.0)
    identity = {"model": {"name": "m", "revision": "r"}, "prompt_hash": "p"}
    panel = {"name": "x", "hash": "h", "n": 1}
    whole = Summary(panel=panel, identity_hash="i", identity=identity, versions={}, complete=True, wall_s=0.0, kept=0,
                    tags={"A": tag})  # fmt: skip
    assert "| A | 1 | 0.0 % [0.0, 79.3] |" in markdown(whole) and "1 A env_timeout" in markdown(whole)


@pytest.mark.parametrize("name", panel_names())
def test_shipped_panels_name_known_tags_and_have_a_stable_hash(name):
    from omegaconf import OmegaConf

    from ragen.config.compose import CONFIG_DIR

    envs = OmegaConf.to_container(OmegaConf.load(CONFIG_DIR / "envs.yaml"))["custom_envs"]
    panel = find_panel(name)
    assert panel.digest(envs) == find_panel(name).digest(envs)
    assert panel.cut(2).digest(envs) != panel.digest(envs) != find_panel("all").cut(3).digest(envs)
    changed = {tag: {**entry, "max_actions_per_traj": 99} for tag, entry in envs.items()}
    assert panel.digest(changed) != panel.digest(envs)


@pytest.mark.parametrize(
    "text, message",
    [
        ("A: {starts: two}", "names no starts"),
        ("A: {first_seed: 1}", "names no starts"),
        ("A: {seeds: [1], starts: 2}", "names no starts"),
        ("A: {seeds: [1, 1]}", "a seed occurs twice"),
        ("A: {seed: 1}", "names no starts"),
        ("- A", "no panel"),
        ("a: b: c", "bad YAML"),
    ],
)
def test_a_panel_that_is_none_is_refused(tmp_path, text, message):
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        find_panel(str(path))


def test_an_unknown_panel_names_the_nearest(capsys):
    assert main(["panel=sokobam"]) == 2
    assert "panel=sokobam: no such panel; did you mean sokoban?" in capsys.readouterr().err


def test_faults_are_found_together(capsys):
    assert main(["panel=bandit", "agent_proxy.max_turn=0", "es_manager.val.group_sise=2"]) == 2
    shown = capsys.readouterr().err
    assert "agent_proxy.max_turn=0: too small" in shown and "did you mean es_manager.val.group_size?" in shown


def test_a_panel_is_played_recorded_and_replayed(tmp_path, capsys):
    assert run(tmp_path, "panel=generalization", "n=2") == 0
    summary = summary_of(tmp_path)
    assert summary["complete"] and summary["panel"]["n"] == 2
    assert {tag: each["episodes"] for tag, each in summary["tags"].items()} == dict.fromkeys(
        ("SimpleSokoban", "LargerSokoban", "SokobanDifferentGridVocab", "FrozenLake"), 6
    )
    assert (tmp_path / "summary.md").read_text() in capsys.readouterr().out
    path = tmp_path / "rollouts.jsonl"
    report = replay_file(path, settings_for(path))
    assert report.exit_status == 0, report.summary()


@pytest.mark.wide
def test_the_same_command_twice_gives_the_same_table(tmp_path):
    tables = []
    for name in "ab":
        assert run(tmp_path / name, "panel=sokoban") == 0
        tags = summary_of(tmp_path / name)["tags"]
        tables.append({tag: {**each, "seconds": None} for tag, each in tags.items()})
    assert tables[0] == tables[1]
    assert all(row.difference == 0 for row in compare(load_panel(tmp_path / "a"), load_panel(tmp_path / "b")))


def test_a_stopped_evaluation_is_continued(tmp_path):
    assert run(tmp_path, "panel=bandit") == 0
    whole = summary_of(tmp_path)
    path = tmp_path / "rollouts.jsonl"
    kept = [record.trajectory for record in read_records(path)][:2]
    path.unlink()
    with RecordWriter(path, append=True) as writer:
        for trajectory in kept:
            writer.write(trajectory)
    with path.open("ab") as file:  # a crash cut the third
        file.write(b'{"schema_version": 3, "tag"')
    assert run(tmp_path, "panel=bandit") == 0
    continued = summary_of(tmp_path)
    assert continued["kept"] == 2 and len(list(read_records(path))) == 6
    for tag in ("Bandit", "BanditTest"):
        assert continued["tags"][tag] | {"seconds": 0} == whole["tags"][tag] | {"seconds": 0}
    assert run(tmp_path, "panel=bandit") == 0 and summary_of(tmp_path)["kept"] == 6


def test_another_evaluation_is_refused_with_what_differs(tmp_path, capsys):
    assert run(tmp_path, "panel=bandit") == 0
    assert run(tmp_path, "panel=bandit", "agent_proxy.max_turn=2") == 2
    assert "prompt_hash is " in capsys.readouterr().err
    temperature = "actor_rollout_ref.rollout.val_kwargs.temperature=0.7"
    assert run(tmp_path, "panel=bandit", temperature) == 2
    assert "sampling.temperature is 0.5 there and 0.7 here" in capsys.readouterr().err
    (tmp_path / "evaluation.json").unlink()
    assert run(tmp_path, "panel=bandit") == 2
    assert "of unknown origin" in capsys.readouterr().err


@pytest.mark.wide
def test_any_training_config_is_played_on_its_own_panel(tmp_path):
    cfg, panel = load_config("quickstart-short", ["model_path=scripted:oracle", f"output_dir={tmp_path}", "limit=2"])
    summary = Evaluation(cfg, panel, player_of(cfg)).run()
    assert summary.panel["name"] == "quickstart-short-val" and summary.panel["tags"] == {"FrozenLake": 2}


def test_an_unknown_script_names_those_that_are_known(capsys):
    assert main(["model_path=scripted:orakel", "limit=1"]) == 2
    assert "did you mean scripted:oracle?" in capsys.readouterr().err


def test_a_missing_model_is_a_fault_of_the_config(capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["model_path=./no/such/folder", "limit=1"]) == 2
    assert "model_path=./no/such/folder: neither a folder here nor" in capsys.readouterr().err


def test_a_script_is_the_ceiling_also_where_replies_are_short(tmp_path):
    short = ("panel=null", "es_manager.val.env_configs.tags=[Countdown]", "es_manager.val.env_configs.n_groups=[3]",
             "es_manager.val.env_groups=3", "actor_rollout_ref.rollout.response_length=4")  # fmt: skip
    assert run(tmp_path, "model_path=scripted:oracle", *short) == 0
    assert summary_of(tmp_path)["tags"]["Countdown"]["success"] == 1.0
