"""The parts of `python -m ragen.env.check`: its two sides, and the checks by what they look at."""
