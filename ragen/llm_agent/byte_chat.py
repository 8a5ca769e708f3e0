"""Chats as token ids, for models behind an API: those take and give text, and their own ids are not to be had.

The context manager writes ids, whatever the model. For an API it writes these: one for each byte of the text, one that
opens a message of each role, and one that ends it. `messages_of` reads the messages back, letter by letter, so windows
of turns and `history_thinking` mean the same as for a local model. Records hold these ids; `BYTE_TOKENS` marks them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

__all__ = ["BYTE_TOKENS", "END", "byte_tokenizer", "messages_of"]

#: Metric of an episode (1.0): its `token_ids` are bytes of text, and its `log_probs` are all 0 since none are known.
BYTE_TOKENS = "byte_tokens"
#: Ends a message.
END = "<|end|>"
_ROLES = ("system", "user", "assistant")
_OPEN = "<|{}|>"
# a role that is not among these is refused, so that the results of tools are told by the user
_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}{{ raise_exception('no such role') }}{% endif %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@functools.cache
def byte_tokenizer() -> Any:
    """A fast Hugging Face tokenizer without loss: 256 bytes and four control tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={char: number for number, char in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    opening = [_OPEN.format(role) for role in _ROLES]
    core.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in (END, *opening)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END,
        pad_token=END,
        additional_special_tokens=opening,
        chat_template=_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def messages_of(ids: Sequence[int]) -> list[dict[str, str]]:
    """The messages of a context: role and content of each, without the reply that the context opens."""
    tokenizer = byte_tokenizer()
    roles = {tokenizer.convert_tokens_to_ids(_OPEN.format(role)): role for role in _ROLES}
    messages: list[dict[str, str]] = []
    role, content = "", []
    for number in ids:
        if number in roles:
            role, content = roles[number], []
        elif number == tokenizer.eos_token_id:
            messages.append({"role": role, "content": tokenizer.decode(content)})
        else:
            content.append(number)
    return messages
