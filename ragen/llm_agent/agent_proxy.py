"""The agent proxy: owns the loop `observe → generate → parse → step`, and nothing else.

Every episode is its own coroutine, so a slow one holds up nobody. An episode that raises, or runs over a limit,
ends as `failed`: it is counted and logged with its tag and seed, and never costs the step.

`python -m ragen.llm_agent.agent_proxy` evaluates a model: see `ragen.eval.evaluate`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ragen.env.isolation import EnvCrashed, EnvError, EnvTimeout
from ragen.llm_agent.contexts import EpisodeContext
from ragen.llm_agent.ctx_manager import ContextManager
from ragen.llm_agent.es_manager import EnvStateManager, Episode, EpisodeTask, TurnOutcome
from ragen.llm_agent.policy import Generation, GenerationError, GenerationTimeout, Policy
from ragen.llm_agent.seeds import sampler_seed
from ragen.llm_agent.trajectory import Trajectory, TrajectoryBuilder, Turn
from ragen.rewards import RewardError, RewardFunction

logger = logging.getLogger(__name__)


@dataclass
class Progress:
    """What a progress bar shows of a running rollout."""

    episodes: int = 0
    episodes_done: int = 0
    turns_done: int = 0
    failed: int = 0
    running: dict[EpisodeTask, float] = field(default_factory=dict)
    """Episodes being played → `time.monotonic()` of their start."""
    on_change: Callable[[Progress], None] | None = None
    """Called after every turn and every episode."""

    def changed(self) -> None:
        """Tell whoever watches."""
        if self.on_change is not None:
            self.on_change(self)

    def slowest(self) -> str:
        """Tag, seed and age of the episode that has been running longest; empty when none runs."""
        if not self.running:
            return ""
        task, since = min(self.running.items(), key=lambda item: item[1])
        return f"{task.tag} seed {task.seed} {time.monotonic() - since:.0f}s"


@dataclass(frozen=True)
class SamplingParams:
    """Sampling of a split: training's, or validation's `val_kwargs`."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1


class LLMAgentProxy:
    """Plays episodes of one split with one policy.

    Args:
        es: environment state manager of the split.
        ctx: context manager.
        policy: the model, or a script.
        sampling: temperature and truncation of the sampler.
        generation_timeout_s: limit of one reply; None: no limit. A reply over it is cancelled, which aborts it in the
            engine.
        episode_timeout_s: limit of a whole episode; None: no limit.
        reward: the user's reward function, called once with each usable episode, after its environment is given back.
    """

    def __init__(
        self,
        es: EnvStateManager,
        ctx: ContextManager,
        policy: Policy,
        *,
        sampling: SamplingParams = SamplingParams(),
        generation_timeout_s: float | None = None,
        episode_timeout_s: float | None = None,
        reward: RewardFunction | None = None,
    ):
        self.es, self.ctx, self.policy, self.sampling = es, ctx, policy, sampling
        self.generation_timeout_s, self.episode_timeout_s = generation_timeout_s, episode_timeout_s
        self.reward = reward
        self.progress = Progress()

    async def rollout(self, tasks: Iterable[EpisodeTask] | None = None) -> list[Trajectory]:
        """Play `tasks` (by default the split's first step), all at once; results in the order of the tasks."""
        tasks = list(self.es.tasks() if tasks is None else tasks)
        return list(await asyncio.gather(*(self.run_episode(task) for task in tasks)))

    async def run_episode(self, task: EpisodeTask) -> Trajectory:
        """Play one episode to its end, and reward it.

        Never raises for a fault of the environment, of a generation or of the user's reward function.
        """
        run = _EpisodeRun(task)
        self.progress.episodes += 1
        try:
            await self._hold_and_play(run)
            trajectory = run.build()
            if self.reward is not None and trajectory.usable:
                return await self.reward.apply(trajectory)
            return trajectory
        except EnvTimeout as error:
            run.fail("env_timeout", error)
        except EnvCrashed as error:
            run.fail("env_crashed", error)
        except EnvError as error:
            run.fail("env_raised", error)
        except GenerationTimeout as error:
            run.fail("generation_timeout", error)
        except GenerationError as error:
            run.fail("generation_error", error)
        except RewardError as error:
            run.fail("reward", error)
        except asyncio.TimeoutError:
            run.fail("episode_timeout", f"not over within agent_proxy.episode_timeout_s={self.episode_timeout_s}")
        finally:
            self.progress.running.pop(task, None)
            self.progress.episodes_done += 1
            self.progress.failed += run.status == "failed"
            self.progress.changed()
        return run.build()

    async def _hold_and_play(self, run: _EpisodeRun) -> None:
        async with self.es.episode(run.task) as episode:  # waiting for a free worker is not the episode's own time
            self.progress.running[run.task] = time.monotonic()
            await asyncio.wait_for(self._play(episode, run), self.episode_timeout_s)

    async def _play(self, episode: Episode, run: _EpisodeRun) -> None:
        """The loop of one episode, at most `max_turn` replies."""
        config, task = self.ctx.config, run.task
        run.episode = episode
        await episode.start()
        policy = self.policy.bind(episode) if hasattr(self.policy, "bind") else self.policy
        reply_limit = episode.spec.max_tokens or config.response_length
        context = EpisodeContext(self.ctx, episode.description, reply_limit)
        context.begin_turn(episode.observation, episode.actions_left)
        for turn in range(config.max_turn):
            prompt = context.ids()
            sampling = self.ctx.sampling(
                len(prompt),
                tag_limit=episode.spec.max_tokens,
                temperature=self.sampling.temperature,
                top_p=self.sampling.top_p,
                top_k=self.sampling.top_k,
                seed=sampler_seed(self.es.run_seed, task.seed, task.member, turn),
            )
            if sampling is None:
                return run.end("context")
            run.tokens.read(prompt)
            observation = episode.observation
            generation = await self._generate(policy, run, sampling)
            run.add_reply(generation)
            context.add_reply(generation.token_ids)
            text, parsed = self.ctx.parse(generation.token_ids)
            outcome = await episode.step(parsed, config.max_actions_per_turn)
            run.add_turn(observation, text, outcome)
            self.progress.turns_done += 1
            self.progress.changed()
            if outcome.end_reason is not None:
                return run.end(outcome.end_reason)
            if turn + 1 == config.max_turn:
                return run.end("max_turn")
            run.tokens.next_turn()
            context.begin_turn(
                outcome.observation,
                episode.actions_left,
                self.ctx.suffix_text(
                    outcome.observation,
                    turn=turn + 1,
                    reward=outcome.env_reward + outcome.penalty,
                    actions_left=episode.actions_left,
                    notes=outcome.notes,
                    results=tuple(zip(outcome.executed, outcome.observations, strict=True)),
                    tools=episode.description.tools,
                ),
            )

    async def _generate(self, policy: Policy, run: _EpisodeRun, sampling: Any) -> Generation:
        task = run.task
        call = policy.generate(
            run.tokens.context, sampling, episode=f"{task.tag}-{task.seed}-{task.member}-{id(run):x}"
        )
        try:
            generation = await asyncio.wait_for(call, self.generation_timeout_s)
        except asyncio.TimeoutError:
            raise GenerationTimeout(
                f"no reply within agent_proxy.generation_timeout_s={self.generation_timeout_s}"
            ) from None
        if not generation.token_ids:
            raise GenerationError("the policy returned no token")
        return generation


