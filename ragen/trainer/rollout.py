"""veRL's agent-loop-manager door: the agent proxy plays a step's groups and puts their samples into TransferQueue.

Episodes run as coroutines on one event loop in a thread of the trainer's process, so that the trainer can wait, save
or stop meanwhile.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np
import torch
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from ragen.env.registry import load_specs
from ragen.llm_agent.agent_proxy import LLMAgentProxy, SamplingParams
from ragen.llm_agent.ctx_manager import ContextManager
from ragen.llm_agent.es_manager import EnvStateManager, Split
from ragen.llm_agent.policy import Policy
from ragen.llm_agent.prompt_hash import prompt_hash, prompt_settings, record_prompts
from ragen.llm_agent.seeds import shuffle_seed
from ragen.llm_agent.trajectory import TrainingSample, Trajectory
from ragen.rewards import RewardFunction
from ragen.trainer.llm_client import VerlPolicy
from ragen.trainer.progress import RolloutBar
from ragen.trainer.recording import Drawn, Recording, load_groups
from ragen.trainer.settings import context_config, train_sampling, val_sampling
from ragen.trainer.shuffled_rewards import shuffle_group_rewards

logger = logging.getLogger(__name__)

#: Seconds that cancelled episodes get to give back their environments and abort their replies.
CANCEL_GRACE_S = 10.0


class Taken(NamedTuple):
    """What the groups of a step were."""

    played: list[Trajectory]
    """Every episode that was played, failed ones included."""
    recorded: list[Drawn]
    """The groups that came from a recording instead."""


class RagenAgentLoopManager:
    """Plays training groups in the background and the validation panel on call.

    Args:
        config: veRL's config with the node `ragen`.
        tokenizer: the policy's tokenizer.
        policy: what plays.
    """

    def __init__(self, config: DictConfig, tokenizer: Any, policy: Policy):
        own = config.ragen
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="agent-proxy", daemon=True)
        self._thread.start()
        self.ctx = ContextManager(tokenizer, context_config(own))
        specs = load_specs(own.custom_envs)
        limits = {"generation_timeout_s": own.generation_timeout_s, "episode_timeout_s": own.episode_timeout_s}
        reward = RewardFunction.from_config(OmegaConf.to_container(own.reward, resolve=True))
        self._proxies: dict[str, LLMAgentProxy] = {}
        for side, sampling in (("train", train_sampling(config)), ("val", val_sampling(config))):
            es = EnvStateManager(
                specs,
                Split.from_config(own.es_manager[side]),
                run_seed=own.seed.train if side == "train" else own.seed.val,
                base_seed=own.seed[side],
                format_penalty=own.es_manager.format_penalty,
            )
            rewarded = reward if side == "train" or (reward is not None and reward.in_validation) else None
            self._proxies[side] = LLMAgentProxy(
                es, self.ctx, policy, sampling=SamplingParams(**sampling), reward=rewarded, **limits
            )
        specs_in_use = {tag: spec for proxy in self._proxies.values() for tag, spec in proxy.es.specs.items()}
        settings = prompt_settings(self.ctx, specs_in_use)
        #: Names the wording of the run's prompts, see `ragen.llm_agent.prompt_hash`.
        self.prompt_hash = record_prompts(own.run_dir, settings) if own.run_dir else prompt_hash(settings)
        self._shuffle_rewards = bool(own.shuffle_group_rewards)
        self._recording: Recording | None = None
        if own.offline.path is not None and own.offline.ratio > 0:
            self._recording = Recording(load_groups(own.offline.path), own.offline.ratio, own.seed.train)
        self._groups: dict[str, Future] = {}  # by uid
        self._bar: RolloutBar | None = None

    @classmethod
    def create(cls, config, llm_client, teacher_client=None, reward_loop_worker_handles=None):
        """veRL's constructor. Rewards come from the environments; there is no teacher."""
        from verl.utils import hf_tokenizer

        tokenizer = hf_tokenizer(config.actor_rollout_ref.model.path)
        return cls(config, tokenizer, VerlPolicy(llm_client))

    # --- training ---------------------------------------------------------------------------------

    def generate_sequences(self, batch) -> None:
        """Start groups and return at once; see `take` for their episodes.

        Args:
            batch: TensorDict with `row` and `uid` per group and `global_steps`.
        """
        rows, uids = _column(batch, "row"), _column(batch, "uid")
        step = int(_scalar(batch, "global_steps"))
        proxy = self._proxies["train"]
        total = sum(self._drawn(row) is None for row in rows) * proxy.es.split.group_size
        if self._bar is not None:  # the step's further groups, where the filter kept too few
            self._bar.close()
        self._bar = RolloutBar(f"step {step} rollout", total, proxy)
        for row, uid in zip(rows, uids, strict=True):
            self._groups[uid] = self._submit(self._group(int(row), uid, step))

    def _drawn(self, row: int) -> Drawn | None:
        return None if self._recording is None else self._recording.draw(int(row))

    def take(self, uids: Collection[str]) -> Taken:
        """The episodes of the groups `uids`, in the order in which the groups were started.

        Waits for those still running. A group that an earlier process played, before a resume, is not known here.
        """
        taken = [self._groups.pop(uid) for uid in list(self._groups) if uid in uids]
        results = [group.result() for group in taken]
        if self._bar is not None:
            self._bar.close()
        played = [trajectory for group in results if isinstance(group, list) for trajectory in group]
        return Taken(played, [group for group in results if isinstance(group, Drawn)])

    def raise_if_broken(self) -> None:
        """Raise what a group raised: a fault of ours, never of an environment or a generation."""
        for group in self._groups.values():
            if group.done() and group.exception() is not None:
                raise group.exception()

    def abandon(self) -> None:
        """Cancel every running episode: its reply is aborted in the engine, its environment given back."""
        running = [group for group in self._groups.values() if not group.done()]
        for group in running:
            group.cancel()
        if running:
            self._submit(_settle(self._loop)).result(CANCEL_GRACE_S)
        self._groups = {}
        if self._bar is not None:
            self._bar.close()

    async def _group(self, row: int, uid: str, step: int) -> list[Trajectory] | Drawn:
        await tq.async_kv_put(key=uid, partition_id="train", tag={"status": "running"})
        proxy = self._proxies["train"]
        drawn = self._drawn(row)
        trajectories = list(drawn.episodes) if drawn else await proxy.rollout(proxy.es.group_tasks(row))
        keys, fields, tags = [], [], []
        for trajectory in self._as_rewarded(trajectories):
            if not trajectory.usable:
                continue
            for index, sample in enumerate(self.ctx.formulate(trajectory)):
                keys.append(f"{uid}_{trajectory.member}_{index}")
                fields.append(sample_fields(sample, trajectory, uid))
                # a recorded group takes the place of its row, whatever number it had in its own run
                tags.append({**sample_tag(sample, trajectory, step), "env_group": row, "recorded": int(bool(drawn))})
        if keys:
            await tq.async_kv_batch_put(
                keys=keys, fields=list_of_dict_to_tensordict(fields), tags=tags, partition_id="train"
            )
        # A group with any usable episode is trained on; veRL's async modes would evict a failed one whole.
        status = {"status": "finished" if keys else "failure"}
        await tq.async_kv_put(key=uid, partition_id="train", tag=status)
        return drawn or trajectories

    def _as_rewarded(self, group: list[Trajectory]) -> list[Trajectory]:
        """The group as it is trained on; metrics and dumps keep the rewards that were earned."""
        if not self._shuffle_rewards:
            return group
        seed = shuffle_seed(self._proxies["train"].es.run_seed, group[0].seed)
        return shuffle_group_rewards(group, np.random.default_rng(seed))

    # --- validation -------------------------------------------------------------------------------

    def validate(self, rounds: int = 1) -> list[Trajectory]:
        """Play `rounds` panels (`trainer.validation_steps`), each of the next `env_groups` seeds."""
        proxy = self._proxies["val"]
        split = proxy.es.split
        trajectories: list[Trajectory] = []
        for index in range(rounds):
            tasks = proxy.es.tasks(index * split.env_groups)
            with RolloutBar("validation", len(tasks), proxy):
                trajectories += self._submit(proxy.rollout(tasks)).result()
        return trajectories

    # --- housekeeping -----------------------------------------------------------------------------

    def group_size(self, side: str) -> int:
        """Members of a group: `es_manager.<side>.group_size`."""
        return self._proxies[side].es.split.group_size

    def counters(self) -> dict[str, float]:
        """Hangs, crashes and live workers of the training environments."""
        return self._proxies["train"].es.counters()

    def close(self) -> None:
        """Cancel what runs, end every environment worker, stop the loop. Safe to call twice."""
        if self._loop.is_closed():
            return
        self.abandon()
        for proxy in self._proxies.values():
            proxy.es.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CANCEL_GRACE_S)
        if not self._thread.is_alive():
            self._loop.close()

    def _submit(self, coroutine) -> Future:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


