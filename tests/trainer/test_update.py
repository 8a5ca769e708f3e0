"""veRL's training engine on this project's settings, in one process, without Ray: what an update computes.

Packed rows (what GPUs use) and padded rows (what a CPU uses) must be the same model, numbers are float32, and the rows
with which veRL fills up a batch must change no gradient.
"""

import os
import socket

import pytest
import torch
from tensordict import TensorDict
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.dataset.dataset_utils import DatasetPadMode
from verl.workers.engine import EngineRegistry
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import response_from_nested

from ragen.config.compose import load
from ragen.config.to_verl import to_verl
from tests.llm_agent.tokenizers_for_tests import byte_tokenizer

LENGTHS = [(5, 9), (7, 3), (4, 14), (6, 6)]  # prompt and response of each row


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(path)
    torch.manual_seed(0)
    shape = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, head_dim=16, initializer_range=0.3, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    Qwen3ForCausalLM(shape).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def config(folder):
    return to_verl(load("quickstart", [f"model_path={folder}", "actor_rollout_ref.actor.optim.lr=0.1"]))


@pytest.fixture(scope="module")
def one_rank():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rank = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    before = {key: os.environ.get(key) for key in rank}
    os.environ.update(rank)
    torch.distributed.init_process_group("gloo")
    yield
    torch.distributed.destroy_process_group()
    for key, value in before.items():
        os.environ.pop(key) if value is None else os.environ.__setitem__(key, value)


@pytest.fixture
def engine(config, one_rank):
    """A fresh actor engine, as `ActorRolloutRefWorker` builds it."""
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    made = EngineRegistry.new(
        model_type="language_model",
        backend=actor.engine.strategy,
        model_config=omega_conf_to_dataclass(config.actor_rollout_ref.model),
        engine_config=actor.engine,
        optimizer_config=actor.optim,
        checkpoint_config=actor.checkpoint,
    )
    made.initialize()
    return made


def rows(extra=0):
    """Four rows with random ids, and `extra` rows without loss like those that veRL adds."""
    generator = torch.Generator().manual_seed(1)
    made = [
        (torch.randint(1, 200, (p,), generator=generator), torch.randint(1, 200, (r,), generator=generator), 1)
        for p, r in LENGTHS
    ] + [(torch.full((127,), 3), torch.full((1,), 3), 0)] * extra
    nested = lambda values: torch.nested.as_nested_tensor(values, layout=torch.jagged)  # noqa: E731
    mask = nested([torch.full((len(r),), loss) for _, r, loss in made])
    advantages = nested([torch.linspace(-1, 1, len(r)) * loss for _, r, loss in made])
    batch = TensorDict(
        {
            "prompts": nested([p for p, _, _ in made]),
            "responses": nested([r for _, r, _ in made]),
            "input_ids": nested([torch.cat([p, r]) for p, r, _ in made]),
            "position_ids": nested([torch.arange(len(p) + len(r)) for p, r, _ in made]),
            "response_mask": mask,
            "loss_mask": mask,
            "advantages": advantages,
        },
        batch_size=len(made),
    )
    return batch


def with_settings(batch, *, packed, micro=2, **more):
    engine = {"use_remove_padding": packed, "use_dynamic_bsz": packed, "use_fused_kernels": False}
    sizes = {"max_token_len_per_gpu": 64, "micro_batch_size_per_gpu": micro, "pad_mode": DatasetPadMode.NO_PADDING}
    tu.assign_non_tensor(batch, **engine, **sizes, temperature=1.0, calculate_entropy=False, **more)
    return batch


def log_probs(engine, batch, *, packed):
    """(rows, longest response) log-probabilities of the response tokens, 0 beyond a row's end."""
    with engine.eval_mode():
        output = engine.infer_batch(with_settings(batch, packed=packed))
    return response_from_nested(output["model_output"]["log_probs"], batch["response_mask"]).to_padded_tensor(0.0)


def test_packed_and_padded_rows_give_the_same_log_probs_as_the_model_itself(engine, folder):
    padded, packed = (log_probs(engine, rows(), packed=packed) for packed in (False, True))
    torch.testing.assert_close(packed, padded, atol=1e-5, rtol=1e-5)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for index, ids in enumerate(rows()["input_ids"].unbind()):
        prompt, response = LENGTHS[index]
        with torch.no_grad():
            every = model(ids[None]).logits[0].log_softmax(-1)
        own = every[prompt - 1 : -1].gather(-1, ids[prompt:, None])[:, 0]
        torch.testing.assert_close(padded[index, :response], own, atol=1e-5, rtol=1e-5)


def test_everything_is_computed_in_float32(engine):
    seen = set()
    hooks = [
        module.register_forward_hook(lambda module, args, out: seen.add(out.dtype))
        for module in engine.module.modules()
        if isinstance(module, torch.nn.Linear)
    ]
    log_probs(engine, rows(), packed=False)
    for hook in hooks:
        hook.remove()
    assert seen == {torch.float32}
    assert {parameter.dtype for parameter in engine.module.parameters()} == {torch.float32}


def test_rows_that_fill_up_a_batch_change_no_gradient(config, engine):
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    gradients = []
    for extra in (0, 4):
        batch = rows(extra)
        old = log_probs(engine, rows(extra), packed=False)
        lengths = batch["response_mask"].offsets().diff().tolist()
        batch["old_log_probs"] = torch.nested.as_nested_tensor(
            [old[i, :n].detach() for i, n in enumerate(lengths)], layout=torch.jagged
        )
        with_settings(batch, packed=False, global_batch_size=len(batch))
        with engine.train_mode():
            engine.optimizer_zero_grad()
            engine.forward_backward_batch(batch, lambda **kwargs: ppo_loss(actor, **kwargs), forward_only=False)
            gradients.append([p.grad.full_tensor().clone() for p in engine.module.parameters()])
            engine.optimizer_zero_grad()
    assert max(gradient.abs().max() for gradient in gradients[0]) > 1e-3
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-6, rtol=1e-5)
