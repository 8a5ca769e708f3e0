"""Products, goals and their index: read once a process from files in the published format, then shared read-only.

`items_shuffle*.json` is a list of products. Read of each: `asin` (its id), `name` (title), `full_description`,
`small_description` (list of bullet points, or text), `pricing` ("$12.99", or "$9.50$12.00" for a range: the lowest
counts), `category`, `query` (the search term it was collected with), `product_category` ("A › B › C") and
`customization_options` (option name → list of `{"value": ...}`, or null).

`items_ins_v2*.json` maps an asin to `attributes` (what the reward compares), and where there is one, a generated
`instruction` with `instruction_attributes`. `items_human_ins.json` maps an asin to a list of goals in people's words:
`instruction`, `instruction_attributes`, `instruction_options` (values to be chosen).

Goals of products that are missing or have no attributes are left out. Each goal gets a price limit: a multiple of 10
dollars at least the lowest price, drawn by the goal's number. A generated instruction names no options, so one value
of each option is drawn and said, too.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ragen.env.errors import MissingData
from ragen.env.text_index import TextIndex, words

OWN_CATALOGUE = Path(__file__).parent / "catalogue"
_BUILDING = threading.Lock()
_PRICE = re.compile(r"\$?\s*(\d[\d,]*(?:\.\d+)?)")


class Product(NamedTuple):
    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    price: float
    """Dollars; the lowest of a range, 100 where none is given."""
    category: str
    query: str
    path: tuple[str, ...]
    """Where it stands in the tree of categories, widest first."""
    options: Mapping[str, tuple[str, ...]]
    attributes: frozenset[str]


class Goal(NamedTuple):
    asin: str
    instruction: str
    attributes: frozenset[str]
    options: frozenset[str]
    price_upper: float


class Shop(NamedTuple):
    products: list[Product]
    number: Mapping[str, int]
    """asin, in lower case → place in `products`."""
    goals: list[Goal]
    index: TextIndex


def plain(text: Any) -> str:
    """Text as it is compared: lower case, single blanks."""
    return " ".join(str(text).lower().split())


def load_shop(data_dir: str | None, dataset: str, human_goals: bool) -> Shop:
    """The shop of those files, or of the package's own catalogue: one a process, whichever thread asks first.

    Raises:
        MissingData: a file is not there.
        ValueError: a file does not hold what it should.
    """
    with _BUILDING:
        return _load_shop(data_dir, dataset, human_goals)


@lru_cache(maxsize=4)
def _load_shop(data_dir: str | None, dataset: str, human_goals: bool) -> Shop:
    paths = data_files(data_dir, dataset, human_goals)
    items, attributes = (_read(paths[name]) for name in ("items", "attributes"))
    if not isinstance(items, list) or not isinstance(attributes, dict):
        raise ValueError(f"{paths['items']} must hold a list of products, {paths['attributes']} a mapping by asin")
    by_asin: dict[str, Product] = {}
    for number, item in enumerate(items):
        if not isinstance(item, dict) or not item.get("asin") or not item.get("name"):
            raise ValueError(f"{paths['items']}: item {number} is no product with asin and name")
        entry = attributes.get(item["asin"]) or {}
        product = _product(item, entry.get("attributes") or ())
        by_asin.setdefault(product.asin, product)
    goals = _human_goals(_read(paths["human"]), by_asin) if "human" in paths else _generated_goals(attributes, by_asin)
    if not goals:
        raise ValueError(f"{paths.get('human', paths['attributes'])} holds no goal for a product of {paths['items']}")
    products = list(by_asin.values())
    index = TextIndex(_searched(product) for product in products)
    return Shop(products, {product.asin: number for number, product in enumerate(products)}, goals, index)


def data_files(data_dir: str | None, dataset: str, human_goals: bool) -> dict[str, Path]:
    """`items`, `attributes` and, where people's goals are wanted, `human` → path, all there.

    Raises:
        MissingData: `data_dir` is not given for the full data, or lacks a file.
    """
    if data_dir is None and dataset == "full":
        raise MissingData(
            "env_type 'webshop' with dataset: full needs WebShop's data, which does not come with RAGEN; download it "
            "as the WebShop project describes, and set env_config.data_dir to its folder"
        )
    folder = Path(data_dir).expanduser() if data_dir is not None else OWN_CATALOGUE
    suffix = "_1000" if dataset == "small" and data_dir is not None else ""
    paths = {"items": folder / f"items_shuffle{suffix}.json", "attributes": folder / f"items_ins_v2{suffix}.json"}
    if human_goals and data_dir is not None:
        paths["human"] = folder / "items_human_ins.json"
    for path in paths.values():
        if not path.is_file():
            raise MissingData(f"env_type 'webshop': env_config.data_dir is {str(folder)!r}, which lacks {path.name}")
    return paths


def _read(path: Path) -> Any:
    try:
        with path.open(encoding="utf-8") as file:
            return json.load(file)
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error


def _product(item: Mapping[str, Any], attributes: Any) -> Product:
    bullets = item.get("small_description") or ()
    options = {}
    for name, choices in (item.get("customization_options") or {}).items():
        values = [plain(choice["value"]) for choice in choices or () if plain(choice.get("value") or "")]
        if values:
            options[plain(name)] = tuple(dict.fromkeys(values))
    prices = [float(price.replace(",", "")) for price in _PRICE.findall(str(item.get("pricing") or ""))]
    return Product(
        asin=str(item["asin"]).strip().lower(),
        title=" ".join(str(item["name"]).split()),
        description=" ".join(str(item.get("full_description") or "").split()),
        bullets=tuple(str(b).strip() for b in ([bullets] if isinstance(bullets, str) else bullets) if str(b).strip()),
        price=min(prices, default=100.0),
        category=plain(item.get("category") or ""),
        query=plain(item.get("query") or ""),
        path=tuple(plain(part) for part in re.split("[›>]", str(item.get("product_category") or "")) if part.strip()),
        options=options,
        attributes=frozenset(map(plain, attributes)),
    )


def _searched(product: Product) -> str:
    values = (value for choices in product.options.values() for value in choices)
    return " ".join([product.title, product.description, *product.bullets, product.query, *values])


def _human_goals(entries: Any, products: Mapping[str, Product]) -> list[Goal]:
    goals = []
    for asin, tasks in entries.items():
        asin = asin.strip().lower()
        for task in tasks if asin in products else ():
            attributes = frozenset(map(plain, task.get("instruction_attributes") or ()))
            chosen = task.get("instruction_options") or ()
            options = frozenset(map(plain, chosen.values() if isinstance(chosen, Mapping) else chosen))
            if attributes:
                goals.append(_goal(len(goals), products[asin], task["instruction"], attributes, options))
    return goals


def _generated_goals(entries: Mapping[str, Any], products: Mapping[str, Product]) -> list[Goal]:
    goals = []
    for asin, entry in entries.items():
        asin = asin.strip().lower()
        attributes = frozenset(map(plain, entry.get("instruction_attributes") or ()))
        if asin not in products or not attributes or not entry.get("instruction"):
            continue
        rng = np.random.default_rng(np.random.SeedSequence([len(goals), 1]))
        chosen = {name: values[int(rng.integers(len(values)))] for name, values in products[asin].options.items()}
        said = "".join(f", {name}: {value}" for name, value in chosen.items())
        instruction = str(entry["instruction"]).strip().rstrip(".,") + said
        goals.append(_goal(len(goals), products[asin], instruction, attributes, frozenset(chosen.values())))
    return goals


def _goal(number: int, product: Product, instruction: str, attributes: frozenset, options: frozenset) -> Goal:
    rng = np.random.default_rng(np.random.SeedSequence([number, 2]))
    upper = 10.0 * (int(product.price // 10) + 1 + int(rng.integers(3)))
    text = f"{str(instruction).strip().rstrip('.,')}, and price lower than {upper:.2f} dollars"
    return Goal(product.asin, text, attributes, options, upper)


def title_words(title: str) -> frozenset[str]:
    """The words of a title that say what a product is: no numbers, no measures in figures, no common words."""
    return frozenset(word for word in words(title) if word.isalpha() and len(word) > 1)
