"""Two evaluations are compared episode by episode, or refused with what differs."""

import dataclasses
import json

import pytest

from ragen.eval import compare as module
from ragen.eval.compare import PanelError, compare, load_panel
from ragen.eval.records import write_records


def with_success(trajectory, solved):
    return dataclasses.replace(trajectory, metrics={**trajectory.metrics, "success": float(solved)})


@pytest.fixture
def sides(played, tmp_path):
    """Eight episodes in two tags; `after` solves all of Sokoban, where `before` solved none."""
    before = [with_success(t, False) for t in played]
    after = [with_success(t, t.tag == "SimpleSokoban") for t in played]
    write_records(tmp_path / "before.jsonl", before)
    write_records(tmp_path / "after.jsonl.gz", after)
    return tmp_path / "before.jsonl", tmp_path / "after.jsonl.gz"


def test_the_difference_is_per_tag_and_over_all(sides):
    rows = {(row.tag, row.measure): row for row in compare(*map(load_panel, sides))}
    sokoban, lake, together = (rows[tag, "success"] for tag in ("SimpleSokoban", "FrozenLake", "all"))
    assert (sokoban.pairs, sokoban.before, sokoban.after, sokoban.difference) == (4, 0.0, 1.0, 1.0)
    assert (sokoban.only_before, sokoban.only_after, lake.only_after) == (0, 4, 0)
    assert together.difference == 0.5
    # starts differ by 1, 1, 0, 0 with two members each: sums about the mean 1, 1, -1, -1; 4/3 * 4 / 64 = 1/12
    assert together.high - 0.5 == pytest.approx(1.959964 * (1 / 12) ** 0.5)
    assert rows["all", "return"].difference == 0.0


def test_the_command_prints_a_table(sides, capsys):
    assert module.main([str(path) for path in sides]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "token-identical: 8 of 8 episodes"
    assert "| SimpleSokoban | success | 4 | 0.0 % | 100.0 % | +100.0 | [+100.0, +100.0] | 0 | 4 |" in lines
    assert module.main([*map(str, sides), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["difference"] == 1.0


def test_it_says_how_many_episodes_are_the_same_token_by_token(played, tmp_path, capsys):
    ids = played[2].token_ids.copy()
    ids[-1] += 1
    write_records(tmp_path / "a.jsonl", played)
    write_records(tmp_path / "b.jsonl", [*played[:2], dataclasses.replace(played[2], token_ids=ids), *played[3:]])
    assert module.main([str(tmp_path / f"{x}.jsonl") for x in "ab"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "token-identical: 7 of 8 episodes"


def test_failed_episodes_count_as_unsolved_and_have_no_return(played, tmp_path):
    failed = [dataclasses.replace(t, status="failed") if t.seed == 100 and t.member == 0 else t for t in played]
    write_records(tmp_path / "a.jsonl", [with_success(t, True) for t in played])
    write_records(tmp_path / "b.jsonl", [with_success(t, True) for t in failed])
    rows = {(row.tag, row.measure): row for row in compare(*(load_panel(tmp_path / f"{x}.jsonl") for x in "ab"))}
    assert rows["SimpleSokoban", "success"].after == 0.75 and rows["SimpleSokoban", "success"].only_before == 1
    assert rows["SimpleSokoban", "return"].pairs == 3


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda ts: ts[:-1], "1 of the 8 episodes of .*a.jsonl are not in .*b.jsonl, the first is FrozenLake seed 103"),
        (lambda ts: [dataclasses.replace(t, tag="Other") for t in ts], "8 of the 8 episodes"),
        (
            lambda ts: [dataclasses.replace(t, luck=1) for t in ts],
            "was played with luck .* evaluate both with the same",
        ),
        (lambda ts: ts + ts[:1], "b.jsonl:9: SimpleSokoban seed 100 member 0 occurs twice"),
        (lambda ts: [], "holds no episode"),
    ],
)
def test_different_panels_are_refused_with_the_reason(played, tmp_path, change, says):
    write_records(tmp_path / "a.jsonl", played)
    write_records(tmp_path / "b.jsonl", change(list(played)))
    with pytest.raises(PanelError, match=says):
        compare(load_panel(tmp_path / "a.jsonl"), load_panel(tmp_path / "b.jsonl"))


def test_folders_are_compared_by_their_episodes_and_their_panels_hash(played, tmp_path, capsys):
    for name, panel_hash in (("a", "aaaa"), ("b", "bbbb")):
        write_records(tmp_path / name / "rollouts.jsonl", played)
        (tmp_path / name / "summary.json").write_text(json.dumps({"panel": {"hash": panel_hash}}))
    assert module.main([str(tmp_path / "a"), str(tmp_path / "a")]) == 0
    capsys.readouterr()
    assert module.main([str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "played panel aaaa" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    with pytest.raises(PanelError, match="holds no rollouts.jsonl"):
        load_panel(tmp_path / "empty")


def test_one_start_is_too_few(played, tmp_path):
    write_records(tmp_path / "a.jsonl", played[:2])
    with pytest.raises(PanelError, match="one start is too few"):
        compare(load_panel(tmp_path / "a.jsonl"), load_panel(tmp_path / "a.jsonl"))