async def _settle(loop: asyncio.AbstractEventLoop) -> None:
    """Wait until every other task of the loop has ended."""
    others = [task for task in asyncio.all_tasks(loop) if task is not asyncio.current_task()]
    await asyncio.gather(*others, return_exceptions=True)


def sample_fields(sample: TrainingSample, trajectory: Trajectory, uid: str) -> dict[str, Any]:
    """One sample as veRL's record in TransferQueue; P prompt tokens, R response tokens.

    prompts (P,), responses (R,), input_ids and position_ids (P+R,) int64; response_mask and loss_mask (R,) int64;
    rm_scores and rollout_log_probs (R,) float32. Of ours, for advantages: turn_ids and state_ids (R,) int64, the turn
    of each token and the number of the state that the turn answered.
    """
    prompts, responses = torch.from_numpy(sample.prompt_ids), torch.from_numpy(sample.response_ids)
    mask = torch.from_numpy(sample.response_mask)
    return {
        "prompts": prompts,
        "responses": responses,
        "input_ids": torch.cat([prompts, responses]),
        "position_ids": torch.arange(len(prompts) + len(responses)),
        "response_mask": mask,
        "loss_mask": mask.clone(),
        "rm_scores": torch.from_numpy(sample.rewards),
        "rollout_log_probs": torch.from_numpy(sample.log_probs),
        "turn_ids": torch.from_numpy(sample.turn_ids),
        "state_ids": torch.from_numpy(state_numbers(trajectory)[sample.turn_ids]),
        "uid": uid,
        "num_turns": trajectory.num_turns,
        "data_source": trajectory.tag,
        "extra_fields": {},
        "multi_modal_inputs": {},
    }


