"""Whether the right tokens are trained under a chat template: one named check a question, each with a verdict.

| verdict | |
|---|---|
| ok | as one would wish |
| adapted | RAGEN copes with it, and what is trained is right; the sentence says what differs |
| wrong | a training would not do what its config says |

`check_template` asks them all of a tokenizer, its chat template and the settings of a config.
`python -m ragen.llm_agent.check_template` is the command line; every training asks them before it starts.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jinja2
import numpy as np

from ragen.env.registry import EnvSpec, load_specs
from ragen.llm_agent.agent_proxy import LLMAgentProxy
from ragen.llm_agent.ctx_manager import ContextConfig, ContextManager
from ragen.llm_agent.es_manager import EnvStateManager, Episode, Split
from ragen.llm_agent.policy import Generation, Policy, Sampling, random_actions
from ragen.llm_agent.trajectory import Trajectory

__all__ = ["TEMPLATE_CHECKS", "Subject", "Verdict", "check_template", "register_check", "stop_ids"]

Status = Literal["ok", "adapted", "wrong"]

#: Stand for what a user says and for the system prompt when the template is rendered.
_USER, _SECOND, _SYSTEM = "RAGENUSERGOESHERE", "RAGENSECONDGOESHERE", "RAGENSYSTEMGOESHERE"
_THOUGHT = "a first thought"


@dataclass(frozen=True)
class Verdict:
    """The answer of one check."""

    check: str
    status: Status
    says: str
    """One sentence: what is so, or what differs."""
    fix: str = ""
    """What to do about it; empty where there is nothing to do."""


Answer = tuple[Status, str] | tuple[Status, str, str]


@dataclass(frozen=True)
class Check:
    """One question."""

    ask: Callable[[Subject], Answer]
    decisive: bool
    """Without a good answer the checks after it mean nothing and are left out."""


TEMPLATE_CHECKS: dict[str, Check] = {}


def register_check(name: str, *, decisive: bool = False) -> Callable[[Callable[[Subject], Answer]], Any]:
    """Register a check, a function of a `Subject` that returns status, sentence and, if there is one, a fix.

    A name that is taken raises ValueError. Checks run in the order of their registration.
    """

    def decorator(ask: Callable[[Subject], Answer]) -> Callable[[Subject], Answer]:
        if name in TEMPLATE_CHECKS:
            raise ValueError(f"template check {name!r} is already registered")
        TEMPLATE_CHECKS[name] = Check(ask, decisive)
        return ask

    return decorator


class Subject:
    """A tokenizer with its template under the settings of a config, as the checks see it.

    Args:
        tokenizer: a Hugging Face tokenizer.
        config: the settings.
        stops: ids at which the rollout engine ends a reply; None: the tokenizer's end token alone.

    Raises:
        Exception: whatever the template or the tokenizer raises at a single message of the user.
    """

    def __init__(self, tokenizer: Any, config: ContextConfig, stops: frozenset[int] | None = None):
        self.tokenizer, self.config = tokenizer, config
        self.ctx = ContextManager(tokenizer, config)
        self.stops = stop_ids(tokenizer) if stops is None else stops

    def render(self, *said: tuple[str, str], opening: bool = True) -> str:
        """The template's text of messages (role, content); `opening`: with that of the reply to come."""
        return self.tokenizer.apply_chat_template(
            [{"role": role, "content": content} for role, content in said],
            chat_template=self.ctx.template,
            tokenize=False,
            add_generation_prompt=opening,
            **self.config.chat_template_kwargs,
        )

    def after_reply(self, answer: str = _SECOND) -> str:
        """What follows a reply that the user answers: its end, the answer, the next opening."""
        return self.ctx._after_reply([{"role": "user", "content": answer}])

    def before_reply(self) -> str:
        """What the template writes before an earlier reply, in its own rendering of a history."""
        text = self.render(("user", _USER), ("assistant", _SECOND), ("user", "x"))
        return text.partition(_SECOND)[0]

    @functools.cached_property
    def opened(self) -> str:
        """What the prompt ends with beyond what stands before an earlier reply: thoughts that the template opens."""
        return self.render(("user", _USER)).removeprefix(self.before_reply())

    def encode(self, text: str) -> list[int]:
        """Ids of a text in which control tokens are whole."""
        return self.ctx.encode(text)

    def tokens(self, ids: Sequence[int]) -> str:
        """The first few tokens, to be shown."""
        shown = " ".join(repr(token) for token in self.tokenizer.convert_ids_to_tokens(list(ids[:4])))
        return shown + (" …" if len(ids) > 4 else "")


