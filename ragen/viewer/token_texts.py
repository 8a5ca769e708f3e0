"""Token ids → the texts that the page shows, without loading a model library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ragen.eval.api_models import API
from ragen.eval.run_tokenizer import TokenizerNotFound, find_tokenizer
from ragen.llm_agent.byte_chat import byte_tokenizer
from ragen.llm_agent.trajectory import Trajectory

__all__ = ["TokenTexts", "open_token_texts"]

#: What a decoder writes for bytes that are no whole character.
_PARTIAL = "\ufffd"
#: Most tokens that one character can be spread over (UTF-8 has at most four bytes).
_SPREAD = 4


class TokenTexts:
    """Texts of tokens, each known by a small number: the palette that the page decodes with.

    Args:
        decoder: a `tokenizers.Tokenizer`, or None: ids are shown as numbers.
    """

    def __init__(self, decoder: Any | None):
        self._decoder = decoder
        self._single: dict[int, str] = {}
        self._numbers: dict[tuple[int, str], int] = {}

    @property
    def palette(self) -> list[tuple[int, str]]:
        """Number → (token id, text)."""
        return list(self._numbers)

    def numbers(self, ids: Sequence[int]) -> list[int]:
        """The palette's number of each token. A character spread over several tokens is shown on its last one."""
        return [self._numbers.setdefault(pair, len(self._numbers)) for pair in zip(ids, self.texts(ids), strict=True)]

    def texts(self, ids: Sequence[int]) -> list[str]:
        """The text of each token."""
        if self._decoder is None:
            return [f"{token} " for token in ids]
        texts: list[str] = []
        waiting: list[int] = []
        for token in ids:
            text = self._of_one(token)
            if waiting or _PARTIAL in text:
                waiting.append(token)
                text = self._decode(waiting)
                if _PARTIAL in text and len(waiting) < _SPREAD:
                    text = ""
                else:
                    waiting.clear()
            texts.append(text)
        return texts

    def agrees(self, episode: Trajectory) -> bool:
        """Whether the episode's sampled tokens decode to the replies that were recorded as text."""
        for k, turn in enumerate(episode.turns):
            own = episode.token_ids[(episode.turn_ids == k) & episode.policy_mask]
            if turn.reply and "".join(self._decode(own.tolist()).split()) != "".join(turn.reply.split()):
                return False
        return True

    def _of_one(self, token: int) -> str:
        if token not in self._single:
            text = self._decode([token])
            # some decoders drop the space that opens a text
            if (self._decoder.id_to_token(token) or "").startswith("▁") and not text.startswith(" "):
                text = " " + text
            self._single[token] = text
        return self._single[token]

    def _decode(self, ids: list[int]) -> str:
        return self._decoder.decode(ids, skip_special_tokens=False)


def open_token_texts(name: str | None, path: Path, example: Trajectory) -> tuple[TokenTexts, str]:
    """Texts by the tokenizer `name` (a folder with tokenizer.json, or `tiny`), else by the one found near `path`.

    Args:
        name: the tokenizer, or None.
        path: a file of episodes.
        example: one of its episodes; its replies, recorded as text and as tokens, tell a wrong tokenizer.

    Returns the texts and a line that says which tokenizer it is, or why ids are shown instead.

    Raises:
        TokenizerNotFound: `name` was given and cannot be loaded, or is another model's.
    """
    chosen = name or find_tokenizer(path)
    if chosen is None:
        return TokenTexts(None), "no tokenizer near the episodes: token ids are shown (--tokenizer FOLDER names one)"
    try:
        texts = TokenTexts(_load(chosen))
        fault = None if texts.agrees(example) else "decodes the recorded tokens to other replies than were recorded"
    except Exception as error:  # noqa: BLE001 (the tokenizers library raises plain Exception)
        fault = f"cannot be loaded: {error}"
    if fault is None:
        return texts, f"tokenizer of {Path(chosen).name}"
    if name is not None:
        raise TokenizerNotFound(f"tokenizer {name!r} {fault}")
    return TokenTexts(None), f"token ids are shown, since tokenizer {Path(chosen).name} {fault}"


def _load(name: str) -> Any:
    from tokenizers import Tokenizer

    if name == "tiny":
        from ragen.tiny_model import Recipe, make_tokenizer

        return make_tokenizer(Recipe()).backend_tokenizer
    if name.startswith(API):
        return byte_tokenizer().backend_tokenizer
    file = Path(name).expanduser() / "tokenizer.json"
    return Tokenizer.from_file(str(file)) if file.is_file() else Tokenizer.from_pretrained(name)
