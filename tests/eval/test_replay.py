"""Replay confirms untouched records and names whatever was tampered with."""

import json

import pytest

from ragen.eval import replay
from ragen.eval.records import write_records
from ragen.llm_agent.policy import GenerationError
from tests.eval.played import CONTEXT, play, write_run_config


@pytest.fixture
def run(played, tmp_path):
    """A run's folder: config.yaml, and the episodes two folders below."""
    write_run_config(tmp_path)
    write_records(tmp_path / "rollouts" / "1.jsonl", played, step=1)
    return tmp_path


def tamper(path, line, change):
    lines = path.read_text().splitlines()
    record = json.loads(lines[line - 1])
    change(record)
    lines[line - 1] = json.dumps(record)
    path.write_text("\n".join(lines) + "\n")
    return record


def found(path, **source):
    return replay.replay_file(path, replay.settings_for(path, **source))


def test_untouched_episodes_are_confirmed_by_their_replies_and_by_their_actions(run, played):
    path = run / "rollouts" / "1.jsonl"
    by_replies = found(path)
    by_actions = found(path, envs=replay.CONFIG_DIR / "envs.yaml")
    for report in (by_replies, by_actions):
        assert report.mismatches == [] and report.exit_status == 0
        assert report.episodes == len(played) and report.turns == sum(t.num_turns for t in played)


@pytest.mark.parametrize("mode", ["limited_multi_turn", "single_turn"])
def test_what_the_policy_read_does_not_matter_to_a_replay(mode, tokenizer, tmp_path):
    trajectories = play(tokenizer, groups=1, skill=0.1, context_window_mode=mode, max_context_window=1)
    assert any(t.context_starts.any() for t in trajectories)
    write_run_config(tmp_path)
    write_records(tmp_path / "rollouts" / "1.jsonl", trajectories, step=1)
    report = found(tmp_path / "rollouts" / "1.jsonl")
    assert report.mismatches == [] and report.episodes == len(trajectories)


def test_a_tampered_reward_is_found_and_named(run, capsys):
    path = run / "rollouts" / "1.jsonl"

    def change(record):
        record["turns"][0]["reward"] += 5.0

    record = tamper(path, 3, change)
    (mismatch,) = found(path).mismatches
    assert (mismatch.line, mismatch.tag, mismatch.seed, mismatch.turn) == (3, "SimpleSokoban", record["seed"], 0)
    assert mismatch.what == "reward" and mismatch.recorded == pytest.approx(mismatch.replayed + 5)
    assert replay.main([str(path)]) == 1
    assert "line 3 SimpleSokoban seed 101 member 0 turn 0 reward: recorded" in capsys.readouterr().out


@pytest.mark.parametrize("key", ["turn_rewards", "return", "success", "final_observation", "observation", "end_reason"])
def test_every_checked_value_is_checked(run, key):
    path = run / "rollouts" / "1.jsonl"

    def change(record):
        if key == "turn_rewards":
            record["turn_rewards"][-1] += 1e-3
        elif key == "return":
            record["return"] -= 1
        elif key == "success":
            record["metrics"]["success"] = 1 - record["metrics"]["success"]
        elif key == "observation":
            record["turns"][0]["observation"] += "\n"
        elif key == "end_reason":
            record["end_reason"] = "env_truncated"
        else:
            record[key] = "nothing"

    tamper(path, 5, change)
    mismatches = found(path).mismatches
    assert {m.line for m in mismatches} == {5}
    assert any(key in m.what for m in mismatches)


def other(action):
    return {"Up": "Down", "Down": "Up", "Left": "Right", "Right": "Left"}[action]


def test_a_tampered_action_is_found_by_the_reply_that_asked_for_another(run):
    path = run / "rollouts" / "1.jsonl"

    def change(record):
        record["turns"][1]["actions"] = [other(name) for name in record["turns"][1]["actions"]]

    record = tamper(path, 2, change)
    (mismatch,) = found(path).mismatches
    assert (mismatch.line, mismatch.turn, mismatch.what) == (2, 1, "actions")
    assert mismatch.recorded == tuple(record["turns"][1]["actions"])


