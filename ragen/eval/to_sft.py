"""Turns recorded episodes into data for supervised fine-tuning.

    python -m ragen.eval.to_sft rollouts.jsonl OUT.parquet --successful
    python -m ragen.eval.to_sft rollouts.jsonl OUT.parquet --min-return 5 --form prompt_response

`messages` (the default): one row an episode, a column `messages` of {role, content} as chat templates and veRL's SFT
trainer take them. The messages are read off the recorded tokens and rendered again through the model's template; an
episode whose tokens do not come back exactly, or that was played in more than one context, is refused, never
approximated.

`prompt_response`: one row a turn: `prompt`, the context that the policy replied to, control tokens included, and
`response`, its reply. Tokenise both without adding special tokens.

Either has the columns tag, seed, member, step, success and return beside it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from ragen.eval.records import Record, RecordError, read_records
from ragen.eval.run_tokenizer import TokenizerNotFound, load_tokenizer
from ragen.llm_agent.ctx_manager import PLAIN_TEMPLATE
from ragen.llm_agent.trajectory import Trajectory

__all__ = ["ChatReader", "SftError", "keep", "message_rows", "prompt_response_rows", "write_parquet"]

# Plain letters, which no template alters, to see where contents stand in a rendered chat.
_SYSTEM, _USER, _REPLY, _NEXT = "RAGENSYSTEMHERE", "RAGENUSERHERE", "RAGENREPLYHERE", "RAGENNEXTHERE"

Row = dict[str, Any]


class SftError(ValueError):
    """An episode that cannot be converted exactly, or nothing to convert."""


def keep(*, min_return: float | None = None, successful: bool = False) -> Callable[[Record], bool]:
    """A filter of usable episodes: of at least that return, and solved where `successful`."""

    def wanted(record: Record) -> bool:
        t = record.trajectory
        enough = min_return is None or t.episode_return >= min_return
        return t.usable and enough and (not successful or t.metrics.get("success", 0.0) > 0)

    return wanted


@dataclass(frozen=True)
class _Pieces:
    """What a chat template writes around the contents of a chat."""

    opening: str
    """Before the first user message, system message included where there is none of our own."""
    system_opening: str | None
    """Before a system message's content; None: the template refuses one."""
    between: str
    """From a system message's content to the user's."""
    asking: str
    """From a user message's content to where the policy begins to write."""
    next_user: str
    """From a reply's content to the next user message's."""
    prefill: str
    """What the template itself opens a reply with, such as `<think>`."""
    sampled_opening: str
    """What the template writes before a reply in a chat but leaves the policy to sample, such as a space."""


class ChatReader:
    """Reads the messages of an episode off its tokens.

    Args:
        tokenizer: the Hugging Face tokenizer that the episode was made with.

    Raises:
        SftError: the template does not keep contents verbatim.
    """

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self._template = tokenizer.chat_template or PLAIN_TEMPLATE
        self._pieces = self._find_pieces()
        following = self.tokenizer(self._pieces.next_user, add_special_tokens=False)["input_ids"]
        self._end_id = following[0] if following else None
        self._end_text = self._decode(np.asarray(following[:1], dtype=np.int64))

    def messages(self, trajectory: Trajectory) -> list[dict[str, str]]:
        """The chat, from the system message (if any) to the last reply.

        Raises:
            SftError: the tokens are no chat of this template, for instance because it rewrites earlier turns.
        """
        where = f"{trajectory.tag} seed {trajectory.seed} member {trajectory.member}"
        if trajectory.context_starts.any():
            raise SftError(
                f"{where}: played in more than one context, which is no one chat; use --form prompt_response"
            )
        contexts, replies = self.texts(trajectory)
        pieces = self._pieces
        messages = self._first_messages(contexts[0])
        pending, ends = "", trajectory.turn_ends()
        for k, reply in enumerate(replies):
            if k:
                text = pending + contexts[k]
                if not (text.startswith(pieces.next_user) and text.endswith(pieces.asking)):
                    raise SftError(f"{where} turn {k}: what follows the reply is not what this template writes")
                content = text[len(pieces.next_user) : len(text) - len(pieces.asking)]
                messages.append({"role": "user", "content": content})
            # the policy sampled the end of its turn where its last token is the one that the template puts there
            ended = int(trajectory.token_ids[ends[k]]) == self._end_id
            pending = self._end_text if ended else ""
            content = reply.removesuffix(pending).removeprefix(pieces.sampled_opening)
            messages.append({"role": "assistant", "content": pieces.prefill + content})
        whole = "".join(context + reply for context, reply in zip(contexts, replies, strict=True))
        if not self._render(messages, generation=False).startswith(whole):
            raise SftError(
                f"{where}: this model's template renders the chat with other tokens than were recorded (some rewrite "
                "earlier turns); use --form prompt_response, or the tokenizer that the episodes were made with"
            )
        return messages

    def texts(self, trajectory: Trajectory) -> tuple[list[str], list[str]]:
        """What was written for the policy to read, and the replies, of the K turns; decoded with control tokens."""
        ids, mask, turns = trajectory.token_ids, trajectory.policy_mask, trajectory.turn_ids
        contexts, replies = [], []
        for k in range(trajectory.num_turns):
            contexts.append(self._decode(ids[(turns == k) & ~mask]))
            replies.append(self._decode(ids[(turns == k) & mask]))
        return contexts, replies

    def _decode(self, ids: np.ndarray) -> str:
        return self.tokenizer.decode(ids.tolist(), skip_special_tokens=False)

    def _render(self, messages: list[dict[str, str]], *, generation: bool) -> str:
        return self.tokenizer.apply_chat_template(
            messages, chat_template=self._template, tokenize=False, add_generation_prompt=generation
        )

    def _find_pieces(self) -> _Pieces:
        user = {"role": "user", "content": _USER}
        chat = [user, {"role": "assistant", "content": _REPLY}, {"role": "user", "content": _NEXT}]
        rendered = self._render(chat, generation=True)
        if any(rendered.count(mark) != 1 for mark in (_USER, _REPLY, _NEXT)):
            raise SftError("this model's chat template does not keep messages verbatim; use --form prompt_response")
        answering = _between(rendered, _USER, _REPLY)
        asking = rendered.split(_NEXT)[1]
        opening = rendered.split(_USER)[0]
        system_opening, between = None, ""
        try:
            with_system = self._render([{"role": "system", "content": _SYSTEM}, user], generation=True)
        except Exception:  # noqa: BLE001 (a template says so with an error of its own choice)
            with_system = ""
        if with_system.count(_SYSTEM) == 1:
            system_opening, between = with_system.split(_SYSTEM)[0], _between(with_system, _SYSTEM, _USER)
        prefill = asking[len(answering) :] if asking.startswith(answering) else ""
        next_user = _between(rendered, _REPLY, _NEXT)
        sampled = answering[len(asking) :] if answering.startswith(asking) else ""
        return _Pieces(opening, system_opening, between, asking, next_user, prefill, sampled)

    def _first_messages(self, text: str) -> list[dict[str, str]]:
        pieces = self._pieces
        if not text.endswith(pieces.asking):
            raise SftError("the first prompt does not end as this template ends one; is it the right tokenizer?")
        text = text[: len(text) - len(pieces.asking)]
        opening = pieces.system_opening
        if opening is not None and text.startswith(opening) and pieces.between in text:
            system, _, user = text[len(opening) :].partition(pieces.between)
            return [{"role": "system", "content": system}, {"role": "user", "content": user}]
        if not text.startswith(pieces.opening):
            raise SftError("the first prompt does not begin as this template begins one; is it the right tokenizer?")
        return [{"role": "user", "content": text[len(pieces.opening) :]}]


