"""Settings of WebShop."""

from __future__ import annotations

from dataclasses import dataclass

from ragen.env.config_checks import at_least, one_of


@dataclass
class WebShopConfig:
    dataset: str = "small"
    """`small`: the first thousand products of the published data (files named …_1000.json), or without `data_dir` the
    small catalogue that comes with this package. `full`: all products; needs `data_dir`."""
    data_dir: str | None = None
    """Folder of the published files: `items_shuffle[_1000].json`, `items_ins_v2[_1000].json` and, for goals in people's
    own words, `items_human_ins.json`. See `ragen/env/webshop/data.py` for the fields that are read."""
    human_goals: bool = True
    """With `data_dir`: the instructions that people wrote (`items_human_ins.json`); false: the generated ones."""
    page_size: int = 10
    """Products on a page of results."""
    max_results: int = 50
    """Products that a search finds at most."""
    max_text_chars: int = 1000
    """Longer descriptions and titles are cut."""
    max_shown_options: int = 40
    """Values of an option that a page lists; all of them can be clicked."""
    max_query_chars: int = 500
    """Longer actions are invalid."""
    max_steps: int = 100
    """Actions after which the environment truncates the episode."""

    def __post_init__(self):
        at_least(self, page_size=1, max_results=1, max_text_chars=20, max_shown_options=1)
        at_least(self, max_query_chars=20, max_steps=1)
        one_of(self, dataset=("small", "full"))
        if type(self.human_goals) is not bool:
            raise ValueError(f"human_goals is {self.human_goals!r}; give true or false")
