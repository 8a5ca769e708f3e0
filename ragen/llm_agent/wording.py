"""The sentences around an environment's own text (`agent_proxy.wording`); the defaults are what `base` states.

Texts with fields are Python format strings: `{reward:.2f}` works, a literal brace is doubled. An empty text leaves its
line out.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

#: Text → the fields that it may use; a text that is not here is taken as it stands.
FIELDS: dict[str, tuple[str, ...]] = {
    "actions": ("actions",),
    "tools": ("tools", "call"),
    "reply_format": ("format",),
    "several_actions": ("limit", "action_sep"),
    "more_calls": ("limit",),
    "turn": ("turn", "max_turn", "actions_left", "observation"),
    "reward": ("reward",),
}
#: What each field is tried with.
_SAMPLES: dict[str, Any] = {"limit": 2, "turn": 1, "max_turn": 5, "actions_left": 10, "reward": -0.1}


@dataclass(frozen=True)
class Wording:
    """What prompts say; see the fields of each text in `FIELDS`."""

    actions: str = "Actions: {actions}"
    """The names of the environment's actions."""
    tools: str = "Tools, one JSON schema a line; an action is one call, {call}\n{tools}"
    """The environment's tools, where the chat template does not take them."""
    reply_format: str = "Reply with {format}"
    """How to reply."""
    thoughts: str = "your thoughts"
    one_action: str = "your action"
    several_actions: str = "up to {limit} actions separated by {action_sep}"
    call: str = '{"name": <tool>, "arguments": {…}}'
    more_calls: str = ", up to {limit} calls"
    turn: str = "Turn {turn} of {max_turn}, actions left: {actions_left}\n{observation}"
    """Each state."""
    reward: str = "Reward: {reward:g}"
    """What the turn before paid."""

    @classmethod
    def of(cls, texts: Mapping[str, Any]) -> Wording:
        """The defaults with some texts replaced.

        Raises:
            ValueError: the first of `faults`.
        """
        found = faults(texts)
        if found:
            key, problem = next(iter(found.items()))
            raise ValueError(f"agent_proxy.wording.{key}: {problem}")
        return cls(**texts)


def faults(texts: Mapping[str, Any]) -> dict[str, str]:
    """Text → what is wrong with it; empty where all can be used."""
    known = [field.name for field in fields(Wording)]
    found: dict[str, str] = {}
    for key, text in texts.items():
        if key not in known:
            found[key] = f"no such text; known: {', '.join(known)}"
        elif not isinstance(text, str):
            found[key] = f'{text!r} is no text; write "" to leave the line out'
        elif key in FIELDS:
            problem = _format_fault(text, FIELDS[key])
            if problem is None and key == "turn" and "{observation" not in text:
                problem = "without {observation} the model never sees the state"
            if problem is not None:
                found[key] = problem
    return found


def _format_fault(text: str, allowed: tuple[str, ...]) -> str | None:
    may = f"it may use {', '.join('{' + name + '}' for name in allowed)}; a literal brace is doubled"
    try:
        used = [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
        if any(name not in allowed for name in used):
            return may
        text.format(**{name: _SAMPLES.get(name, "x") for name in allowed})
    except (ValueError, LookupError) as error:
        return f"{error}; {may}"
    return None