def stop_ids(tokenizer: Any, folder: str | Path | None = None) -> frozenset[int]:
    """Ids at which a rollout engine ends a reply: the tokenizer's end token, and those that the model's folder names.

    As vLLM does: those of `generation_config.json`, or of `config.json` where that file is missing.
    """
    found = set() if tokenizer.eos_token_id is None else {tokenizer.eos_token_id}
    names = ("generation_config.json", "config.json") if folder is not None else ()
    file = next((path for name in names if (path := Path(folder) / name).is_file()), None)
    if file is not None:
        told = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
        found.update(told if isinstance(told, list) else [] if told is None else [told])
    return frozenset(found)


def check_template(tokenizer: Any, config: ContextConfig, stops: frozenset[int] | None = None) -> list[Verdict]:
    """The verdicts of all checks, in their order; of the first alone where the template cannot be used at all.

    Args: see `Subject`.
    """
    try:
        subject = Subject(tokenizer, config, stops)
    except Exception as error:  # a template is a program from elsewhere, and may raise anything
        says = f"a single message of the user cannot be rendered: {_first_line(error)}"
        return [Verdict("renders", "wrong", says, "mend the model's chat template")]
    verdicts = []
    for name, check in TEMPLATE_CHECKS.items():
        try:
            verdict = Verdict(name, *check.ask(subject))
        except Exception as error:
            verdict = Verdict(name, "wrong", f"cannot be answered: {_first_line(error)}", "mend the chat template")
        verdicts.append(verdict)
        if check.decisive and verdict.status == "wrong":
            break
    return verdicts


# --- what the policy reads -------------------------------------------------------------------------------------------


@register_check("renders")
def _renders(subject: Subject) -> Answer:
    if not subject.tokenizer.chat_template:
        return "adapted", "the tokenizer has no chat template: a plain one is used, `User: …`, `Assistant: …`"
    return "ok", "the tokenizer's own chat template is used"


@register_check("reply_kept", decisive=True)
def _reply_kept(subject: Subject) -> Answer:
    """What follows a reply is read off the template's text around one."""
    try:
        subject.after_reply()
    except Exception as error:
        if subject.config.max_turn == 1:
            says = f"what follows a reply cannot be read off the template ({_first_line(error)}); one turn needs none"
            return "adapted", says
        return "wrong", f"no second turn can be written: {_first_line(error)}", "write assistant messages as they are"
    return "ok", "a reply is written as it is, and what follows it can be read off the template"


@register_check("opening")
def _opening(subject: Subject) -> Answer:
    """The policy begins where the template's own replies begin."""
    prompt, before = subject.render(("user", _USER)), subject.before_reply()
    bare = subject.render(("user", _USER), opening=False)
    if prompt == before:
        return "ok", f"a reply begins after {_quoted(prompt.partition(_USER)[2])}, as in the template's history"
    if prompt.startswith(before):
        if subject.opened.strip():
            return "ok", f"a reply begins after {_quoted(prompt.partition(_USER)[2])}"
        return "adapted", f"the prompt ends with {_quoted(subject.opened)}, which no earlier reply has before it"
    missing = before.removeprefix(prompt) if before.startswith(prompt) else ""
    if prompt.rstrip() == before.rstrip():
        return "adapted", "the prompt and the template's history differ in the white space before a reply"
    if not missing:
        return "adapted", "the template writes something else before an earlier reply than before the one to come"
    if not re.sub(rf"</?{subject.config.think_tag}>|\s", "", missing):
        return "adapted", f"the template puts {_quoted(missing)} before an earlier reply; RAGEN does not"
    if prompt == bare:
        says = f"the template opens no reply (add_generation_prompt): the policy would have to write {_quoted(missing)}"
        return "wrong", says, "make the template write it where add_generation_prompt is set"
    return "adapted", f"the policy itself writes what the template has before an earlier reply: {_quoted(missing)}"


