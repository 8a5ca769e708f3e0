"""The context manager: owns text and tokens.

It writes the first prompt from the environment *as configured*, the suffix that follows each reply, and parses
replies. Suffixes come from rendering the model's actual chat template, never from its name, and are tokenised once:
token in, token out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jinja2

from ragen.env.isolation import EnvDescription
from ragen.llm_agent.policy import Sampling
from ragen.llm_agent.trajectory import TrainingSample, Trajectory, full_sample

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
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Passed to the chat template, e.g. `enable_thinking: False`."""

    @classmethod
    def from_nodes(cls, *nodes: Mapping[str, Any]) -> ContextConfig:
        """Each field from the first of the config nodes that has a key of its name; the rest keep their defaults."""
        found = {}
        for name in cls.__dataclass_fields__:
            value = next((node[name] for node in nodes if name in node), None)
            if value is not None:
                found[name] = tuple(value) if name == "stop" else value
        return cls(**found)


@dataclass(frozen=True)
class ParsedReply:
    """What a reply asks for."""

    actions: tuple[str, ...]
    """Action texts in order, not yet matched against the environment's names."""
    well_formed: bool
    """Whether the reply follows the format."""
    thought: str = ""


Parser = Callable[[str, ContextConfig], ParsedReply]
PARSERS: dict[str, Parser] = {}


def register_parser(name: str) -> Callable[[Parser], Parser]:
    """Register a reply parser under `name` (`agent_proxy.parser`). A name that is taken raises ValueError."""

    def decorator(parser: Parser) -> Parser:
        if name in PARSERS:
            raise ValueError(f"reply parser {name!r} is already registered to {PARSERS[name].__qualname__}")
        PARSERS[name] = parser
        return parser

    return decorator


@register_parser("think_answer")
def parse_think_answer(reply: str, config: ContextConfig) -> ParsedReply:
    """`<think>…</think><answer>a1 || a2</answer>`, or the answer alone without thinking; the first such pair counts."""
    answer = r"<answer>(.*?)</answer>"
    match = re.search(rf"<think>(.*?)</think>\s*{answer}" if config.enable_think else rf"(){answer}", reply, re.DOTALL)
    if match is None:
        return ParsedReply((), False)
    actions = tuple(text for text in (part.strip() for part in match.group(2).split(config.action_sep)) if text)
    return ParsedReply(actions, True, match.group(1).strip())


