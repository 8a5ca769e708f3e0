"""What the policy reads in every context mode, and that it is exactly what is trained.

Ids say who wrote them: a context's are below 1000, those sampled in turn k begin at 1000 (k + 1), the end token apart.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen.llm_agent.contexts import HISTORY_THINKING, OVERFLOWS, WINDOW_MODES
from ragen.llm_agent.policy import Generation
from tests.llm_agent.test_rollout import context, environments, play
from tests.llm_agent.tokenizers_for_tests import CHATML, byte_tokenizer

OPENS_THOUGHT = CHATML.replace("assistant\n{% endif", "assistant\n<think>\n{% endif")
OPENS_AND_CLOSES = CHATML.replace("assistant\n{% endif", "assistant\n<think>\n\n</think>\n\n{% endif")
BASE = 1000


class MarkedTokenizer:
    """A byte tokenizer that also decodes ids with a mark of their writer."""

    def __init__(self, template=CHATML):
        self._plain = byte_tokenizer(template)

    def __getattr__(self, name):
        return getattr(self._plain, name)

    def __call__(self, text, **kwargs):
        return self._plain(text, **kwargs)

    def decode(self, ids, **kwargs):
        return self._plain.decode([i % BASE for i in ids], **kwargs)


END = byte_tokenizer().eos_token_id
PLAIN = byte_tokenizer()


class MarkedReplies:
    """Replies with the given (text, whether its end token was sampled) in turn, in ids that bear the turn's mark."""

    def __init__(self, *replies):
        self.replies, self.prompts, self.sampled = replies, [], []

    async def generate(self, prompt_ids, sampling, images=None, episode=""):
        turn = len(self.prompts)
        text, ended = self.replies[turn % len(self.replies)]
        ids = [BASE * (turn + 1) + i for i in PLAIN(text)["input_ids"]] + ([END] if ended else [])
        self.prompts.append(list(prompt_ids))
        self.sampled.append(ids[: sampling.max_tokens])
        return Generation(list(self.sampled[-1]), [-0.5] * len(self.sampled[-1]))


