"""The collapse watch: signals of each step, rules that judge them, and what follows (docs/collapse.md).

`signals.py` reads a step's episodes, `rules.py` says when a signal is bad, `watch.py` counts bad steps, `phase.py` is
the trainer's side. All but the last are pure and import no torch.
"""
