"""A supervised warm start: `python -m ragen.sft` (docs/sft.md)."""