@register_check("think_opened")
def _think_opened(subject: Subject) -> Answer:
    """Thoughts that the template opens, or opens and closes, are no one's tokens to train."""
    tag, thinks = subject.config.think_tag, subject.config.enable_think
    text = subject.render(("user", _USER)).rstrip()
    if text.endswith(f"<{tag}>"):
        if thinks:
            return "adapted", f"the template opens the thoughts: <{tag}> is not trained, and read as the reply's own"
        says = f"the template opens thoughts with <{tag}>, while agent_proxy.enable_think=false asks for none"
        return "adapted", says, "set agent_proxy.enable_think=true, or what the template takes in chat_template_kwargs"
    if text.endswith(f"</{tag}>"):
        says = "the template opens and closes empty thoughts; neither is trained"
        return (
            ("adapted", f"{says}, and the reply format asks for thoughts after them") if thinks else ("adapted", says)
        )
    if other := re.search(r"<([a-z_]+)>$", text[len(subject.before_reply()) :]):
        says = f"the template opens a reply with <{other[1]}>, and the reply format knows <{tag}>"
        return "adapted", says, f"set agent_proxy.think_tag={other[1]}"
    return "ok", "the template opens no thoughts"


@register_check("system_role")
def _system_role(subject: Subject) -> Answer:
    prompt = subject.config.system_prompt
    if not prompt:
        return "ok", "no system prompt is set"
    try:
        text = subject.render(("system", _SYSTEM), ("user", _USER))
    except jinja2.TemplateError:
        return "adapted", "the template refuses the system role: agent_proxy.system_prompt opens the first message"
    if _SYSTEM not in text:
        return "wrong", "the template leaves the system prompt out", 'set agent_proxy.system_prompt=""'
    return "ok", "the template takes the system prompt"


@register_check("default_system")
def _default_system(subject: Subject) -> Answer:
    """A system prompt of the template's own may open an episode, and must not come again with every turn."""
    alone = subject.render(("user", _USER)).partition(_USER)[0]
    suffix, default = subject.after_reply(), ""
    try:
        before, _, rest = subject.render(("system", _SYSTEM), ("user", _USER)).partition(_SYSTEM)
    except jinja2.TemplateError:
        before = rest = ""
    between = rest.partition(_USER)[0]
    if between and alone.startswith(before) and alone.endswith(between) and len(alone) > len(before + between):
        default = alone[len(before) : -len(between)].strip()
    said = [default, *(line.strip() for line in f"{before}\n{alone}".splitlines() if len(line.split()) > 2)]
    again = next((text for text in said if text and text in suffix), None)
    if again is not None:
        says = f"the template writes its own system prompt again in every turn: {_quoted(again)}"
        return "wrong", says, "make the template write it at the first message only"
    if default and not subject.config.system_prompt:
        return "adapted", f"the template opens the episode with a system prompt of its own: {_quoted(default)}"
    return "ok", "no system prompt comes in with a later turn"


@register_check("tool_role")
def _tool_role(subject: Subject) -> Answer:
    ctx = subject.ctx
    if not ctx.format.uses_tools:
        return "ok", f"agent_proxy.parser={subject.config.parser} uses no tools"
    lacks = [] if ctx._template_takes_tools else ["takes no tools: their schemas are part of the first message"]
    if not ctx._template_shows_results:
        lacks.append("shows no message of the role tool: results come from the user")
    return (
        ("adapted", f"the template {', and '.join(lacks)}") if lacks else ("ok", "the template takes tools and results")
    )


# --- where a reply ends, and what follows ----------------------------------------------------------------------------


