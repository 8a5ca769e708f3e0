"""The context manager: owns text and tokens.

It writes the first prompt from the environment *as configured*, the suffix that follows each reply, and parses replies
(`replies.py`). Which of them a turn's context holds is `contexts.py`'s affair. Suffixes come from rendering the model's
actual chat template, never from its name, and are tokenised once: token in, token out.

Tools (`agent_proxy.parser: tool_call`) go the way that the template offers, found by rendering it: their schemas into
its `tools`, results into messages of the role `tool`. A template that shows no tools gets them in the first message's
text; one that does not show a message of that role gets results from the user.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jinja2

from ragen.env.isolation import EnvDescription
from ragen.env.tools import read_call, tool
from ragen.llm_agent.control_texts import ControlTexts
from ragen.llm_agent.policy import Sampling
from ragen.llm_agent.replies import PARSERS, ParsedReply, register_parser, reply_format
from ragen.llm_agent.trajectory import TrainingSample, Trajectory, samples_of
from ragen.llm_agent.wording import Wording

__all__ = ["PARSERS", "PLAIN_TEMPLATE", "ContextConfig", "ContextManager", "ParsedReply", "register_parser"]

#: For models without a chat template (base models).
PLAIN_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}Assistant: {{ message['content'] }}{{ eos_token }}\n"
    "{% elif message['role'] == 'system' %}{{ message['content'] }}\n\n"
    "{% else %}User: {{ message['content'] }}\n{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)

#: Stands for a reply when the template is rendered to learn what follows one. No template alters plain letters.
_REPLY = "RAGENREPLYGOESHERE"
#: Stand for a tool and its result when the template is rendered to learn whether it shows them.
_TOOL, _RESULT = "RAGENTOOLGOESHERE", "RAGENRESULTGOESHERE"


@dataclass(frozen=True)
class ContextConfig:
    """The settings of `agent_proxy` and `rollout` that shape contexts."""

    max_model_len: int
    """Most tokens of a context, prompt and reply together."""
    response_length: int
    """Most new tokens of one turn."""
    max_turn: int
    """Most replies of an episode."""
    max_actions_per_turn: int
    action_sep: str = "||"
    enable_think: bool = True
    """True: `<think>…</think><answer>…</answer>`; False: `<answer>…</answer>` alone."""
    system_prompt: str = "You are a helpful assistant."
    """Empty: no system message."""
    format_reminder: bool = True
    """Repeat the reply format in every turn."""
    stop: tuple[str, ...] = ()
    """Strings that end a reply, kept token-exact."""
    use_turn_scores: bool = False
    enable_response_mask: bool = True
    parser: str = "think_answer"
    """A name of `ragen.llm_agent.replies.PARSERS`, or `module:Class`."""
    context_window_mode: str = "full"
    """full, limited_multi_turn or single_turn: see `EpisodeContext`."""
    max_context_window: int = -1
    """Earlier turns that a context holds at most, in mode limited_multi_turn."""
    context_overflow: str = "end"
    """end: an episode whose context leaves no room for a reply is over; drop_oldest: its oldest turns leave."""
    history_thinking: str = "all"
    """Which earlier replies keep their thoughts: all, the last or none."""
    think_tag: str = "think"
    answer_tag: str = "answer"
    """Names of the tags, without brackets."""
    wording: Wording = Wording()
    """The sentences around the environment's own text."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Passed to the chat template, e.g. `enable_thinking: False`."""

    @classmethod
    def from_nodes(cls, *nodes: Mapping[str, Any]) -> ContextConfig:
        """Each field from the first of the config nodes that has a key of its name; the rest keep their defaults."""
        found = {}
        for name in cls.__dataclass_fields__:
            value = next((node[name] for node in nodes if name in node), None)
            if value is not None:
                found[name] = convert(value) if (convert := _CONVERT.get(name)) else value
        return cls(**found)


