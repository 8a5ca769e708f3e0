"""WebShop in text: find a product that fits a wish, choose its options and buy it (Yao et al. 2022, arXiv:2207.01206).

Four kinds of page: the search page, results, a product, and its description or features. `search[words]` works on the
search page, `click[button]` wherever the button is. Buying ends the episode and pays the score of `scoring.py`.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ragen.env.base import Env
from ragen.env.problem_files import problem_number
from ragen.env.webshop.config import WebShopConfig
from ragen.env.webshop.data import Goal, Product, Shop, data_files, load_shop, plain
from ragen.env.webshop.scoring import purchase_score

_ACTION = re.compile(r"(search|click|choose)\s*\[(.*)\]", re.IGNORECASE | re.DOTALL)
#: What the buttons are called elsewhere → here.
_ALIASES = {
    "next >": "next page", "next": "next page", "< prev": "previous page", "prev": "previous page",
    "prev page": "previous page", "previous": "previous page", "buy": "buy now", "overview": "features",
}  # fmt: skip


class WebShop(Env):
    config_class = WebShopConfig
    reward_range = (0.0, 1.0)

    def __init__(self, config: WebShopConfig | None = None):
        super().__init__(config)
        data_files(self.config.data_dir, self.config.dataset, self.config.human_goals)  # missing ones are reported now
        self._over = True

    @property
    def shop(self) -> Shop:
        """Shared by all environments of the process; never kept in self, so that an environment can be pickled."""
        return load_shop(self.config.data_dir, self.config.dataset, self.config.human_goals)

    def reset(self, seed: int, *, luck: int | None = None) -> tuple[str, dict[str, Any]]:
        """Show the search page with the wish of `seed`. Nothing is left to luck.

        Raises:
            MissingData: a file of the data is not there.
            ValueError: a file does not hold what it should.
        """
        self.seed_streams(seed, luck)
        goals = self.shop.goals
        self.load_goal(goals[problem_number(seed, len(goals))])
        return self.render(), {}

    def load_goal(self, goal: Goal) -> None:
        """Start the episode of a given goal."""
        self.goal = goal
        self._page, self._query, self._results, self._first = "search", "", [], 0
        self._number, self._chosen = None, {}  # the product that is shown; option name → value
        self._steps, self._over = 0, False

    @property
    def _product(self) -> Product:
        return self.shop.products[self._number]

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._over:
            raise RuntimeError("the WebShop episode is over; call reset first")
        kind, text = self._parse(action)
        before = self._state()
        if kind == "search" and self._page == "search":
            self._search(text)
        elif kind == "click" and (button := self._button(text)) is not None:
            self._click(button)
        else:
            kind = None
        self._steps += 1
        bought = self._page == "bought"
        reward = self._score() if bought else 0.0
        truncated = not bought and self._steps >= self.config.max_steps
        self._over = bought or truncated
        info = {
            "action_is_valid": kind is not None,
            "action_is_effective": self._state() != before,
            "success": bought and reward == 1.0,
        }
        return self.render(), reward, bought, truncated, info

    def _state(self) -> tuple:
        return self._page, self._query, tuple(self._results), self._first, self._number, tuple(self._chosen.items())

    def _parse(self, action: Any) -> tuple[str | None, str]:
        """(`search` or `click`, what the brackets hold), or (None, "")."""
        if not isinstance(action, str) or len(action) > self.config.max_query_chars:
            return None, ""
        match = _ACTION.fullmatch(action.strip())
        text = plain(match[2]) if match else ""
        if not text:
            return None, ""
        return ("search" if match[1].lower() == "search" else "click"), text

    def _score(self) -> float:
        wanted = self.shop.products[self.shop.number[self.goal.asin]]
        return float(purchase_score(self._product, set(self._chosen.values()), self.goal, wanted))

    # --- moving about -----------------------------------------------------------------------------------------------

    def buttons(self) -> list[str]:
        """What can be clicked on this page, options left out."""
        if self._page == "results":
            last = self._first + self.config.page_size
            shown = [self.shop.products[number].asin for number in self._results[self._first : last]]
            turn = ["previous page"] * (self._first > 0) + ["next page"] * (last < len(self._results))
            return [*shown, *turn, "back to search"]
        if self._page == "product":
            return ["buy now", "description", "features", "back", "back to search"]
        return ["back", "back to search"] if self._page in ("description", "features") else []

    def _button(self, text: str) -> str | tuple[str, str] | None:
        """The button of that name, or (option, value): by value, or as `option: value` where several have it."""
        buttons = self.buttons()
        alias = _ALIASES.get(text, text)
        if alias == "previous page" and "back" in buttons:
            alias = "back"
        for name in (text, alias):
            if name in buttons:
                return name
        if self._page == "product":
            for option, values in self._product.options.items():
                for value in values:
                    if text in (value, f"{option}: {value}"):
                        return option, value
        return None

    def _search(self, words: str) -> None:
        self._results = self.shop.index.search(words, self.config.max_results)
        self._page, self._query, self._first = "results", words, 0

    def _click(self, button: str | tuple[str, str]) -> None:
        if isinstance(button, tuple):
            self._chosen = {**self._chosen, button[0]: button[1]}
        elif button == "back to search":
            self._page, self._query, self._results, self._first = "search", "", [], 0
            self._number, self._chosen = None, {}
        elif button == "back":
            self._page = "results" if self._page == "product" else "product"
        elif button in ("next page", "previous page"):
            self._first += self.config.page_size * (1 if button == "next page" else -1)
        elif button in ("description", "features"):
            self._page = button
        elif button == "buy now":
            self._page = "bought"
        else:
            number = self.shop.number[button]
            if number != self._number:
                self._number, self._chosen = number, {}
            self._page = "product"

    # --- what is seen -----------------------------------------------------------------------------------------------

    def render(self, mode: str = "text") -> str:
        if mode != "text":
            raise ValueError(f"webshop has no board to draw: mode {mode!r}; use 'text'")
        lines = [f"Wish: {self.goal.instruction}", *getattr(self, f"_{self._page}_page")()]
        actions = [f"click[{button}]" for button in self.buttons()]
        if self._page == "search":
            actions = ["search[words]"]
        elif self._page == "product" and self._product.options:
            actions.insert(1, "click[a value of an option]")
        if actions and not self._over:
            lines.append(f"Actions: {', '.join(actions)}")
        return "\n".join(lines)

    def _search_page(self) -> list[str]:
        return ["Page: search"]

    def _results_page(self) -> list[str]:
        size, count = self.config.page_size, len(self._results)
        if not count:
            return [f"Page: results for {self._query!r}: nothing found"]
        pages = -(-count // size)
        lines = [f"Page: results for {self._query!r}, page {self._first // size + 1} of {pages}"]
        for number in self._results[self._first : self._first + size]:
            product = self.shop.products[number]
            lines.append(f"[{product.asin}] {self._cut(product.title)} ${product.price:.2f}")
        return lines

    def _product_page(self) -> list[str]:
        product = self._product
        lines = [f"Page: product {product.asin}", self._cut(product.title), f"Price: ${product.price:.2f}"]
        most = self.config.max_shown_options
        for option, values in product.options.items():
            chosen = self._chosen.get(option)
            shown = [f"{value} (chosen)" if value == chosen else value for value in values[:most]]
            if len(values) > most:
                shown.append(f"… and {len(values) - most} more")
            if chosen in values[most:]:
                shown.append(f"{chosen} (chosen)")
            lines.append(f"Option {option}: {', '.join(shown)}")
        return lines

    def _description_page(self) -> list[str]:
        return [f"Page: description of {self._product.asin}", self._cut(self._product.description) or "none"]

    def _features_page(self) -> list[str]:
        bullets = self._cut("\n".join(f"- {bullet}" for bullet in self._product.bullets))
        return [f"Page: features of {self._product.asin}", bullets or "none"]

    def _bought_page(self) -> list[str]:
        chosen = "".join(f", {option}: {value}" for option, value in self._chosen.items())
        return [f"You bought {self._product.asin}{chosen}"]

    def _cut(self, text: str) -> str:
        most = self.config.max_text_chars
        return text if len(text) <= most else text[:most].rstrip() + " …"

    def instruction(self) -> str:
        return (
            "You are in a web shop with a wish. Find a product that fits it, choose its options, and buy it.\n"
            "search[words] searches from the search page; click[button] clicks a button of the page: a product's id, a "
            "value of an option, next page, previous page, description, features, back, back to search, buy now. "
            "Buying ends the task.\n"
            "Reward: from 0 to 1, the share of the wished attributes, options and price limit that the purchase meets; "
            "less for another kind of product. Only a purchase pays."
        )

    # --- players ----------------------------------------------------------------------------------------------------

    def oracle_action(self) -> str | None:
        """Searches for the wanted product's title, opens it, chooses the options and buys. None: it is not found."""
        if self._over:
            return None
        wanted = self.shop.number[self.goal.asin]
        product = self.shop.products[wanted]
        query = plain(product.title.replace("|", " "))[: self.config.max_query_chars - len("search[]")].strip()
        if self._page == "search":
            return f"search[{query}]"
        if self._page == "results":
            if wanted not in self._results:
                return "click[back to search]" if self._query != query else None
            page = self._results.index(wanted) // self.config.page_size * self.config.page_size
            if page != self._first:
                return "click[next page]" if page > self._first else "click[previous page]"
            return f"click[{product.asin}]"
        if self._number != wanted:
            return "click[back to search]"
        if self._page != "product":
            return "click[back]"
        for option, values in product.options.items():
            for value in values:
                if value in self.goal.options and self._chosen.get(option) not in self.goal.options:
                    return f"click[{option}: {value}]"
        return "click[buy now]"

    def random_action(self, rng: np.random.Generator) -> str | None:
        """Search for a few words of the wish; then click at random."""
        if self._page == "search":
            words = re.findall(r"\w+", self.goal.instruction) or ["thing"]
            start = int(rng.integers(len(words)))
            return f"search[{' '.join(words[start : start + int(rng.integers(1, 5))])}]"
        buttons = self.buttons()
        if self._page == "product":
            options = [values[int(rng.integers(len(values)))] for values in self._product.options.values()]
            buttons += [value for value in options if "|" not in value]
        return f"click[{buttons[int(rng.integers(len(buttons)))]}]"
