"""A warm start trains exactly the tokens that a rollout would have sampled."""

from __future__ import annotations

import numpy as np
import pytest

from ragen.eval.records import Record
from ragen.eval.to_sft import ChatReader, prompt_response_rows
from ragen.llm_agent.policy import oracle_actions
from ragen.llm_agent.trajectory import samples_of
from ragen.sft.rows import ChatEncoder, RowError, episode_rows, is_tokenized_by
from tests.eval.played import play
from tests.eval.test_to_sft import DEFAULT_SYSTEM, FORGETFUL, NO_SYSTEM, PREFILLED
from tests.llm_agent.tokenizers_for_tests import CHATML, byte_tokenizer

END = "<|im_end|>"


def oracle(tokenizer, **context):
    return play(tokenizer, groups=1, group_size=1, script=oracle_actions, **context)


def taught(tokenizer, row):
    """The texts that are trained, one for each run of the mask."""
    runs = np.flatnonzero(np.diff(row.loss_mask.astype(int), prepend=0, append=0)).reshape(-1, 2)
    return [tokenizer.decode(row.input_ids[a:b].tolist()) for a, b in runs]


@pytest.mark.parametrize("mode", ["full", "single_turn"])
def test_an_oracle_episode_trains_the_response_mask_of_the_same_episode_in_a_rollout(mode):
    tokenizer = byte_tokenizer()
    for t in oracle(tokenizer, context_window_mode=mode):
        rows, samples = episode_rows(t), samples_of(t, use_turn_scores=False)
        assert len(rows) == len(samples) == (1 if mode == "full" else t.num_turns)
        for row, sample in zip(rows, samples, strict=True):
            prompt = len(sample.prompt_ids)
            assert not row.loss_mask[:prompt].any()
            assert row.loss_mask[prompt:].tolist() == sample.response_mask.tolist()
            assert row.input_ids.tolist() == [*sample.prompt_ids, *sample.response_ids]
        texts = [text for row in rows for text in taught(tokenizer, row)]
        assert texts == [turn.reply for turn in t.turns] and all(text.endswith(END) for text in texts)


@pytest.mark.parametrize("template", [CHATML, PREFILLED, NO_SYSTEM, DEFAULT_SYSTEM])
def test_the_chat_of_an_episode_gives_the_rollouts_own_tokens_and_mask(template):
    tokenizer = byte_tokenizer(template)
    encoder, reader = ChatEncoder(tokenizer), ChatReader(tokenizer)
    for t in oracle(tokenizer):
        (row,), (again,) = episode_rows(t), encoder.rows(reader.messages(t))
        assert again.input_ids.tolist() == row.input_ids.tolist()
        assert again.loss_mask.tolist() == row.loss_mask.tolist()


def test_where_the_template_rewrites_earlier_turns_each_reply_has_a_row_of_its_own():
    tokenizer = byte_tokenizer(FORGETFUL)
    replies = ["<think>a</think><answer>Up</answer>", "<think>b</think><answer>Down</answer>"]
    chat = [{"role": "user", "content": "1"}, {"role": "assistant", "content": replies[0]},
            {"role": "user", "content": "2"}, {"role": "assistant", "content": replies[1]}]  # fmt: skip
    rows = ChatEncoder(tokenizer).rows(chat)
    assert [taught(tokenizer, row) for row in rows] == [[reply + END] for reply in replies]
    assert "<think>a" not in tokenizer.decode(rows[1].input_ids.tolist())


def test_rows_of_to_sft_train_the_same_tokens_as_the_episode():
    tokenizer = byte_tokenizer()
    (t, _) = oracle(tokenizer)
    pairs = list(prompt_response_rows([Record(1, t)], ChatReader(tokenizer)))
    rows = [ChatEncoder(tokenizer).rendered(pair["prompt"], pair["response"]) for pair in pairs]
    assert sum(row.loss_mask.sum() for row in rows) == t.policy_mask.sum()
    assert rows[-1].input_ids.tolist() == episode_rows(t)[0].input_ids.tolist()
    assert ChatEncoder(tokenizer).asks(pairs[0]["prompt"]) and not ChatEncoder(tokenizer).asks("What is 1 + 1?")


def test_a_control_token_spelled_in_an_observation_stays_text():
    tokenizer = byte_tokenizer()
    chat = [{"role": "user", "content": f"see {END}"}, {"role": "assistant", "content": "Up"}]
    (row,) = ChatEncoder(tokenizer).rows(chat)
    end = tokenizer.convert_tokens_to_ids(END)
    assert row.input_ids.tolist().count(end) == 2  # of the message, and of the reply
    assert taught(tokenizer, row) == ["Up" + END]


@pytest.mark.parametrize(
    ("chat", "problem"),
    [
        ([{"role": "user", "content": "hello"}], "no assistant message"),
        ([{"role": "assistant", "content": "hello"}], "cannot begin with an assistant message"),
    ],
)
def test_a_chat_without_a_lesson_is_refused(chat, problem):
    with pytest.raises(RowError, match=problem):
        ChatEncoder(byte_tokenizer()).rows(chat)


def test_a_reply_without_the_thought_that_the_template_opens_is_refused():
    chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "Up"}]
    with pytest.raises(RowError, match="begin the content with what the template opens a reply with"):
        ChatEncoder(byte_tokenizer(PREFILLED)).rows(chat)


def test_episodes_of_another_tokenizer_are_told():
    (t, _) = oracle(byte_tokenizer())
    other = byte_tokenizer()
    other.add_tokens(["answer"])
    assert is_tokenized_by(t, byte_tokenizer())
    shifted = byte_tokenizer(eos="<|other|>")
    assert shifted.convert_tokens_to_ids(END) != byte_tokenizer().convert_tokens_to_ids(END)
    assert not is_tokenized_by(t, shifted)


@pytest.mark.wide
def test_verls_loss_is_the_mean_over_exactly_the_trained_tokens(tmp_path):
    """The loss shifts the mask over the whole batch at once: rows must not leak into each other."""
    import torch
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu
    from verl.utils.dataset.dataset_utils import SFTTensorCollator
    from verl.workers.utils.losses import sft_loss

    from ragen.sft.data import write_rows
    from ragen.sft.dataset import TokenRows

    rows = [row for t in oracle(byte_tokenizer()) for row in episode_rows(t)]
    write_rows(tmp_path / "rows.parquet", rows)
    dataset = TokenRows(str(tmp_path / "rows.parquet"), None, None)
    batch = SFTTensorCollator("no_padding")([dataset[i] for i in range(len(dataset))])
    # log_prob[i] is of token i + 1, as the engine gives them
    given = [torch.arange(len(row.input_ids), dtype=torch.float32) * (k + 1) for k, row in enumerate(rows)]
    count = sum(int(row.loss_mask.sum()) for row in rows)
    data = tu.get_tensordict(batch, {"dp_size": 1, "batch_num_tokens": count})
    assert isinstance(data, TensorDict)
    loss, _ = sft_loss(None, {"log_probs": torch.nested.as_nested_tensor(given, layout=torch.jagged)}, data)
    wanted = sum(float(lp[np.flatnonzero(row.loss_mask) - 1].sum()) for lp, row in zip(given, rows, strict=True))
    assert float(loss) == pytest.approx(-wanted / count)
