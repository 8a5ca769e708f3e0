"""Tools that an environment offers (`Env.tools`): their schemas, and calls of them as text.

A call is JSON text with exactly two keys, `{"name": "<tool>", "arguments": {…}}`. That text is the action: replies are
read into it, `Env.step` receives it, scripted policies write it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

#: Longest text, in characters, that is read as a call.
MAX_CALL_CHARACTERS = 100_000


class Call(NamedTuple):
    """One call of a tool."""

    name: str
    arguments: dict[str, Any]


def tool(name: str, description: str, **parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of one tool as chat templates take it; every parameter is required.

    Args:
        name: what the model calls.
        description: one or two sentences, for the model.
        parameters: name → JSON schema, for example `expression={"type": "string", "description": "…"}`.
    """
    schema = {"type": "object", "properties": dict(parameters), "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def tool_names(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names that can be called."""
    return [entry["function"]["name"] for entry in tools]


def check_tools(tools: Any) -> tuple[dict[str, Any], ...] | None:
    """What `Env.tools()` returned, in plain JSON values; None stays None.

    Raises:
        ValueError: not a list of function schemas with different names, or no JSON.
    """
    if tools is None:
        return None
    try:
        plain = json.loads(json.dumps(tools, allow_nan=False))
        names = tool_names(plain)
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(f"tools() must return a list of schemas, see ragen.env.tools.tool: {error!r}") from None
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise ValueError(f"tools() must return at least one tool, each with its own name; the names are {names}")
    return tuple(plain)


def write_call(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as text, the same for the same call."""
    return json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)


def read_call(text: Any) -> Call | None:
    """The call that `text` is, or None: strict JSON, exactly `name` (text) and `arguments` (an object), no key twice.

    Never raises, whatever the text says.
    """
    if not isinstance(text, str) or len(text) > MAX_CALL_CHARACTERS:
        return None
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
        if not isinstance(value, dict) or value.keys() != {"name", "arguments"}:
            return None
        call = Call(value["name"], value["arguments"])
        if not isinstance(call.name, str) or not isinstance(call.arguments, dict):
            return None
        write_call(*call).encode()  # half a character, escaped, is JSON but no text: nothing could show or tokenise it
    except (ValueError, RecursionError):
        return None
    return call


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
