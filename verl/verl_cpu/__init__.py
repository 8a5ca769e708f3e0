"""veRL on a CPU: a platform plugin for machines without an accelerator.

veRL loads it by itself (entry point group ``verl.plugins``, module ``verl_cpu.autoload``) in every process that
imports veRL. This package itself changes nothing when imported; ``install`` does, and ``uninstall`` takes it back.
See ``verl/README.md`` for what each adaptation removes and why.
"""

from verl_cpu.plugin import install, is_installed, reason_to_stay_out, uninstall

__all__ = ["install", "is_installed", "reason_to_stay_out", "uninstall"]