def test_a_tampered_action_is_found_by_its_effect_where_replies_cannot_be_parsed(run, played):
    path = run / "rollouts" / "1.jsonl"

    def moves(turn):
        return turn.actions and turn.observation != played[0].turns[turns.index(turn) + 1].observation

    turns = list(played[0].turns)
    number = next(k for k, turn in enumerate(turns[:-1]) if moves(turn))

    def change(record):
        record["turns"][number]["actions"] = [other(name) for name in record["turns"][number]["actions"]]

    tamper(path, 1, change)
    mismatches = found(path, envs=replay.CONFIG_DIR / "envs.yaml").mismatches
    assert {m.line for m in mismatches} == {1} and {m.turn for m in mismatches} <= {number, number + 1}


def test_a_tampered_reply_is_found(run):
    path = run / "rollouts" / "1.jsonl"
    tamper(path, 1, lambda record: record["turns"][0].update(reply="<answer>jump</answer>"))
    assert {m.what for m in found(path).mismatches} >= {"actions", "format_penalty"}


def test_other_luck_is_found_where_luck_matters(run, played):
    path = run / "rollouts" / "1.jsonl"
    for line, trajectory in enumerate(played, start=1):
        if trajectory.tag == "FrozenLake":
            tamper(path, line, lambda record: record.update(luck=record["luck"] + 1))
    assert {m.tag for m in found(path).mismatches} == {"FrozenLake"}


def test_faulty_turns_are_confirmed_with_their_penalty(tokenizer, tmp_path):
    async def clumsy(episode, rng):
        return [["Up"], ["fly", "Up"], []][int(rng.integers(3))]

    write_run_config(tmp_path)
    write_records(tmp_path / "a.jsonl", play(tokenizer, script=clumsy))
    report = found(tmp_path / "a.jsonl")
    assert report.mismatches == [] and report.episodes == 8

    def forgive(record):
        k = next(k for k, turn in enumerate(record["turns"]) if turn["format_penalty"] < 0)
        record["turns"][k]["format_penalty"] = 0.0

    tamper(tmp_path / "a.jsonl", 1, forgive)
    assert [m.what for m in found(tmp_path / "a.jsonl").mismatches] == ["format_penalty"]


def test_replies_whose_thought_the_template_opened(tokenizer, tmp_path, played):
    write_run_config(tmp_path)
    records = [t.to_json() for t in played]
    for record in records:
        for turn in record["turns"]:
            turn["reply"] = turn["reply"].removeprefix("<think>")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert found(tmp_path / "a.jsonl").mismatches == []


def test_what_cannot_be_replayed_is_counted_not_guessed(run, tokenizer, capsys):
    path = run / "rollouts" / "1.jsonl"

    def before_version_2(record):
        del record["luck"]

    tamper(path, 1, before_version_2)
    tamper(path, 2, lambda record: record.update(tag="Gone"))
    report = found(path)
    assert report.episodes == 6 and report.exit_status == 0
    assert any("no luck" in reason for reason in report.skipped) and any("no tag Gone" in r for r in report.skipped)

    async def silent(episode, rng):
        raise GenerationError("no reply")

    write_records(run / "failed.jsonl", play(tokenizer, script=silent))
    assert replay.main([str(run / "failed.jsonl")]) == 2
    assert "not replayed: 8 (failed episodes)" in capsys.readouterr().out


def test_a_broken_environment_is_a_mismatch(run, tmp_path):
    path = run / "rollouts" / "1.jsonl"
    tamper(path, 1, lambda record: record["turns"][0].update(actions=["Teleport"]))
    report = found(path, envs=replay.CONFIG_DIR / "envs.yaml")
    assert report.mismatches[0].what == "actions" and report.exit_status == 1


@pytest.mark.parametrize("text", ["a: 1\n", "custom_envs: {A: {env_type: nowhere}}\n", "{"])
def test_environments_that_cannot_be_read_are_named(run, tmp_path, text, capsys):
    (tmp_path / "envs.yaml").write_text(text)
    assert replay.main([str(run / "rollouts" / "1.jsonl"), "--envs", str(tmp_path / "envs.yaml")]) == 2
    assert "envs.yaml" in capsys.readouterr().err


def test_the_settings_of_a_config_by_name(run):
    settings = replay.settings_for(run / "rollouts" / "1.jsonl", config_name="quickstart")
    assert settings.context is not None and "SimpleSokoban" in settings.specs
    assert replay.settings_for(run / "rollouts" / "1.jsonl").context.max_turn == CONTEXT.max_turn