#: Fields whose value in a config is of another type.
_CONVERT = {"stop": tuple, "wording": Wording.of}


class ContextManager:
    """Text and tokens of every episode. Stateless between calls: safe to share among coroutines.

    Args:
        tokenizer: a Hugging Face tokenizer. Without a chat template `PLAIN_TEMPLATE` is used.
        config: lengths, limits and format.

    Raises:
        ValueError: an unknown parser, or a window of no turns.
    """

    def __init__(self, tokenizer: Any, config: ContextConfig):
        self.tokenizer, self.config = tokenizer, config
        self.control_texts = ControlTexts(tokenizer)
        self.template = tokenizer.chat_template or PLAIN_TEMPLATE
        self.format = reply_format(config.parser)
        if config.context_window_mode == "limited_multi_turn" and config.max_context_window < 1:
            raise ValueError(
                f"agent_proxy.max_context_window={config.max_context_window}: limited_multi_turn needs at least 1"
            )
        opening = self._render([{"role": "user", "content": "x"}]).rstrip()
        prefill = f"<{config.think_tag}>"
        #: What the template opens a reply with, and what of it the reply format wants to see.
        self._opened = prefill if opening.endswith(prefill) else ""
        self._prefilled = self._opened if config.enable_think else ""
        opened, closed = re.escape(prefill), re.escape(f"</{config.think_tag}>")
        self._thoughts = re.compile(rf"{opened}.*?(?:{closed}\s*|\Z)", re.DOTALL)
        self._opened_thought = re.compile(rf"{opened}\s*(?:{closed}\s*)?\Z")

    # --- prompts ----------------------------------------------------------------------------------

    def initial_ids(self, description: EnvDescription, observation: str, *, max_actions: int) -> list[int]:
        """Token ids of the first prompt: `prompt_text` of the first state."""
        return self.encode(self.prompt_text(description, observation, turn=0, actions_left=max_actions))

    def prompt_text(self, description: EnvDescription, observation: str, *, turn: int, actions_left: int) -> str:
        """What a context begins with: rules, actions or tools, reply format and the state of the turn `turn`, from 0.

        Raises:
            ValueError: the reply format needs tools, and the environment offers none.
        """
        if self.format.uses_tools and not description.tools:
            raise ValueError(f"agent_proxy.parser={self.config.parser} needs an environment with tools: {description}")
        tools = description.tools if self._template_takes_tools else None
        user = "\n".join([*self._rules(description, actions_left), self._state(turn, observation, actions_left)])
        return self._render(self._messages(user, tools), tools)

    def suffix_ids(self, reply_ids: list[int], observation: str, **told: Any) -> list[int]:
        """Token ids that follow a reply: `suffix_text` less the end token, where `reply_ids` end with it."""
        ids = self.encode(self.suffix_text(observation, **told))
        return ids[1:] if reply_ids[-1] == ids[0] else ids

    def suffix_text(
        self,
        observation: str,
        *,
        turn: int,
        reward: float,
        actions_left: int,
        notes: tuple[str, ...],
        results: Sequence[tuple[str, str]] = (),
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """What follows a reply: its end token, the next state, the opening of the next reply.

        Args:
            observation: the state that the environment returned.
            turn: number of the turn that begins, from 0.
            reward: the environment's reward of the turn that ended.
            actions_left: actions that the episode may still take.
            notes: what was dropped or not carried out, told to the policy.
            results: (action, observation) of each action carried out; a format with tools shows them all, each as the
                result of its call. The last one's observation is `observation`.
            tools: the environment's tools (`EnvDescription.tools`), for such a format.
        """
        lines = [*_given(self.config.wording.reward.format(reward=reward)), *notes]
        lines.append(self._state(turn, observation, actions_left))
        if self.config.format_reminder:
            lines.extend(_given(self._format_line(actions_left)))
        return self._after_reply(self._answers(lines, results), tools)

    def _answers(self, lines: list[str], results: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
        """The messages that answer a reply: one of the user, or one of the role `tool` for each call."""
        text = "\n".join(lines)
        if not self.format.uses_tools or not results:
            return [{"role": "user", "content": text}]
        shown = [*(observation for _, observation in results[:-1]), text]
        if not self._template_shows_results:
            return [{"role": "user", "content": "\n".join(shown)}]
        names = [call.name if (call := read_call(action)) else "" for action, _ in results]
        return [{"role": "tool", "name": name, "content": content} for name, content in zip(names, shown, strict=True)]

    def _after_reply(
        self, answers: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> str:
        """What the template writes after a reply that is answered so: its end, the answers, the next opening."""
        opening = [{"role": "user", "content": "x"}, {"role": "assistant", "content": _REPLY}]
        rendered = self._render([*opening, *answers], tools if self._template_takes_tools else None)
        if rendered.count(_REPLY) != 1:
            raise ValueError(
                "the chat template does not keep an assistant message verbatim; no suffix can be read off it"
            )
        return rendered.split(_REPLY)[1]

    @functools.cached_property
    def _template_takes_tools(self) -> bool:
        """Whether schemas given to the template show in what it writes."""
        if not self.format.uses_tools:
            return False
        try:
            return _TOOL in self._render([{"role": "user", "content": "x"}], [tool(_TOOL, "x")])
        except Exception:  # a template is a program from elsewhere: one that trips over tools does not take them
            return False

    @functools.cached_property
    def _template_shows_results(self) -> bool:
        """Whether the template writes a message of the role `tool`, after a reply that is plain text to it."""
        result = {"role": "tool", "name": _TOOL, "content": _RESULT}
        try:
            return self._after_reply([result], [tool(_TOOL, "x")]).count(_RESULT) == 1
        except Exception:  # some refuse the role, some unless the call before it is given as data
            return False

    @functools.cached_property
    def end_ids(self) -> frozenset[int]:
        """Ids that end a reply and say nothing: the template's end token, and every special one."""
        special = getattr(self.tokenizer, "all_special_ids", ())
        try:
            return frozenset([*self.encode(self._after_reply([{"role": "user", "content": "x"}]))[:1], *special])
        except ValueError:  # an episode of one turn needs no suffix
            return frozenset(special)

    def _messages(self, user: str, tools: Sequence[Mapping[str, Any]] | None = None) -> list[dict[str, str]]:
        if not self.config.system_prompt:
            return [{"role": "user", "content": user}]
        messages = [{"role": "system", "content": self.config.system_prompt}, {"role": "user", "content": user}]
        try:
            self._render(messages, tools)
        except jinja2.TemplateError:  # some templates refuse the system role: its text opens the first message
            return [{"role": "user", "content": f"{self.config.system_prompt}\n\n{user}"}]
        return messages

    def _render(self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
        given = {"tools": list(tools)} if tools else {}
        return self.tokenizer.apply_chat_template(
            [{**message, "content": self.control_texts.hide(message["content"])} for message in messages],
            chat_template=self.template,
            tokenize=False,
            add_generation_prompt=True,
            **given,
            **self.config.chat_template_kwargs,
        )

    def encode(self, text: str) -> list[int]:
        """Token ids of a piece of context."""
        # The template already wrote every special token that belongs here.
        if not text.isascii():  # half a character, in what an environment says, would stop any tokenizer
            text = text.encode(errors="replace").decode()
        return self.control_texts.encode(text)

    # --- wording ----------------------------------------------------------------------------------

    def _rules(self, description: EnvDescription, max_actions: int) -> list[str]:
        wording = self.config.wording
        lines = [description.instruction.strip()]
        if description.actions:
            lines.extend(_given(wording.actions.format(actions=", ".join(description.actions))))
        if description.tools and not self._template_takes_tools:
            schemas = "\n".join(json.dumps(entry["function"], ensure_ascii=False) for entry in description.tools)
            lines.extend(_given(wording.tools.format(tools=schemas, call=wording.call)))
        return [*lines, *_given(self._format_line(max_actions))]

    def _format_line(self, actions_left: int) -> str:
        limit = min(self.config.max_actions_per_turn, actions_left)
        return self.config.wording.reply_format.format(format=self.format.describe(self.config, limit))

    def _state(self, turn: int, observation: str, actions_left: int) -> str:
        return self.config.wording.turn.format(
            turn=turn + 1, max_turn=self.config.max_turn, actions_left=actions_left, observation=observation
        )

    # --- replies ----------------------------------------------------------------------------------

    def sampling(self, context_length: int, *, tag_limit: int | None = None, **params: Any) -> Sampling | None:
        """Sampling of the next reply, or None when the context has no room for one more token."""
        room = self.config.max_model_len - context_length
        if room < 1:
            return None
        return Sampling(max_tokens=min(tag_limit or self.config.response_length, room), stop=self.config.stop, **params)

    def parse(self, reply_ids: list[int]) -> tuple[str, ParsedReply]:
        """The reply as text (special tokens kept) and what it asks for."""
        text, said = self._said(reply_ids, self._prefilled)
        return text, self.format.parse(said, self.config)

    def without_thoughts(self, reply_ids: list[int]) -> str | None:
        """The reply's text without what is between its thinking tags, and without its end token; None: no such tags."""
        text, said = self._said(reply_ids, self._opened)
        shortened = self._thoughts.sub("", said)
        return None if shortened == said else self.control_texts.hide_typed(shortened, text, reply_ids)

    def without_opened_thought(self, context: str) -> str:
        """A context's text without the thinking tags that the template itself opens the reply with, if it does."""
        return self._opened_thought.sub("", context)

    def _said(self, reply_ids: list[int], opened: str) -> tuple[str, str]:
        """A reply's text as it stands, and with `opened`, which the template wrote, and without its end token."""
        text = self.tokenizer.decode(reply_ids, skip_special_tokens=False)
        said = text
        if reply_ids[-1] in self.end_ids:
            said = text.removesuffix(self.tokenizer.decode(reply_ids[-1:], skip_special_tokens=False))
        return text, said if said.lstrip().startswith(opened) else opened + said

    def reply_ids(self, actions: list[str], thought: str = "") -> list[int]:
        """Token ids of a well-formed reply with its end token, as a perfect model would sample it."""
        text = self.format.write(actions, thought, self.config).removeprefix(self._prefilled)
        return self.encode(text) + self.encode(self._after_reply([{"role": "user", "content": "x"}]))[:1]

    # --- samples ----------------------------------------------------------------------------------

    def formulate(self, trajectory: Trajectory) -> list[TrainingSample]:
        """The training samples of one usable episode: one for each context that it was played in."""
        return samples_of(
            trajectory,
            use_turn_scores=self.config.use_turn_scores,
            mask_all_after_prompt=not self.config.enable_response_mask,
        )

    # --- batch-wise calls, thin layers over the above ---------------------------------------------

    def get_lm_inputs(self, rollout_states: list[dict[str, Any]]) -> list[list[int]]:
        """First prompts of a batch of `EnvStateManager.get_rollout_states()`."""
        return [
            self.initial_ids(state["description"], state["observation"], max_actions=state["actions_left"])
            for state in rollout_states
        ]

    def get_env_inputs(self, replies: list[list[int]]) -> list[ParsedReply]:
        """What a batch of sampled replies asks for."""
        return [self.parse(reply_ids)[1] for reply_ids in replies]

    def formulate_rollouts(self, trajectories: list[Trajectory]) -> list[TrainingSample]:
        """The samples of all usable episodes, in order."""
        return [sample for t in trajectories if t.usable for sample in self.formulate(t)]


def _given(text: str) -> list[str]:
    """The line that `text` is; none where the wording leaves it empty."""
    return [text] if text else []
