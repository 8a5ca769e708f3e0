"""RAGEN: train LLM agents by reinforcement learning in multi-turn, stochastic environments."""
