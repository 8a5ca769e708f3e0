"""The environment state manager: owns environment instances, group seeds, statuses, rewards and metrics.

One `Episode` is one environment between `reset` and its end. The batch-wise calls at the bottom are thin layers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ragen.env.isolation import EnvClient, EnvDescription, EnvPool
from ragen.env.registry import EnvSpec, load_env_class
from ragen.env.tools import read_call, tool_names, write_call
from ragen.llm_agent.ctx_manager import ParsedReply
from ragen.llm_agent.seeds import group_seed, luck_seed

#: Workers of a tag that names none. Threads and processes: enough to keep an engine busy, few enough for a laptop.
#: Inline environments are plain objects, built on demand.
DEFAULT_WORKERS = {"inline": 4096, "thread": 64, "process": 64}

#: What a turn may be told about its reply.
NOTES = {
    "format": "Your reply did not follow the format; nothing was done.",
    "none": "Your answer held no action; nothing was done.",
    "unknown": "Unknown actions were ignored: {actions}",
    "surplus": "Only the first {count} of your actions were carried out.",
}


@dataclass(frozen=True)
class Split:
    """`es_manager.train` or `es_manager.val`: the groups of one step, or of one validation panel."""

    env_groups: int
    group_size: int
    tags: tuple[str, ...]
    n_groups: tuple[int, ...]
    """Groups of each tag; they sum to `env_groups`."""

    @classmethod
    def from_config(cls, node: Mapping[str, Any]) -> Split:
        """Read an `es_manager` node whose `n_groups` is already resolved.

        Raises:
            ValueError: group counts that do not sum to `env_groups`, or are not one per tag.
        """
        tags, n_groups = tuple(node["env_configs"]["tags"]), tuple(node["env_configs"]["n_groups"])
        if len(tags) != len(n_groups) or sum(n_groups) != node["env_groups"]:
            raise ValueError(
                f"env_configs.n_groups {list(n_groups)} must give one count per tag of {list(tags)} "
                f"and sum to env_groups {node['env_groups']}"
            )
        return cls(node["env_groups"], node["group_size"], tags, n_groups)

    def tag_of_row(self, row: int) -> str:
        """The tag of group `row` of the run: the tags take their share of every `env_groups` rows, in order."""
        position = row % self.env_groups
        return self.tags[int(np.searchsorted(np.cumsum(self.n_groups), position, side="right"))]


@dataclass(frozen=True)
class EpisodeTask:
    """Which episode to play; its random streams follow from it."""

    tag: str
    group: int
    """Row of the group in the run or panel."""
    member: int
    seed: int
    """Environment seed of the group."""


@dataclass(frozen=True)
class TurnOutcome:
    """What one turn did to the environment."""

    observation: str
    env_reward: float
    """Sum of the environment's rewards of the executed actions."""
    penalty: float
    """Format penalty of the turn: 0 or `es_manager.format_penalty`."""
    executed: tuple[str, ...]
    notes: tuple[str, ...]
    end_reason: str | None
    """None: the episode goes on."""
    observations: tuple[str, ...] = ()
    """What the environment returned for each of `executed`; the last one is `observation`."""