def writers(ids) -> set[int]:
    """Turns whose sampled tokens are among `ids`."""
    return {i // BASE - 1 for i in ids if i >= BASE}


def episode(replies, template=CHATML, **changes):
    """An episode of up to six turns, its policy and its context manager."""
    ctx = context(MarkedTokenizer(template), **changes)
    policy = MarkedReplies(*replies)
    [t] = play(environments(goal_low=9, goal_high=9), ctx, policy)
    return t, policy, ctx


WAIT = ("<answer>Wait</answer>", True)
REPLIES = st.lists(
    st.tuples(
        st.sampled_from(
            ["<answer>Add</answer>", "<think>t</think> <answer>Add</answer>", "t</think><answer>Wait</answer>",
             "<think>t<think>u</think></think>", "<think>never closed", "x", "", "<think></think>"]
        ),
        st.booleans(),
    ).filter(lambda reply: reply[0] or reply[1]),
    min_size=1,
    max_size=4,
)  # fmt: skip


any_episode = given(
    mode=st.sampled_from(WINDOW_MODES),
    window=st.integers(1, 4),
    overflow=st.sampled_from(OVERFLOWS),
    thoughts=st.sampled_from(HISTORY_THINKING),
    template=st.sampled_from([CHATML, OPENS_THOUGHT, OPENS_AND_CLOSES, None]),
    room=st.integers(150, 1200),
    replies=REPLIES,
    scores=st.booleans(),
)


@settings(max_examples=40, deadline=None)
@any_episode
def test_in_every_mode_the_policy_saw_exactly_what_is_trained(**drawn):
    sees_exactly_what_is_trained(**drawn)


@pytest.mark.wide
@settings(max_examples=500, deadline=None)
@any_episode
def test_in_every_mode_of_five_hundred_episodes_the_policy_saw_exactly_what_is_trained(**drawn):
    sees_exactly_what_is_trained(**drawn)


def sees_exactly_what_is_trained(mode, window, overflow, thoughts, template, room, replies, scores):
    t, policy, ctx = episode(
        replies, template, context_window_mode=mode, max_context_window=window, context_overflow=overflow,
        history_thinking=thoughts, max_model_len=room, use_turn_scores=scores,
    )  # fmt: skip
    if not t.usable:  # the first prompt alone fills the context
        assert policy.prompts == [] and room < 200
        return
    assert len(policy.prompts) == t.num_turns
    starts, replied, ends = t.context_starts, t.reply_starts(), t.turn_ends()
    samples = ctx.formulate(t)
    assert len(samples) == len(set(starts))
    if mode == "single_turn":
        assert len(samples) == t.num_turns
    if mode == "full" and thoughts == "all" and overflow == "end":
        assert len(samples) == 1
    trained, rewards = [], []
    for sample in samples:
        whole = np.concatenate([sample.prompt_ids, sample.response_ids]).tolist()
        mask = sample.response_mask == 1
        own = np.unique(sample.turn_ids[mask]).tolist()
        for k in own:  # each turn's context and reply, as they went over the wire
            length = replied[k] - starts[k]
            assert whole[:length] == policy.prompts[k]
            assert whole[length : length + len(policy.sampled[k])] == policy.sampled[k]
            assert length + len(policy.sampled[k]) <= room
        for token, sampled, turn in zip(sample.response_ids, mask, sample.turn_ids, strict=True):
            assert not sampled or token == END or token // BASE == turn + 1
            assert sampled or token < BASE
        assert writers(sample.prompt_ids) <= set(range(own[0]))
        assert not sample.rewards[~mask].any() and not sample.log_probs[~mask].any()
        trained += sample.response_ids[mask].tolist()
        rewards += sample.rewards[mask].tolist()
    assert trained == [token for reply in policy.sampled for token in reply]
    assert sum(rewards) == pytest.approx(t.episode_return, abs=1e-5)
    last_of_turn = np.cumsum([len(reply) for reply in policy.sampled]) - 1
    if scores:
        np.testing.assert_allclose(np.array(rewards)[last_of_turn], t.turn_rewards, rtol=1e-6)
    else:
        assert not any(rewards[:-1])
    assert [t.token_ids[a:b].tolist() for a, b in zip(replied, ends + 1, strict=True)] == policy.sampled


@settings(max_examples=60, deadline=None)
@given(mode=st.sampled_from(WINDOW_MODES), window=st.integers(1, 6))
def test_a_window_holds_the_last_turns_as_sampled(mode, window):
    _, policy, _ = episode([WAIT], context_window_mode=mode, max_context_window=window)
    assert len(policy.prompts) == 6
    for k, prompt in enumerate(policy.prompts):
        kept = {"full": k, "single_turn": 0, "limited_multi_turn": min(k, window)}[mode]
        assert writers(prompt) == set(range(k - kept, k))
        held = [token for j in range(k - kept, k) for token in policy.sampled[j]]
        assert [token for token in prompt if token >= BASE] == [token for token in held if token >= BASE]


def turn_prompt(turn, left, state="0/9"):
    return (
        "<|im_start|>user\nCount to 9.\nActions: Add, Wait\n"
        f"Reply with <answer>up to 2 actions separated by ||</answer>\nTurn {turn} of 6, actions left: {left}\n{state}"
        "<|im_end|>\n<|im_start|>assistant\n"
    )


def answered(reply, turn, left, state="0/9", reward="-0.25"):
    return (
        f"{reply}<|im_end|>\n<|im_start|>user\nReward: {reward}\nTurn {turn} of 6, actions left: {left}\n{state}"
        "<|im_end|>\n<|im_start|>assistant\n"
    )


def texts(policy):
    return [MarkedTokenizer().decode(prompt) for prompt in policy.prompts]


def test_single_turn_reads_the_rules_and_the_present_state():
    t, policy, _ = episode([("<answer>Add</answer>", True)], context_window_mode="single_turn", max_turn=6)
    assert texts(policy)[:3] == [turn_prompt(1, 8, "0/9"), turn_prompt(2, 7, "1/9"), turn_prompt(3, 6, "2/9")]
    assert t.context_starts.tolist() == [int(np.searchsorted(t.turn_ids, k)) for k in range(6)]


def test_limited_multi_turn_begins_with_the_oldest_kept_state_once_more_turns_were_played():
    t, policy, _ = episode([WAIT], context_window_mode="limited_multi_turn", max_context_window=1)
    said = WAIT[0]
    assert texts(policy)[:3] == [
        turn_prompt(1, 8),
        turn_prompt(1, 8) + answered(said, 2, 7),
        turn_prompt(2, 7) + answered(said, 3, 6),
    ]
    assert t.context_starts[:2].tolist() == [0, 0] and t.context_starts[2] > 0


def test_the_limit_that_a_new_context_states_is_its_first_turns_own():
    _, policy, _ = episode(
        [("<answer>Wait||Wait||Wait</answer>", True)], context_window_mode="single_turn", max_actions_per_turn=3
    )
    limits = [("up to 3 actions", "actions left: 8"), ("up to 3", "left: 5"), ("up to 2", "left: 2")]
    assert all(part in text for text, parts in zip(texts(policy), limits, strict=True) for part in parts)


THOUGHT = ("<think>so</think><answer>Wait</answer>", True)


def test_no_thoughts_in_history():
    _, policy, ctx = episode([THOUGHT], history_thinking="none", enable_think=True)
    assert texts(policy)[2] == texts(policy)[0] + answered("<answer>Wait</answer>", 2, 7) + (
        answered("<answer>Wait</answer>", 3, 6)
    )


def test_the_last_thought_in_history():
    t, policy, _ = episode([THOUGHT], history_thinking="last", enable_think=True)
    assert texts(policy)[1] == texts(policy)[0] + answered(THOUGHT[0], 2, 7)
    assert texts(policy)[2] == texts(policy)[0] + answered("<answer>Wait</answer>", 2, 7) + answered(THOUGHT[0], 3, 6)
    # reply 0 keeps its thought for one more turn, so that the first two share a context
    assert t.context_starts[:2].tolist() == [0, 0] and len(set(t.context_starts)) == 5


@pytest.mark.parametrize("template", [OPENS_THOUGHT, OPENS_AND_CLOSES])
def test_a_thought_that_the_template_opened_leaves_with_its_tags(template):
    reply = ("so</think><answer>Wait</answer>" if template == OPENS_THOUGHT else THOUGHT[0], True)
    _, policy, _ = episode([reply], template, history_thinking="none", enable_think=True)
    opening = template.partition("assistant\n")[2].partition("{% endif")[0]
    assert texts(policy)[0].endswith(f"assistant\n{opening}")
    history, present = texts(policy)[2].rsplit("<|im_start|>assistant\n", 1)
    assert history.count("<|im_start|>assistant\n<answer>Wait</answer><|im_end|>") == 2
    assert history.count("think>") == texts(policy)[0].count("think>") - opening.count("think>")
    assert present == opening


def test_a_history_without_thoughts_keeps_the_ids_as_sampled():
    t, policy, _ = episode([WAIT], history_thinking="none")
    assert set(t.context_starts) == {0} and writers(policy.prompts[3]) == {0, 1, 2}


def test_a_context_that_is_full_ends_the_episode():
    t, policy, _ = episode([WAIT], max_model_len=400, response_length=30)
    assert (t.status, t.end_reason) == ("truncated", "context")
    assert all(len(prompt) < 400 for prompt in policy.prompts) and len(policy.prompts) < 6


def test_oldest_turns_leave_a_full_context_and_their_rewards_stay():
    t, policy, ctx = episode([WAIT], max_model_len=400, response_length=30, context_overflow="drop_oldest")
    assert (t.end_reason, t.num_turns) == ("max_turn", 6)
    assert all(len(prompt) + 30 <= 400 for prompt in policy.prompts)
    kept = [sorted(writers(prompt)) for prompt in policy.prompts]
    assert kept == [[], [0], [0, 1], [1, 2], [2, 3], [3, 4]]
    assert sum(sample.rewards.sum() for sample in ctx.formulate(t)) == pytest.approx(6 * -0.25)


def test_a_state_that_fits_alone_is_played_with_what_room_there_is():
    t, policy, _ = episode(
        [WAIT], max_model_len=190, response_length=100, context_overflow="drop_oldest", context_window_mode="full"
    )
    assert t.num_turns == 6 and all(writers(prompt) == set() for prompt in policy.prompts)


def test_a_window_of_no_turns_is_refused():
    with pytest.raises(ValueError, match="max_context_window=-1: limited_multi_turn needs at least 1"):
        context(context_window_mode="limited_multi_turn")
