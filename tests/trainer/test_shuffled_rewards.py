"""The control's exchange of rewards: what a group earned stays, who earned it does not."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ragen.llm_agent.trajectory import Trajectory, TrajectoryBuilder, Turn
from ragen.trainer.shuffled_rewards import shuffle_group_rewards


def episode(member: int, rewards: list[float], status: str = "finished") -> Trajectory:
    builder = TrajectoryBuilder()
    for turn, _ in enumerate(rewards):
        if turn:
            builder.next_turn()
        builder.add_context([300 + turn])
        builder.add_reply([200 + 10 * member + turn], [-0.1])
    turns = [Turn("s", "r", (), reward) for reward in rewards]
    return builder.build(turn_rewards=rewards, turns=turns, tag="T", group=0, member=member, seed=1, status=status)


class Reversed:
    """A 'generator' whose permutation turns the order around."""

    def permutation(self, items):
        return items[::-1]


def test_a_longer_members_rewards_end_on_the_last_turn_of_a_shorter_one():
    long, short = episode(0, [1.0, 2.0, 4.0]), episode(1, [10.0, 20.0])
    first, second = shuffle_group_rewards([long, short], Reversed())
    assert first.turn_rewards.tolist() == [10.0, 20.0, 0.0]
    assert second.turn_rewards.tolist() == [1.0, 6.0]
    assert second.token_ids is short.token_ids and second.member == 1


def test_a_failed_member_neither_lends_nor_receives():
    group = [episode(0, [1.0]), episode(1, [9.0], status="failed"), episode(2, [3.0])]
    assert [t.turn_rewards.tolist() for t in shuffle_group_rewards(group, Reversed())] == [[3.0], [9.0], [1.0]]


@given(
    st.lists(st.lists(st.integers(-9, 9).map(float), min_size=1, max_size=4), min_size=1, max_size=6),
    st.integers(0, 99),
)
def test_the_groups_returns_stay_and_every_return_to_go_is_a_members(rewards, seed):
    group = [episode(member, own) for member, own in enumerate(rewards)]
    shuffled = shuffle_group_rewards(group, np.random.default_rng(seed))
    assert sorted(t.episode_return for t in shuffled) == sorted(map(sum, rewards))
    for t in shuffled:
        to_go = [t.turn_rewards[k:].sum() for k in range(t.num_turns)]
        assert any(all(sum(source[k:]) == to_go[k] for k in range(t.num_turns)) for source in rewards)
