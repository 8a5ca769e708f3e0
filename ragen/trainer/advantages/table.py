"""Which advantage estimator goes with which settings. Read by the checks before a run: imports no torch."""

from __future__ import annotations

from ragen.llm_agent.contexts import WINDOW_MODES

__all__ = ["ESTIMATORS", "GROUP_ESTIMATORS", "VALUE_ESTIMATORS", "estimator_name", "supported"]

#: Those that need a critic; bi-level GAE is `gae` with `algorithm.bi_level_gae`.
VALUE_ESTIMATORS = ("gae", "turn_gae")
#: Those that compare an episode with its group: one whose siblings all failed has nothing to be compared with.
GROUP_ESTIMATORS = ("grpo", "rloo", "reinforce_plus_plus_baseline", "gigpo")
#: Every value of `algorithm.adv_estimator`.
ESTIMATORS = (*VALUE_ESTIMATORS, *GROUP_ESTIMATORS, "reinforce_plus_plus")

#: Those that know an episode by its return alone.
_RETURN_ONLY = ("grpo", "rloo", "reinforce_plus_plus_baseline")


def estimator_name(adv_estimator: str, bi_level: bool) -> str:
    """The estimator that `algorithm.adv_estimator` and `algorithm.bi_level_gae` together name."""
    return "bi_level_gae" if adv_estimator == "gae" and bi_level else adv_estimator


def supported(estimator: str, context_mode: str, use_turn_scores: bool) -> str | None:
    """None where the combination means something, else the reason why it does not.

    Every estimator works in every context mode, since it sees whole episodes. An estimator that compares whole returns
    cannot use the rewards of single turns.

    Args:
        estimator: a value of `algorithm.adv_estimator`, or `bi_level_gae`.
        context_mode: `agent_proxy.context_window_mode`.
        use_turn_scores: `agent_proxy.use_turn_scores`.
    """
    if estimator not in (*ESTIMATORS, "bi_level_gae"):
        return f"no such estimator; known: {', '.join(ESTIMATORS)}"
    if context_mode not in WINDOW_MODES:
        return f"no such context mode; known: {', '.join(WINDOW_MODES)}"
    if use_turn_scores and estimator in _RETURN_ONLY:
        return f"{estimator} compares whole returns: rewards at turn ends would change nothing"
    return None
