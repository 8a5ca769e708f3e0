"""Advantage estimators over episodes, as pure functions: tensors in, tensors out.

An estimator sees one row per *episode*, whatever number of samples the episode became (`episodes.py`). So an episode
counts once in its group, and values chain through it from turn to turn. Where veRL's estimator is right for such rows
it is called, not written again.

* `values.py`: GAE, turn-level GAE, bi-level GAE.
* `groups.py`: GRPO (Dr. GRPO), RLOO, REINFORCE++ and its baseline variant, GiGPO.
* `shaping.py`: what is done to rewards before, and to advantages after.
* `table.py`: which estimator goes with which settings; imports no torch.
* `estimate.py`: one call from samples to their advantages.
"""
