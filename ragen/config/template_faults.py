"""What is wrong with a model's chat template under a config: the checks of `ragen.llm_agent.template_checks` as faults.

Asked when a run starts, before Ray, and not with the other checks: a tokenizer takes seconds to import.
"""

from __future__ import annotations

from omegaconf import DictConfig

from ragen.config.errors import Fault
from ragen.config.model_facts import local_folder

__all__ = ["template_faults"]


def template_faults(cfg: DictConfig, model: str) -> list[Fault]:
    """A fault for each check whose verdict is `wrong`; none where no tokenizer is at hand without a download.

    model: the folder or hub name that `cfg.model_path` stands for.
    """
    folder = local_folder(model)
    if folder is None:
        return []
    from ragen.llm_agent.check_template import load_model_tokenizer
    from ragen.llm_agent.template_checks import check_template, stop_ids
    from ragen.trainer.settings import composed_context_config

    try:
        tokenizer, folder = load_model_tokenizer(str(folder))
    except (OSError, ValueError, KeyError, ImportError):
        return []  # the trainer says so, with the library's own words
    verdicts = check_template(tokenizer, composed_context_config(cfg), stop_ids(tokenizer, folder))
    return [
        Fault("model_path", cfg.model_path, f"{verdict.check} under this config: {verdict.says}", verdict.fix)
        for verdict in verdicts
        if verdict.status == "wrong"
    ]
