"""Episodes made by hand for the viewer's tests: a tiny board, and tokens that a tiny tokenizer decodes."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ragen.eval.records import RecordWriter
from ragen.llm_agent.trajectory import TrajectoryBuilder, Turn

BOARDS = ("######\n#_P__#\n#_X__#\n#_O__#\n######\n######", "######\n#____#\n#_P__#\n#_√__#\n######\n######")


def byte_level():
    """A `tokenizers.Tokenizer` of 256 bytes and an end token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


def episode(
    tokenizer, number, *, tag="SimpleSokoban", solved=True, replies=("Up", "Down √<|end|>"), status="finished",
    context_a_turn=False,
):  # fmt: skip
    """Episode `number`: member number % 4 of group number // 4."""
    builder, turns = TrajectoryBuilder(), []
    for k, reply in enumerate(replies):
        if k:
            builder.next_turn()
        add = builder.new_context if context_a_turn else builder.add_context
        add(tokenizer.encode(f"turn {k}:\n{BOARDS[k % 2]}\n").ids)
        ids = tokenizer.encode(reply).ids
        builder.add_reply(ids, [-0.25 - 3.0 * (i == 1) for i in range(len(ids))])
        turns.append(Turn(BOARDS[k % 2], reply, ("Down",), 10.5 if solved and k else -0.1, notes=("a <b>note</b>",)))
    return builder.build(
        turn_rewards=[turn.reward for turn in turns], turns=turns, tag=tag, group=number // 4, member=number % 4,
        seed=100 + number // 4, status=status, end_reason="terminated", metrics={"success": float(solved)},
        luck=number, final_observation=BOARDS[1],
    )  # fmt: skip


def write_run(folder, tokenizer, episodes, *, steps=2):
    """A run's folder with `episodes` episodes over `steps` steps, and its tokenizer beside them."""
    for step in range(1, steps + 1):
        with RecordWriter(folder / "rollouts" / f"{step}.jsonl") as writer:
            for number in range(episodes // steps):
                one = episode(
                    tokenizer, number, solved=number % 3 == 0, tag=("SimpleSokoban", "Other")[number // 4 % 2]
                )
                writer.write(one, step=step, advantages=[0.5 * own for own in one.policy_mask])
    saved = folder / "checkpoints" / "global_step_1" / "actor" / "huggingface"
    saved.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(saved / "tokenizer.json"))
    return folder
