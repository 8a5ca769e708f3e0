"""Evaluation: play a panel and say how well it went."""