def state_numbers(trajectory: Trajectory) -> np.ndarray:
    """(K,) int64. A hash of what the environment showed before each turn: equal states have equal numbers."""
    digests = [hashlib.blake2b(turn.observation.encode(), digest_size=8).digest() for turn in trajectory.turns]
    return np.array([int.from_bytes(digest, "big", signed=True) for digest in digests], dtype=np.int64)


def sample_tag(sample: TrainingSample, trajectory: Trajectory, step: int) -> dict[str, Any]:
    """What veRL's sampler and balancer, and RAGEN's filter, need to know of a sample without fetching it.

    The figures named `episode_*` are the whole episode's, the same for each of its samples: its raw return, its sampled
    tokens, and their mean negative log-probability.
    """
    prompt_len, response_len = len(sample.prompt_ids), len(sample.response_ids)
    return {
        "status": "success",
        "prompt_len": prompt_len,
        "response_len": response_len,
        "seq_len": prompt_len + response_len,
        "global_steps": step,
        "min_global_steps": trajectory.model_version[0],
        "max_global_steps": trajectory.model_version[1],
        "env_tag": trajectory.tag,
        "env_group": trajectory.group,
        "episode_return": trajectory.episode_return,
        "episode_entropy": -float(trajectory.log_probs[trajectory.policy_mask].mean(dtype=np.float64)),
        "episode_length": int(trajectory.policy_mask.sum()),
    }


def _column(batch: Any, key: str) -> Sequence[Any]:
    """One value per row, whichever container veRL put it into."""
    column = batch[key]
    return column.tolist() if hasattr(column, "tolist") else list(column)


def _scalar(batch: Any, key: str) -> Any:
    value = batch[key]
    return getattr(value, "data", value)