class Episode:
    """One environment from `reset` to its end: statuses, rewards and metrics of one trajectory."""

    def __init__(self, task: EpisodeTask, spec: EnvSpec, client: EnvClient, luck: int, format_penalty: float):
        self.task, self.spec = task, spec
        self._client, self.luck, self._format_penalty = client, luck, format_penalty
        self.tag = task.tag
        self.description: EnvDescription
        self.observation = ""
        self.actions_left = spec.max_actions_per_traj
        self._valid: list[bool] = []
        self._effective: list[bool] = []
        self._success = False
        self._faulty_turns = 0

    async def start(self) -> None:
        """Reset the environment and read its description *as configured*. Raises EnvError."""
        observation, _ = await self._client.reset(self.task.seed, self.luck)
        self.description = await self._client.describe()
        self._names = {name.lower(): name for name in self.description.actions or ()}
        self._tools = frozenset(tool_names(self.description.tools or ()))
        self.observation = observation

    async def step(self, reply: ParsedReply, max_actions: int) -> TurnOutcome:
        """Execute one turn's actions until they, the limits, or the episode end. Raises EnvError.

        Unknown actions are dropped. A turn with a dropped action, or with none left, costs one format penalty.
        Actions beyond `max_actions` or beyond the episode's budget are not executed, and reported.
        """
        known, unknown = self._match(reply.actions)
        surplus = max(0, len(known) - min(max_actions, self.actions_left))
        planned = known[: len(known) - surplus]
        faulty = bool(unknown) or not planned
        env_reward, executed, observations, end_reason = 0.0, [], [], None
        for action in planned:
            observation, reward, terminated, truncated, info = await self._client.step(action)
            executed.append(action)
            observations.append(observation)
            self.actions_left -= 1
            env_reward += reward
            self.observation = observation
            self._valid.append(bool(info.get("action_is_valid", True)))
            self._effective.append(bool(info.get("action_is_effective", True)))
            self._success = self._success or bool(info.get("success", False))
            if terminated or truncated:
                end_reason = "terminated" if terminated else "env_truncated"
                break
        if end_reason is None and self.actions_left == 0:
            end_reason = "max_actions"
        self._valid.extend([False] * max(len(unknown), int(not planned)))
        self._faulty_turns += faulty
        return TurnOutcome(
            observation=self.observation,
            env_reward=env_reward,
            penalty=self._format_penalty if faulty else 0.0,
            executed=tuple(executed),
            notes=self._notes(reply, unknown, surplus, len(planned)),
            end_reason=end_reason,
            observations=tuple(observations),
        )

    async def oracle_action(self) -> str | None:
        """The name of a best action now, where the environment has an oracle."""
        return await self._client.oracle_action()

    async def random_action(self, rng: np.random.Generator) -> str | None:
        """An action that is possible now, drawn with `rng`, or None where the environment can draw none."""
        return await self._client.random_action(int(rng.integers(2**63)))

    def metrics(self) -> dict[str, float]:
        """Metrics of the episode so far, without the tag."""
        return {
            "success": float(self._success),
            "num_actions": float(len(self._effective)),
            "action_is_effective": float(np.mean(self._effective)) if self._effective else 0.0,
            "action_is_valid": float(np.mean(self._valid)) if self._valid else 0.0,
            "format_faults": float(self._faulty_turns),
        }

    def _match(self, actions: tuple[str, ...]) -> tuple[list[str], list[str]]:
        """What the environment knows of the actions asked for, as it takes them, and the rest as written."""
        if self._tools:
            calls = {text: read_call(text) for text in actions}
            mine = {text: write_call(*call) for text, call in calls.items() if call and call.name in self._tools}
            return [mine[text] for text in actions if text in mine], [text for text in actions if text not in mine]
        if self.description.actions is None:
            return list(actions), []
        known = [self._names[text.lower()] for text in actions if text.lower() in self._names]
        return known, [text for text in actions if text.lower() not in self._names]

    @staticmethod
    def _notes(reply: ParsedReply, unknown: list[str], surplus: int, planned: int) -> tuple[str, ...]:
        notes = []
        if not reply.well_formed:
            notes.append(NOTES["format"])
        elif not reply.actions:
            notes.append(NOTES["none"])
        if unknown:
            notes.append(NOTES["unknown"].format(actions=", ".join(text[:40] for text in unknown[:3])))
        if surplus:
            notes.append(NOTES["surplus"].format(count=planned))
        return tuple(notes)


