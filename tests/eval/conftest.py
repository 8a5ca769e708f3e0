"""One set of played episodes for all tests of this folder."""

import pytest

from tests.eval.played import play
from tests.llm_agent.tokenizers_for_tests import byte_tokenizer


@pytest.fixture(scope="session")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture(scope="session")
def played(tokenizer):
    """Eight episodes: two groups of two, in Sokoban and FrozenLake."""
    return play(tokenizer)
