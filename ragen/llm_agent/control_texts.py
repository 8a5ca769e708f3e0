"""Text that spells a control token stays text.

Environments quote what they please, a policy's own words among it. Where such a text spells `<|im_end|>`, a tokenizer
makes the control token of it, and whoever wrote it could end a message and open another. So those texts are hidden
before the chat template is rendered and encoded letter by letter afterwards; the template's own control tokens are
encoded as ever. A text without any is tokenised as if this module did not exist.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

__all__ = ["ControlTexts"]

#: Stands for control text number n while the template is rendered. No template alters plain letters.
_MARK = "RAGENCONTROLTEXT{}ENDS"
_MARKS = re.compile(_MARK.format(r"(\d+)"))


class ControlTexts:
    """The control tokens of one tokenizer, as texts.

    Args:
        tokenizer: a Hugging Face tokenizer; its added tokens that are marked as special count.
    """

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        added = getattr(tokenizer, "added_tokens_decoder", {})
        #: Id → text.
        self.tokens = {number: token.content for number, token in added.items() if token.special}
        # the longest first: that is the one a tokenizer finds
        self.texts = tuple(sorted(set(self.tokens.values()), key=lambda text: (-len(text), text)))
        self._spelt = re.compile("|".join(map(re.escape, self.texts))) if self.texts else None

    def hide(self, text: str) -> str:
        """`text` with a mark in the place of each control token that it spells."""
        if self._spelt is None:
            return text
        return self._spelt.sub(lambda found: _MARK.format(self.texts.index(found.group())), text)

    def hide_typed(self, text: str, reply: str, reply_ids: Sequence[int]) -> str:
        """`text`, a part of `reply`, with marks, if `reply` spells more control tokens than there are in its ids."""
        if self._spelt is None:
            return text
        sampled = sum(number in self.tokens for number in reply_ids)
        return self.hide(text) if len(self._spelt.findall(reply)) > sampled else text

    def encode(self, text: str) -> list[int]:
        """Ids of a rendered text: its control tokens whole, those that `hide` marked in pieces, as any other text."""
        # alternately what stands between marks, and a mark's number
        parts = _MARKS.split(text) if self._spelt is not None else [text]
        ids: list[int] = []
        for position, part in enumerate(parts):
            if position % 2 and int(part) < len(self.texts):
                spelt = self.texts[int(part)]
                ids += self._tokenizer(spelt, add_special_tokens=False, split_special_tokens=True)["input_ids"]
            elif part:
                ids += self._tokenizer(part, add_special_tokens=False)["input_ids"]
        return ids