class EnvStateManager:
    """All episodes of one split.

    Args:
        specs: tag → `EnvSpec`; only the split's tags are used.
        split: groups and members.
        run_seed: root of the members' own luck.
        base_seed: environment seed of row 0 (`seed.train` or `seed.val`).
        format_penalty: reward of a faulty turn (`es_manager.format_penalty`, zero or negative).
    """

    def __init__(
        self, specs: Mapping[str, EnvSpec], split: Split, *, run_seed: int, base_seed: int, format_penalty: float = -0.1
    ):
        self.specs = {tag: specs[tag] for tag in split.tags}
        self.split, self.run_seed, self.base_seed, self.format_penalty = split, run_seed, base_seed, format_penalty
        self._pools = {
            tag: EnvPool(
                spec.make,
                tag=tag,
                isolate=spec.isolate,
                workers=self._workers(spec),
                timeout_s=spec.step_timeout_s,
                preload=[load_env_class(spec.env_type).__module__],
            )
            for tag, spec in self.specs.items()
        }
        self._batch: AsyncExitStack | None = None
        self._episodes: list[Episode] = []

    @staticmethod
    def _workers(spec: EnvSpec) -> int:
        return spec.max_workers or DEFAULT_WORKERS[spec.isolate]

    def group_tasks(self, row: int) -> list[EpisodeTask]:
        """The members of group `row`: same seed, hence the same start; each its own luck."""
        tag, seed = self.split.tag_of_row(row), group_seed(self.base_seed, row)
        return [EpisodeTask(tag, row, member, seed) for member in range(self.split.group_size)]

    def tasks(self, first_row: int = 0) -> list[EpisodeTask]:
        """The episodes of one step (or of the whole panel), starting with group `first_row`."""
        return [task for row in range(first_row, first_row + self.split.env_groups) for task in self.group_tasks(row)]

    @asynccontextmanager
    async def episode(self, task: EpisodeTask) -> AsyncIterator[Episode]:
        """Hold one environment for one episode. Leaving it gives the environment back, or discards a broken one."""
        luck = luck_seed(self.run_seed, task.seed, task.member)
        async with self._pools[task.tag].lease() as client:
            yield Episode(task, self.specs[task.tag], client, luck, self.format_penalty)

    def counters(self) -> dict[str, float]:
        """Hangs and crashes of environments since the start, and live workers, over all tags."""
        pools = self._pools.values()
        return {
            "env/hangs": float(sum(pool.hangs for pool in pools)),
            "env/crashes": float(sum(pool.crashes for pool in pools)),
            "env/live_workers": float(sum(pool.live_workers for pool in pools)),
        }

    def close(self) -> None:
        """End every worker. Safe to call twice."""
        for pool in self._pools.values():
            pool.close()

    # --- batch-wise calls, thin layers over the above ---------------------------------------------

    async def reset(self, first_row: int = 0) -> list[dict[str, Any]]:
        """Start every episode of one step, all held at once until the next `reset` or `aclose`.

        Raises:
            ValueError: a tag has more episodes than workers, so that they cannot all be held.
        """
        await self.aclose()
        tasks = self.tasks(first_row)
        for tag, spec in self.specs.items():
            episodes, workers = sum(task.tag == tag for task in tasks), self._workers(spec)
            if episodes > workers:
                raise ValueError(
                    f"custom_envs.{tag}.max_workers is {workers}, batch-wise calls hold {episodes} at once"
                )
        self._batch = AsyncExitStack()
        self._episodes = [await self._batch.enter_async_context(self.episode(task)) for task in tasks]
        for episode in self._episodes:
            await episode.start()
        return self.get_rollout_states()

    async def step(self, replies: Mapping[int, ParsedReply], max_actions: int) -> dict[int, TurnOutcome]:
        """One turn of the episodes named by their position in `reset`'s list."""
        return {index: await self._episodes[index].step(reply, max_actions) for index, reply in replies.items()}

    def get_rollout_states(self) -> list[dict[str, Any]]:
        """Where every episode stands: task, description, observation, actions left, metrics."""
        return [
            {
                "task": episode.task,
                "description": episode.description,
                "observation": episode.observation,
                "actions_left": episode.actions_left,
                "metrics": episode.metrics(),
            }
            for episode in self._episodes
        ]

    async def aclose(self) -> None:
        """Give back the environments that `reset` holds."""
        if self._batch is not None:
            await self._batch.aclose()
            self._batch, self._episodes = None, []
