"""Shared pieces of the rollout tests: small environments with known rewards, and scripted token policies."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