@register_check("end_of_turn")
def _end_of_turn(subject: Subject) -> Answer:
    """The template ends a reply with a token at which the engine stops; else each reply goes on to its limit."""
    ids = subject.encode(subject.after_reply())
    if ids and ids[0] in subject.stops:
        return "ok", f"a reply ends with {subject.tokens(ids[:1])}, at which the engine stops"
    known = subject.tokens(sorted(subject.stops)) or "none"
    text = subject.after_reply().partition(_SECOND)[0]
    if subject.config.stop:
        says = f"the template ends a reply with {_quoted(text)}, no end token: agent_proxy.stop ends it"
        return "adapted", says
    later = next((number for number in ids if number in subject.stops), None)
    if later is not None and not subject.tokenizer.decode(ids[: ids.index(later)]).strip():
        says = (
            f"white space stands before the end token {subject.tokens([later])}, which then comes twice after a reply"
        )
        return "adapted", says
    says = (
        f"the template ends a reply with {_quoted(text)}, at which the engine does not stop (it does at {known}): "
        "every reply would go on to response_length"
    )
    # what a reply of this format ends with, as far as it is a tag
    tag = re.search(r"</\w+>$", subject.ctx.format.write(["x"], "", subject.config))
    stop = f"agent_proxy.stop=['{tag[0]}']" if tag else "agent_proxy.stop to a text that ends a reply"
    return "wrong", says, f"name the end token in generation_config.json, or set {stop}"


@register_check("bos")
def _bos(subject: Subject) -> Answer:
    """The beginning-of-text token stands once at the start, and later only where the template has it."""
    bos = subject.tokenizer.bos_token_id
    if bos is None:
        return "ok", "the tokenizer has no beginning-of-text token"
    prompt, suffix = subject.encode(subject.render(("user", _USER))), subject.encode(subject.after_reply())
    added = subject.tokenizer("x")["input_ids"][:1] == [bos]
    if prompt[:2] == [bos, bos]:
        return "wrong", "the prompt begins with two beginning-of-text tokens", "let the template write it once"
    if bos in suffix and bos not in subject.stops:
        # some models are trained so: it opens each of their messages, or each of the user's
        return "adapted", "the template writes the beginning-of-text token in later turns too, and so does RAGEN"
    if added and bos not in prompt[:1]:
        says = "the template writes no beginning-of-text token, though the tokenizer puts one before a plain text"
        return "adapted", says, "begin the template with {{ bos_token }} if the model was trained with one"
    if added and prompt[:1] == [bos]:
        says = "template and tokenizer both begin with it: RAGEN writes the template's alone"
        return "adapted", f"{says}; whoever tokenises the template's text elsewhere must do so without special tokens"
    return "ok", "the beginning-of-text token comes once" if bos in prompt else "no beginning-of-text token is used"


@register_check("history")
def _history(subject: Subject) -> Answer:
    """The template's own text of a conversation, against what the policy read and wrote."""
    ctx, said = subject.ctx, subject.ctx.format.write(["first"], _THOUGHT, subject.config)
    first = [(m["role"], m["content"]) for m in ctx._messages(_USER)]
    own = subject.render(*first) + said.removeprefix(ctx._prefilled) + subject.after_reply()
    theirs = subject.render(*first, ("assistant", said), ("user", _SECOND))
    if own == theirs:
        return "ok", "the template's text of a conversation is what the policy read and wrote"
    trained = "the policy is trained on its sampled tokens in the context that it read"
    if subject.config.enable_think and _THOUGHT not in theirs:
        if subject.config.history_thinking == "all":
            says = (
                f"the template leaves earlier thoughts out; {trained}, with them. A server that renders anew shows none"
            )
            return "adapted", says, "agent_proxy.history_thinking=none trains without earlier thoughts"
        return "adapted", f"the template leaves earlier thoughts out, as agent_proxy.history_thinking may; {trained}"
    at = next((k for k, (a, b) in enumerate(zip(own, theirs, strict=False)) if a != b), min(len(own), len(theirs)))
    here, there = _quoted(own[at : at + 30]), _quoted(theirs[at : at + 30])
    return "adapted", f"after a reply the policy reads {here}, where the template alone would write {there}; {trained}"