class _EpisodeRun:
    """The growing record of one episode."""

    def __init__(self, task: EpisodeTask):
        self.task = task
        self.tokens = TrajectoryBuilder()
        self.turns: list[Turn] = []
        self.rewards: list[float] = []
        self.replies = 0
        self.status, self.end_reason = "failed", "unknown"
        self.episode: Episode | None = None
        self.versions: list[int] = []

    def add_reply(self, generation: Generation) -> None:
        self.tokens.add_reply(generation.token_ids, generation.log_probs)
        self.versions.extend(generation.model_version)
        self.replies += 1

    def add_turn(self, observation: str, reply: str, outcome: TurnOutcome) -> None:
        reward = outcome.env_reward + outcome.penalty
        self.rewards.append(reward)
        self.turns.append(Turn(observation, reply, outcome.executed, reward, outcome.penalty, outcome.notes))

    def end(self, reason: str) -> None:
        if not self.replies:
            raise GenerationError("the first prompt leaves no room for a reply: raise rollout.max_model_len")
        self.status, self.end_reason = ("finished" if reason == "terminated" else "truncated"), reason

    def fail(self, reason: str, cause: Any) -> None:
        self.status, self.end_reason = "failed", reason
        logger.warning(
            "episode failed: %s seed %d member %d: %s", self.task.tag, self.task.seed, self.task.member, cause
        )

    def build(self) -> Trajectory:
        if self.replies > len(self.rewards):  # the environment broke on this reply
            self.rewards.append(0.0)
            self.turns.append(Turn("", "", (), 0.0, notes=("the environment failed on this reply",)))
        return self.tokens.build(
            turn_rewards=self.rewards,
            turns=self.turns,
            tag=self.task.tag,
            group=self.task.group,
            member=self.task.member,
            seed=self.task.seed,
            status=self.status,
            end_reason=self.end_reason,
            metrics=self.episode.metrics() if self.episode is not None else {},
            model_version=(min(self.versions, default=0), max(self.versions, default=0)),
            luck=self.episode.luck if self.episode is not None else None,
            final_observation=self.episode.observation if self.episode is not None else None,
        )


if __name__ == "__main__":
    from ragen.eval.evaluate import main

    raise SystemExit(main())
