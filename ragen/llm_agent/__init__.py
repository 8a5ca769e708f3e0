"""The three modules of the rollout: environment state manager, context manager, agent proxy."""
