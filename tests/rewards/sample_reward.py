"""A reward function that tests name by its module."""


async def turns(trajectory):
    """One for each turn."""
    return float(trajectory.num_turns)