@register_check("pieces")
def _pieces(subject: Subject) -> Answer:
    """Prompt and suffixes are tokenised by themselves; whether that gives the tokens of the whole text."""
    ctx = subject.ctx
    prompt, said = subject.render(("user", _USER)), ctx.format.write(["first"], _THOUGHT, subject.config)
    suffix = subject.after_reply()
    whole = subject.encode(prompt + said.removeprefix(ctx._prefilled) + suffix)
    first, later = subject.encode(prompt), subject.encode(suffix)
    if whole[-len(later) :] == later and whole[: len(first)] == first:
        return "ok", "prompt and suffixes have the tokens that they have within the whole text"
    name, mine, theirs = "what follows a reply", later, whole[-len(later) :]
    if whole[-len(later) :] == later:
        name, mine, theirs = "the end of a prompt", first[-4:], whole[len(first) - 4 : len(first)]
    else:
        same = next((k for k, (a, b) in enumerate(zip(later[::-1], whole[::-1], strict=False)) if a != b), len(later))
        mine, theirs = later[: len(later) - same], whole[: len(whole) - same][-4:]
    says = (
        f"{name} is {subject.tokens(mine) or 'nothing'} by itself, and {subject.tokens(theirs)} within the whole text"
    )
    return (
        "adapted",
        f"{says}: trained and read are the former, and a server that tokenises whole texts uses the latter",
    )


@register_check("control_text")
def _control_text(subject: Subject) -> Answer:
    """An environment, or a note that quotes the policy, may spell a control token: it must stay text."""
    ctx = subject.ctx
    end = subject.encode(subject.after_reply())[:1]
    controls = {*subject.stops, *ctx.control_texts.tokens, *end}
    texts = {number: subject.tokenizer.decode([number], skip_special_tokens=False) for number in sorted(controls)}
    special = {number: text for number, text in texts.items() if re.search(r"[<\[]\S", text)}

    def count(observation: str) -> int:
        told = {"turn": 1, "reward": 0.0, "actions_left": 1, "notes": ()}
        return sum(number in special for number in ctx.encode(ctx.suffix_text(observation, **told)))

    plain = count("ab")
    forged = [text for text in special.values() if count(f"a{text}b") != plain]
    if forged:
        says = f"a text of the environment that spells {', '.join(forged)} becomes the control token"
        return "wrong", says, "mark it as special in the tokenizer, or keep such texts out of observations"
    return "ok", "a text that spells a control token stays text" if special else "there are no control tokens"


# --- a whole episode -------------------------------------------------------------------------------------------------


@register_check("episode")
def _episode(subject: Subject) -> Answer:
    """Scripted episodes, some replies cut short or odd: what would be trained is what the policy returned."""
    ctx = ContextManager(
        subject.tokenizer, dataclasses.replace(subject.config, max_model_len=1_000_000, response_length=4096)
    )
    policy = OddReplies(ctx, subject.stops)
    tag, specs = _game(ctx)
    for t in play(ctx, policy, tag, specs, episodes=4):
        if t.status == "failed":
            return "wrong", f"a scripted episode of {tag} failed: {t.end_reason}", "see the log above"
        fault = training_fault(ctx, t, policy.given[t.member], policy.shown[t.member])
        if fault:
            return "wrong", fault, "report it: this must never be"
    if not subject.config.enable_response_mask:
        return "adapted", "enable_response_mask=false: whatever follows the first prompt is trained, the template too"
    count = sum(len(ids) for replies in policy.given.values() for ids in replies)
    return "ok", f"{count} tokens were sampled in 4 scripted episodes of {tag}; they are trained, and no other"