class ContextManager:
    """Text and tokens of every episode. Stateless between calls: safe to share among coroutines.

    Args:
        tokenizer: a Hugging Face tokenizer. Without a chat template `PLAIN_TEMPLATE` is used.
        config: lengths, limits and format.

    Raises:
        ValueError: an unknown parser, or a template that does not keep replies verbatim.
    """

    def __init__(self, tokenizer: Any, config: ContextConfig):
        self.tokenizer, self.config = tokenizer, config
        self._template = tokenizer.chat_template or PLAIN_TEMPLATE
        if config.parser not in PARSERS:
            raise ValueError(f"agent_proxy.parser: {config.parser!r} is not one of {sorted(PARSERS)}")
        self._parse = PARSERS[config.parser]
        opening = self._render([{"role": "user", "content": "x"}]).rstrip()
        self._prefilled = "<think>" if opening.endswith("<think>") else ""

    # --- prompts ----------------------------------------------------------------------------------

    def initial_ids(self, description: EnvDescription, observation: str, *, max_actions: int) -> list[int]:
        """Token ids of the first prompt: rules, actions, reply format and the first state."""
        user = "\n".join([*self._rules(description, max_actions), self._state(0, observation, max_actions)])
        return self._encode(self._render(self._messages(user)))

    def suffix_ids(
        self,
        reply_ids: list[int],
        observation: str,
        *,
        turn: int,
        reward: float,
        actions_left: int,
        notes: tuple[str, ...],
    ) -> list[int]:
        """Token ids that follow a reply: its end token unless sampled, the next state, the opening of the next reply.

        Args:
            reply_ids: the sampled ids of the reply just given.
            observation: the state that the environment returned.
            turn: number of the turn that begins, from 0.
            reward: the environment's reward of the turn that ended.
            actions_left: actions that the episode may still take.
            notes: what was dropped or not carried out, told to the policy.
        """
        lines = [f"Reward: {reward:g}", *notes, self._state(turn, observation, actions_left)]
        if self.config.format_reminder:
            lines.append(self._format_line(actions_left))
        messages = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": _REPLY},
            {"role": "user", "content": "\n".join(lines)},
        ]
        rendered = self._render(messages)
        if rendered.count(_REPLY) != 1:
            raise ValueError(
                "the chat template does not keep an assistant message verbatim; no suffix can be read off it"
            )
        ids = self._encode(rendered.split(_REPLY)[1])
        # The end of turn was sampled already where the reply's last id is the one that the template puts first.
        return ids[1:] if reply_ids[-1] == ids[0] else ids

    def _messages(self, user: str) -> list[dict[str, str]]:
        if not self.config.system_prompt:
            return [{"role": "user", "content": user}]
        messages = [{"role": "system", "content": self.config.system_prompt}, {"role": "user", "content": user}]
        try:
            self._render(messages)
        except jinja2.TemplateError:  # some templates refuse the system role: its text opens the first message
            return [{"role": "user", "content": f"{self.config.system_prompt}\n\n{user}"}]
        return messages

    def _render(self, messages: list[dict[str, str]]) -> str:
        return self.tokenizer.apply_chat_template(
            messages,
            chat_template=self._template,
            tokenize=False,
            add_generation_prompt=True,
            **self.config.chat_template_kwargs,
        )

    def _encode(self, text: str) -> list[int]:
        # The template already wrote every special token that belongs here.
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    # --- wording ----------------------------------------------------------------------------------

    def _rules(self, description: EnvDescription, max_actions: int) -> list[str]:
        lines = [description.instruction.strip()]
        if description.actions:
            lines.append(f"Actions: {', '.join(description.actions)}")
        lines.append(self._format_line(max_actions))
        return lines

    def _format_line(self, actions_left: int) -> str:
        limit = min(self.config.max_actions_per_turn, actions_left)
        answer = "your action" if limit == 1 else f"up to {limit} actions separated by {self.config.action_sep}"
        thought = "<think>your thoughts</think>" if self.config.enable_think else ""
        return f"Reply with {thought}<answer>{answer}</answer>"

    def _state(self, turn: int, observation: str, actions_left: int) -> str:
        return f"Turn {turn + 1} of {self.config.max_turn}, actions left: {actions_left}\n{observation}"

    # --- replies ----------------------------------------------------------------------------------

    def sampling(self, context_length: int, *, tag_limit: int | None = None, **params: Any) -> Sampling | None:
        """Sampling of the next reply, or None when the context has no room for one more token."""
        room = self.config.max_model_len - context_length
        if room < 1:
            return None
        return Sampling(max_tokens=min(tag_limit or self.config.response_length, room), stop=self.config.stop, **params)

    def parse(self, reply_ids: list[int]) -> tuple[str, ParsedReply]:
        """The reply as text (special tokens kept) and what it asks for."""
        text = self.tokenizer.decode(reply_ids, skip_special_tokens=False)
        whole = text if text.lstrip().startswith("<think>") else self._prefilled + text
        return text, self._parse(whole, self.config)

    def reply_ids(self, actions: list[str], thought: str = "") -> list[int]:
        """Token ids of a well-formed reply with its end token, as a perfect model would sample it."""
        think = f"<think>{thought}</think>"[len(self._prefilled) :] if self.config.enable_think else ""
        answer = f" {self.config.action_sep} ".join(actions)
        text = f"{think}<answer>{answer}</answer>"
        rendered = self._render(
            [
                {"role": "user", "content": "x"},
                {"role": "assistant", "content": _REPLY},
                {"role": "user", "content": "x"},
            ]
        )
        return self._encode(text) + self._encode(rendered.split(_REPLY)[1])[:1]

    # --- samples ----------------------------------------------------------------------------------

    def formulate(self, trajectory: Trajectory) -> list[TrainingSample]:
        """The training samples of one usable episode; context mode `full`: exactly one."""
        return [
            full_sample(
                trajectory,
                use_turn_scores=self.config.use_turn_scores,
                mask_all_after_prompt=not self.config.enable_response_mask,
            )
        ]

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
