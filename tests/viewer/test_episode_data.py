"""What is put into a page of episodes: texts of tokens, boards, blocks, and the command's errors."""

import base64
import gzip
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf
from PIL import Image

from ragen.config.compose import CONFIG_DIR
from ragen.env.registry import load_specs
from ragen.eval.records import Record
from ragen.viewer.__main__ import main
from ragen.viewer.boards import board_rows, learn_tiles
from ragen.viewer.episodes import BLOCK, Source, SourceError, find_sources, pack
from ragen.viewer.token_texts import TokenTexts
from tests.viewer.pages import BOARDS, byte_level, episode, write_run


@pytest.fixture(scope="module")
def tokenizer():
    return byte_level()


@pytest.fixture(scope="module")
def run(tmp_path_factory, tokenizer):
    return write_run(tmp_path_factory.mktemp("runs") / "some-run", tokenizer, 2 * BLOCK + 20)


def unpack(page, name):
    text = re.search(rf'id="{name}">([^<]*)</script>', page).group(1)
    return json.loads(text) if name == "meta" else json.loads(gzip.decompress(base64.b64decode(text)))


def specs():
    return load_specs(OmegaConf.to_container(OmegaConf.load(CONFIG_DIR / "envs.yaml"))["custom_envs"])


def test_a_character_of_several_tokens_is_shown_once(tokenizer):
    ids = tokenizer.encode("a√b<|end|>").ids
    assert TokenTexts(tokenizer).texts(ids) == ["a", "", "", "√", "b", "<|end|>"]


def test_bytes_that_are_no_character_do_not_swallow_what_follows(tokenizer):
    broken = tokenizer.encode("√").ids[:1] + tokenizer.encode("abcdef").ids
    assert "".join(TokenTexts(tokenizer).texts(broken)).endswith("bcdef")


def test_without_a_tokenizer_ids_are_shown():
    assert TokenTexts(None).texts([7, 300]) == ["7 ", "300 "]


def test_the_page_holds_every_episode_token_by_token(run, tokenizer, tmp_path, capsys):
    assert main([str(run), "--out", str(tmp_path / "page.html")]) == 0
    assert "116 episodes of 1 runs" in capsys.readouterr().out
    page = (tmp_path / "page.html").read_text()
    meta, index, palette = (unpack(page, name) for name in ("meta", "index", "palette"))
    assert (meta["episodes"], meta["blocks"], meta["runs"]) == (116, 3, ["some-run"])
    assert {len(column) for column in index.values()} == {116} and set(index["step"]) == {1, 2}
    packed = unpack(page, "block0")[5]
    original = episode(tokenizer, 5, solved=False)
    assert [palette[number][0] for number in packed["t"]] == original.token_ids.tolist()
    assert "".join(palette[number][1] for number in packed["t"]) == tokenizer.decode(
        original.token_ids.tolist(), skip_special_tokens=False
    )
    assert packed["r"] == [[0, 0, 50], [0, 1, 2], [1, 0, 52], [1, 1, 9]]
    assert packed["l"] == [250, 3250] + [250, 3250] + [250] * 7
    assert packed["a"][50] == 500 and packed["a"][0] == 0 and packed["u"] == 5 and packed["f"] == BOARDS[1]
    assert str(run) not in page


def test_the_turns_that_begin_a_context_are_told(tokenizer):
    replies = ("Up", "Up", "Down")
    source = Source(Path("rollouts.jsonl"), "run", "")
    one, anew = (episode(tokenizer, 0, replies=replies, context_a_turn=each) for each in (False, True))
    data = pack([(source, Record(1, one)), (source, Record(2, anew))], TokenTexts(tokenizer))
    block = json.loads(gzip.decompress(base64.b64decode(data.blocks[0])))
    assert [packed["c"] for packed in block] == [[], [1, 2]]


def test_nothing_is_loaded_from_anywhere(run, tmp_path):
    main([str(run), "--out", str(tmp_path / "page.html")])
    page = (tmp_path / "page.html").read_text()
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//|@import|url\(""", page)


def test_text_from_episodes_cannot_leave_its_element(tokenizer, tmp_path):
    folder = write_run(tmp_path / "</script><b>run", tokenizer, 4)
    assert main([str(folder / "rollouts" / "1.jsonl"), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "<b>run" not in page and unpack(page, "meta")["runs"]


def test_another_models_tokenizer_is_refused_or_left_out(run, tmp_path, capsys):
    other = byte_level()
    other.add_tokens(["Down"])
    from tokenizers import models

    shifted = byte_level()
    shifted.model = models.BPE(vocab={char: i for i, char in enumerate(reversed(sorted(other.get_vocab())))}, merges=[])
    (tmp_path / "tok").mkdir()
    shifted.save(str(tmp_path / "tok" / "tokenizer.json"))
    assert main([str(run), "--out", str(tmp_path / "p.html"), "--tokenizer", str(tmp_path / "tok")]) == 2
    assert "decodes the recorded tokens to other replies" in capsys.readouterr().err


def test_boards_are_found_within_observations():
    assert board_rows("You see:\n##\n#P\n##\n\nHealth 3") == ["##", "#P", "##"]
    assert board_rows("one line") == [] and board_rows("") == [] and board_rows("a\nb\nc") == []


@pytest.mark.parametrize("tag", ["SimpleSokoban", "SokobanDifferentGridVocab", "FrozenLake"])
def test_tiles_put_together_are_the_environments_own_picture(tag):
    spec = specs()[tag]
    env = spec.make()
    observation, _ = env.reset(7, luck=7)

    class Episode:
        seed, luck, turns = 7, 7, ()

    tiles = learn_tiles(spec, set(observation) - {"\n"}, [Episode])
    pictures = {s: np.asarray(Image.open(io.BytesIO(base64.b64decode(t.split(",")[1])))) for s, t in tiles.items()}
    drawn = np.block([[[pictures[symbol]] for symbol in row] for row in observation.split("\n")])
    np.testing.assert_array_equal(drawn, env.render("rgb_array"))


@pytest.mark.parametrize("tag", ["Bandit"])
def test_environments_without_a_board_of_tiles_are_shown_as_text(tag):
    class Episode:
        seed, luck, turns = 7, 7, ()

    assert learn_tiles(specs()[tag], {"P"}, [Episode]) is None


def test_sources_are_found_in_the_order_of_steps(tokenizer, tmp_path):
    folder = write_run(tmp_path / "r", tokenizer, 24, steps=12)
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')
    assert [source.path.stem for source in find_sources([folder])] == [str(step) for step in range(1, 13)]
    with pytest.raises(SourceError, match="no such file"):
        find_sources([tmp_path / "none"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="trainer.rollout_data_dir"):
        find_sources([tmp_path / "empty"])


def test_the_commands_faults_are_said_in_a_line(tmp_path, capsys, run):
    assert main([str(tmp_path / "none")]) == 2
    assert "no such file or folder" in capsys.readouterr().err
    for extra, says in ((["--metrics", "x"], "--curves"), (["--curves", "--tokenizer", "x"], "leave out")):
        with pytest.raises(SystemExit):
            main([str(run), *extra])
        assert says in capsys.readouterr().err
