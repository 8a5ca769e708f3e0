"""How replies are written and read: `agent_proxy.parser` chooses one `ReplyFormat` of `PARSERS`.

| name | a reply, with `enable_think` | without |
|---|---|---|
| `think_answer` | `<think>…</think><answer>a1 || a2</answer>` | `<answer>a1 || a2</answer>` |
| `tool_call` | `<think>…</think><tool_call>{"name": …, "arguments": …}</tool_call>…` | the calls alone |
| `raw` | `<think>…</think>` and then the action | the whole reply is the action |

A format of your own is a subclass, under a name (`register_parser`) or as `agent_proxy.parser: my_module:MyFormat`.
Reading takes time in proportion to the reply's length, whatever it says: a policy may sample anything.
"""

from __future__ import annotations

import importlib
import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ragen.env.tools import read_call, write_call

if TYPE_CHECKING:
    from ragen.llm_agent.ctx_manager import ContextConfig


@dataclass(frozen=True)
class ParsedReply:
    """What a reply asks for."""

    actions: tuple[str, ...]
    """Action texts in order, not yet matched against the environment's names."""
    well_formed: bool
    """Whether the reply follows the format."""
    thought: str = ""


class ReplyFormat(ABC):
    """One way to write and to read a reply."""

    #: True: actions are calls of the environment's tools, whose schemas the chat template gets.
    uses_tools: ClassVar[bool] = False

    @abstractmethod
    def parse(self, reply: str, config: ContextConfig) -> ParsedReply:
        """Read a reply: special tokens as text, the end token cut off. Must not raise."""

    @abstractmethod
    def describe(self, config: ContextConfig, limit: int) -> str:
        """The format as the prompt shows it, where the next reply may hold `limit` actions."""

    @abstractmethod
    def write(self, actions: Sequence[str], thought: str, config: ContextConfig) -> str:
        """A reply that `parse` reads as `actions`."""


PARSERS: dict[str, ReplyFormat] = {}


def register_parser(name: str) -> Callable[[type[ReplyFormat]], type[ReplyFormat]]:
    """Register a reply format under `name` (`agent_proxy.parser`). A name that is taken raises ValueError."""

    def decorator(cls: type[ReplyFormat]) -> type[ReplyFormat]:
        if name in PARSERS:
            raise ValueError(f"reply parser {name!r} is already registered to {type(PARSERS[name]).__qualname__}")
        PARSERS[name] = cls()
        return cls

    return decorator


def reply_format(name: str) -> ReplyFormat:
    """The format called `name` in `PARSERS`, or the class `module:Class`.

    Raises:
        ValueError: there is none; the message says what there is.
    """
    if name in PARSERS:
        return PARSERS[name]
    module_name, _, class_name = str(name).partition(":")
    if not class_name:
        raise ValueError(f"agent_proxy.parser: {name!r} is not one of {sorted(PARSERS)}, nor a module:Class")
    try:
        cls = getattr(importlib.import_module(module_name), class_name, None)
    except ImportError as error:
        raise ValueError(f"agent_proxy.parser: {name!r} cannot be imported: {error}") from error
    if not inspect.isclass(cls) or not issubclass(cls, ReplyFormat) or inspect.isabstract(cls):
        raise ValueError(
            f"agent_proxy.parser: {name!r} is no subclass of ragen.llm_agent.replies.ReplyFormat with parse, describe "
            "and write"
        )
    return cls()