def _between(text: str, left: str, right: str) -> str:
    return text.split(left)[1].split(right)[0]


def message_rows(records: Iterable[Record], reader: ChatReader) -> Iterator[Row]:
    """One row an episode. Raises SftError."""
    for record in records:
        yield {"messages": reader.messages(record.trajectory), **_about(record)}


def prompt_response_rows(records: Iterable[Record], reader: ChatReader) -> Iterator[Row]:
    """One row a turn."""
    for record in records:
        starts = record.trajectory.context_starts
        prompt = ""
        for turn, (context, reply) in enumerate(zip(*reader.texts(record.trajectory), strict=True)):
            grew = turn and starts[turn] == starts[turn - 1]
            prompt = prompt + context if grew else context
            yield {"prompt": prompt, "response": reply, "turn": turn, **_about(record)}
            prompt += reply


def _about(record: Record) -> Row:
    t = record.trajectory
    return {
        "tag": t.tag,
        "seed": t.seed,
        "member": t.member,
        "step": record.step,
        "success": t.metrics.get("success", 0.0) > 0,
        "return": t.episode_return,
    }


def write_parquet(path: Path, rows: Iterable[Row], *, batch: int = 1000) -> int:
    """Write rows as they come, `batch` at a time. Returns their number.

    Raises:
        SftError: no row.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    count, held, writer = 0, [], None
    types: dict[str, Any] = {"step": pa.int64(), "seed": pa.int64(), "member": pa.int64(), "turn": pa.int64()}

    def flush() -> None:
        nonlocal writer
        table = pa.Table.from_pylist(held)
        fields = [pa.field(field.name, types.get(field.name, field.type)) for field in table.schema]
        table = table.cast(pa.schema(fields))
        writer = writer or pq.ParquetWriter(partial, table.schema)
        writer.write_table(table)
        held.clear()

    try:
        for row in rows:
            held.append(row)
            count += 1
            if len(held) == batch:
                flush()
        if held:
            flush()
        if writer is None:
            raise SftError("no episode passes the filter; nothing was written")
        writer.close()
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return count


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 2: nothing was written."""
    parser = argparse.ArgumentParser(
        prog="python -m ragen.eval.to_sft", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="rollouts.jsonl, or .jsonl.gz")
    parser.add_argument("out", type=Path, help="a .parquet file")
    parser.add_argument("--min-return", type=float, help="episodes of at least this return")
    parser.add_argument("--successful", action="store_true", help="solved episodes")
    parser.add_argument("--form", choices=("messages", "prompt_response"), default="messages")
    parser.add_argument("--tokenizer", help="folder or name; default: the run's own")
    options = parser.parse_args(argv)
    wanted = keep(min_return=options.min_return, successful=options.successful)
    make_rows = message_rows if options.form == "messages" else prompt_response_rows
    seen = kept = 0

    def chosen() -> Iterator[Record]:
        nonlocal seen, kept
        bar = tqdm(read_records(options.file), unit="ep", leave=False, disable=not sys.stderr.isatty())
        for record in bar:
            seen += 1
            if wanted(record):
                kept += 1
                yield record

    try:
        reader = ChatReader(load_tokenizer(options.tokenizer, options.file))
        rows = write_parquet(options.out, make_rows(chosen(), reader))
    except (RecordError, SftError, TokenizerNotFound) as error:
        print(f"{options.file}: {error}" if isinstance(error, SftError) else error, file=sys.stderr)
        return 2
    print(f"{options.out}: {rows} rows ({options.form}) from {kept} of {seen} episodes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