class OddReplies:
    """Random legal replies: as written, without their end, with a control token inside, or tokenised by the letter.

    Keeps, by the group's member, what it was shown before each reply (`shown`) and what it returned (`given`).
    """

    def __init__(self, ctx: ContextManager, stops: frozenset[int] = frozenset()):
        self._ctx, self._stops = ctx, stops
        self.shown: dict[int, list[list[int]]] = {}
        self.given: dict[int, list[list[int]]] = {}

    def bind(self, episode: Episode) -> Policy:
        """The policy of one episode."""
        member = episode.task.member
        return _Odd(self, episode, self.shown.setdefault(member, []), self.given.setdefault(member, []))

    def reply(self, written: list[int], kind: int) -> list[int]:
        """One of the four kinds of a reply whose usual ids are `written`."""
        inner = [i for i in self._ctx.control_texts.tokens if i not in self._stops]
        if kind == 1 and len(written) > 1:
            return written[:-1]
        if kind == 2 and inner:
            return [*written[:1], inner[0], *written[1:]]
        if kind == 3:
            text = self._ctx.tokenizer.decode(written[:-1])
            return [*(i for letter in text for i in self._ctx.encode(letter)), *written[-1:]]
        return written


@dataclass
class _Odd:
    outer: OddReplies
    episode: Episode
    shown: list[list[int]]
    given: list[list[int]]

    async def generate(
        self, prompt_ids: list[int], sampling: Sampling, images: list[Any] | None = None, episode: str = ""
    ) -> Generation:
        rng = np.random.default_rng(sampling.seed)
        actions = await random_actions(self.episode, rng)
        written = self.outer._ctx.reply_ids(actions, thought="so")
        ids = self.outer.reply(written, self.episode.task.member + len(self.given))[: sampling.max_tokens]
        self.shown.append(list(prompt_ids))
        self.given.append(list(ids))
        return Generation(list(ids), [-0.5] * len(ids))


def _game(ctx: ContextManager) -> tuple[str, dict[str, EnvSpec]]:
    """A small game of several turns that the reply format can play."""
    tag, env_type = ("Calculator", "calculator") if ctx.format.uses_tools else ("FrozenLake", "frozen_lake")
    return tag, load_specs({tag: {"env_type": env_type, "max_actions_per_traj": 10, "env_config": {}}})


def play(
    ctx: ContextManager, policy: Any, tag: str, specs: Mapping[str, EnvSpec], *, episodes: int = 1, seed: int = 0
) -> list[Trajectory]:
    """Play one group of `episodes` members on the level `seed`, through the agent proxy."""
    es = EnvStateManager(specs, Split(1, episodes, (tag,), (1,)), run_seed=seed, base_seed=seed)
    try:
        return asyncio.run(LLMAgentProxy(es, ctx, policy).rollout())
    finally:
        es.close()


def training_fault(
    ctx: ContextManager, t: Trajectory, given: Sequence[Sequence[int]], shown: Sequence[Sequence[int]]
) -> str:
    """What is wrong with the training samples of a usable episode, in a sentence; empty: nothing.

    Args:
        ctx: the context manager that made them.
        t: the episode.
        given: the ids that the policy returned, reply by reply.
        shown: the ids that it was shown before each of them.
    """
    sampled = [number for ids in given for number in ids]
    if t.token_ids[t.policy_mask].tolist() != sampled:
        return "the ids that the policy returned are not those of the record"
    samples = ctx.formulate(t)
    trained = [number for s in samples for number in s.response_ids[s.response_mask == 1].tolist()]
    if ctx.config.enable_response_mask and trained != sampled:
        return "the ids that are trained are not those that the policy returned"
    starts = t.reply_starts()
    for turn, prompt in enumerate(shown):
        if t.token_ids[t.context_starts[turn] : starts[turn]].tolist() != list(prompt):
            return f"reply {turn + 1} would be trained in another context than the one it was sampled in"
    paid = float(sum(s.rewards.sum() for s in samples))
    if abs(paid - t.episode_return) > 1e-4 * max(1.0, abs(t.episode_return)):
        return f"the rewards of the tokens add up to {paid:g}, and the episode's return is {t.episode_return:g}"
    if not ctx.config.enable_response_mask:
        return ""
    if any((s.rewards[s.response_mask == 0] != 0).any() for s in samples):
        return "a reward sits on a token that was not sampled"
    return ""


def _quoted(text: str) -> str:
    shown = text if len(text) <= 60 else f"{text[:57]}…"
    return repr(shown)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