@register_parser("think_answer")
class ThinkAnswer(ReplyFormat):
    """Actions between answer tags, separated by `action_sep`; the first pair that follows the thoughts counts."""

    def parse(self, reply: str, config: ContextConfig) -> ParsedReply:
        opened, closed = f"<{config.answer_tag}>", f"</{config.answer_tag}>"
        if config.enable_think:
            thought, start = _thought(reply, config, opened)
        else:
            thought, start = "", reply.find(opened)
        stop = reply.find(closed, start + len(opened)) if start >= 0 else -1
        if stop < 0:
            return ParsedReply((), False)
        parts = reply[start + len(opened) : stop].split(config.action_sep)
        return ParsedReply(tuple(text for part in parts if (text := part.strip())), True, thought)

    def describe(self, config: ContextConfig, limit: int) -> str:
        return self._write(_asked_for(config, limit), config.wording.thoughts, config)

    def write(self, actions: Sequence[str], thought: str, config: ContextConfig) -> str:
        return self._write(f" {config.action_sep} ".join(actions), thought, config)

    @staticmethod
    def _write(answer: str, thought: str, config: ContextConfig) -> str:
        return f"{_think(thought, config)}<{config.answer_tag}>{answer}</{config.answer_tag}>"


@register_parser("tool_call")
class ToolCalls(ReplyFormat):
    """One or more calls between `<tool_call>` tags, each strict JSON (`ragen.env.tools.read_call`).

    Other text beside them is ignored; a call that is no such JSON, or that does not end, spoils the whole reply.
    """

    uses_tools = True
    opened, closed = "<tool_call>", "</tool_call>"

    def parse(self, reply: str, config: ContextConfig) -> ParsedReply:
        if config.enable_think:
            thought, start = _thought(reply, config, self.opened)
        else:
            thought, start = "", reply.find(self.opened)
        calls: list[str] = []
        while start >= 0:
            stop = reply.find(self.closed, start)
            call = read_call(reply[start + len(self.opened) : stop].strip()) if stop >= 0 else None
            if call is None:
                return ParsedReply((), False, thought)
            calls.append(write_call(*call))
            start = reply.find(self.opened, stop)
        return ParsedReply(tuple(calls), bool(calls), thought)

    def describe(self, config: ContextConfig, limit: int) -> str:
        text = f"{_think(config.wording.thoughts, config)}{self._tagged(config.wording.call)}"
        return text if limit == 1 else f"{text}{config.wording.more_calls.format(limit=limit)}"

    def write(self, actions: Sequence[str], thought: str, config: ContextConfig) -> str:
        return _think(thought, config) + "".join(self._tagged(action) for action in actions)

    def _tagged(self, call: str) -> str:
        return f"{self.opened}{call}{self.closed}"


@register_parser("raw")
class Raw(ReplyFormat):
    """The whole reply, or what follows the thoughts, is one action."""

    def parse(self, reply: str, config: ContextConfig) -> ParsedReply:
        thought, start = _thought(reply, config, "") if config.enable_think else ("", 0)
        if start < 0:
            return ParsedReply((), False)
        action = reply[start:].strip()
        return ParsedReply((action,) if action else (), True, thought)

    def describe(self, config: ContextConfig, limit: int) -> str:
        return f"{_think(config.wording.thoughts, config)}{config.wording.one_action}"

    def write(self, actions: Sequence[str], thought: str, config: ContextConfig) -> str:
        return f"{_think(thought, config)}{actions[0] if actions else ''}"


def _think(thought: str, config: ContextConfig) -> str:
    return f"<{config.think_tag}>{thought}</{config.think_tag}>" if config.enable_think else ""


def _asked_for(config: ContextConfig, limit: int) -> str:
    wording = config.wording
    if limit == 1:
        return wording.one_action
    return wording.several_actions.format(limit=limit, action_sep=config.action_sep)


def _thought(reply: str, config: ContextConfig, then: str) -> tuple[str, int]:
    """The thoughts that `then` follows, and where `then` starts; -1 where there are no such thoughts.

    They begin with the first opening tag and end with the first closing one that only white space separates from
    `then`.
    """
    start = reply.find(f"<{config.think_tag}>")
    if start < 0:
        return "", -1
    start += len(config.think_tag) + 2
    match = re.compile(rf"</{re.escape(config.think_tag)}>\s*{re.escape(then)}").search(reply, start)
    if match is None:
        return "", -1
    return reply[start : match.start()].strip(), match.end() - len(then)
