"""docs/templates.md: its table names every check, in their order, and its commands are understood."""

import re
import shlex
from pathlib import Path

from ragen.config.compose import load
from ragen.llm_agent.check_template import _parser
from ragen.llm_agent.template_checks import TEMPLATE_CHECKS

PAGE = (Path(__file__).parents[2] / "docs" / "templates.md").read_text(encoding="utf-8")


def test_the_table_names_every_check():
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == list(TEMPLATE_CHECKS)


def test_the_commands_name_configs_and_keys_that_exist():
    commands = re.findall(r"^python -m ragen.llm_agent.check_template (.*)$", PAGE, re.MULTILINE)
    assert len(commands) == 3
    for words in commands:
        options = _parser().parse_intermixed_args(shlex.split(words))
        load(options.config_name, options.overrides)
