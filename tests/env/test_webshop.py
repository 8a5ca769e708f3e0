"""WebShop: scores by hand, walking through the shop, files in the published format, our own catalogue."""

import json
import pickle
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen.env.errors import MissingData
from ragen.env.registry import make_env
from ragen.env.webshop.config import WebShopConfig
from ragen.env.webshop.data import Goal, Product, load_shop
from ragen.env.webshop.env import WebShop
from ragen.env.webshop.scoring import purchase_score, type_score


def product(title="Red Wool Hat", attributes=("warm", "soft"), price=12.0, query="hat", path=("clothing", "hats")):
    return Product(title.lower(), title, "", (), price, "fashion", query, path, {}, frozenset(attributes))


def goal(attributes=("warm", "soft"), options=("red",), upper=20.0):
    return Goal("red wool hat", "A hat", frozenset(attributes), frozenset(options), upper)


@pytest.mark.parametrize(
    ("bought", "chosen", "score"),
    [
        (product(), {"red"}, 1.0),
        (product(), set(), 3 / 4),  # both attributes and the price, not the option
        (product(), {"red", "large"}, 1.0),  # what was not asked for costs nothing
        (product(price=20.0), {"red"}, 1.0),
        (product(price=20.01), {"red"}, 3 / 4),
        (product(attributes=("warm",)), {"blue"}, 2 / 4),
        (product(attributes=(), price=99.0), set(), 0.0),
        (product("Garden Hose"), {"red"}, 0.0),  # nothing in common in the titles
    ],
)
def test_scores_by_hand(bought, chosen, score):
    assert purchase_score(bought, chosen, goal(), product()) == pytest.approx(score)


WANTED = "Alpha Bravo Charlie Delta Echo Foxtrot Golf Hotel India Juliett Kilo"  # eleven words


@pytest.mark.parametrize(
    ("title", "query", "path", "score"),
    [
        (WANTED, "hat", ("a", "b"), 1.0),
        ("Zulu", "hat", ("a", "b"), 0.0),
        ("Alpha Zulu", "hat", ("a", "b"), 0.1),  # 1 of 11
        ("Alpha Bravo Zulu", "shoe", ("c", "d"), 0.5),  # 2 of 11, neither search term nor category
        ("Alpha Bravo Zulu", "hat", ("c", "d"), 1.0),
        ("Alpha Bravo Zulu", "shoe", ("c", "b"), 1.0),
        ("Alpha Bravo Charlie", "shoe", ("c", "d"), 1.0),  # 3 of 11
        ("12 the Alpha, 5 ml", "hat", ("a", "b"), 0.1),  # numbers and common words say nothing
    ],
)
def test_another_kind_of_product_scores_less(title, query, path, score):
    assert type_score(product(title, query=query, path=path), product(WANTED, query="hat", path=("a", "b"))) == score


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 79), st.integers(0, 79), st.integers(0, 79), st.integers(0, 2**16))
def test_scores_lie_between_nothing_and_all(bought, wanted, aim, choice):
    shop = load_shop(None, "small", True)
    product = shop.products[bought]
    chosen = {values[choice % len(values)] for values in product.options.values()}
    score = purchase_score(product, chosen, shop.goals[aim], shop.products[wanted])
    assert 0 <= score <= 1
    assert purchase_score(product, set(), shop.goals[aim], shop.products[wanted]) <= score  # choosing never costs


def started(seed=10_000, **config):
    env = WebShop(WebShopConfig(**config))
    env.reset(seed)
    return env


def click(env, *buttons):
    for button in buttons:
        page, reward, terminated, truncated, info = env.step(f"click[{button}]")
        assert info["action_is_valid"] and not reward and not terminated, (button, page)
    return page


def test_a_purchase_by_hand():
    env = started()
    wish = (
        "I am looking for a hair brush, boar bristle and anti static, color: pink, style: paddle, and price lower than "
        "40.00 dollars"
    )
    assert env.render() == f"Wish: {wish}\nPage: search\nActions: search[words]"
    page = env.step("search[Hair Brush paddle]")[0]
    lines = page.splitlines()
    assert lines[1] == "Page: results for 'hair brush paddle', page 1 of 1"
    assert "[r067jq3lxv] Juniper Traveller Hair Brush, Boar Bristle, Anti Static $24.99" in lines
    page = click(env, "R067JQ3LXV")
    assert page.splitlines()[1:] == [
        "Page: product r067jq3lxv",
        "Juniper Traveller Hair Brush, Boar Bristle, Anti Static",
        "Price: $24.99",
        "Option color: natural, pink",
        "Option style: paddle, round",
        "Actions: click[buy now], click[a value of an option], click[description], click[features], click[back], "
        "click[back to search]",
    ]
    assert "Option color: natural, pink (chosen)" in click(env, "pink")
    assert "made for straight, wavy and curly hair" in click(env, "description").lower()
    assert "- Boar bristle" in click(env, "back", "features")
    assert "Option style: paddle, round (chosen)" in click(
        env, "< prev", "style: Round"
    )  # names of the other kind, too
    page, reward, terminated, truncated, info = env.step("click[Buy Now]")
    assert page.endswith("You bought r067jq3lxv, color: pink, style: round")
    assert (reward, terminated, truncated) == (4 / 5, True, False)  # two attributes, one of two options, the price
    assert not info["success"]
    with pytest.raises(RuntimeError, match="call reset first"):
        env.step("click[back]")


def test_pages_of_results():
    env = started(page_size=3, max_results=7)
    page = env.step("search[non slip sole black]")[0]
    assert "page 1 of 3" in page and "previous page" not in page
    first = env.buttons()[:3]
    assert "page 2 of 3" in click(env, "next page") and not set(first) & set(env.buttons()[:3])
    page = click(env, "Next >")
    assert "page 3 of 3" in page and "click[next page]" not in page and len(env.buttons()) == 3
    assert not env.step("click[next page]")[4]["action_is_valid"]
    assert "page 2 of 3" in click(env, env.buttons()[0], "back", "prev page")  # back leads to the page it came from
    assert "Page: search" in click(env, "back to search")
    assert env.step("search[qqqq]")[0].splitlines()[1:] == [
        "Page: results for 'qqqq': nothing found", "Actions: click[back to search]",
    ]  # fmt: skip


def test_options_are_kept_for_one_product_only():
    env = started()
    env.step("search[hair brush paddle pink]")
    click(env, "r067jq3lxv", "pink", "back", "r067jq3lxv")
    assert "pink (chosen)" in env.render()
    other = next(asin for asin in click(env, "back") and env.buttons() if asin not in ("r067jq3lxv", "next page"))
    click(env, other, "back", "r067jq3lxv")
    assert "(chosen)" not in env.render()
    assert not env.step("click[features]")[1] and env.step("click[back]")[4]["action_is_effective"]
    click(env, "pink")
    assert not env.step("click[pink]")[4]["action_is_effective"]  # chosen already


@pytest.mark.parametrize(
    "action",
    ["", "search", "search[]", "search[ \n ]", "click[buy now]", "click[x]", "click[search]", "buy now", "click[[]]",
     "click[" * 20_000, "x" * 100_000, "search[" + "x" * 600 + "]", None, 3, b"click[back]", "\0", "<|im_end|>",
     "search[shoes] click[back]"[:-1], "click[" + "√" * 400 + "]"],
)  # fmt: skip
def test_absurd_actions_are_invalid_quick_and_change_nothing(action):
    env = started()
    before = env.render()
    start = time.process_time()
    page, reward, terminated, _, info = env.step(action)
    assert time.process_time() - start < 0.1
    assert (page, reward, terminated) == (before, 0.0, False)
    assert info == {"action_is_valid": False, "action_is_effective": False, "success": False}


def test_searching_works_on_the_search_page_only():
    env = started()
    env.step("search[shoes]")
    assert not env.step("search[socks]")[4]["action_is_valid"]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_random_play_keeps_the_rules(seed, page_size):
    env = started(seed, page_size=page_size)
    rng = np.random.default_rng(seed)
    for _ in range(40):
        action = env.random_action(rng)
        before = env.render()
        page, reward, terminated, truncated, info = env.step(action)
        assert info["action_is_valid"], action
        assert info["action_is_effective"] == (page != before)
        assert 0 <= reward <= 1 and (terminated or not reward) and info["success"] == (terminated and reward == 1)
        assert page.startswith(f"Wish: {env.goal.instruction}\n") and len(page) < 6_000
        for button in env.buttons():
            assert terminated or f"click[{button}]" in page
        if terminated:
            break


def test_the_oracle_buys_what_is_wanted_and_beats_random_play():
    env, scores = WebShop(), {"oracle": 0.0, "random": 0.0}
    count = len(env.shop.goals)
    assert count == len(env.shop.products) == 80
    for player in scores:
        for seed in range(count):
            env.reset(seed)
            rng = np.random.default_rng(seed)
            for _ in range(9):
                action = env.oracle_action() if player == "oracle" else env.random_action(rng)
                _, reward, terminated, _, _ = env.step(action)
                scores[player] += reward
                if terminated:
                    break
    assert scores["oracle"] == count
    assert 0 < scores["random"] < 0.4 * count


def test_the_oracle_finds_its_way_from_anywhere():
    env = WebShop()
    for seed in range(40):
        env.reset(seed)
        rng = np.random.default_rng(seed)
        for _ in range(6):
            action = env.random_action(rng)
            if action != "click[buy now]":
                env.step(action)
        reward = 0.0
        for _ in range(12):
            _, reward, terminated, _, _ = env.step(env.oracle_action())
            if terminated:
                break
        assert reward == 1.0
        assert env.oracle_action() is None


def test_an_environment_is_small_and_can_be_pickled():
    env = started()
    env.step("search[shoes]")
    click(env, env.buttons()[0])
    copy = pickle.loads(pickle.dumps(env))
    assert len(pickle.dumps(env)) < 6_000
    assert copy.render() == env.render() and copy.step("click[buy now]")[:2] == env.step("click[buy now]")[:2]


def test_the_limit_of_steps_truncates():
    env = started(max_steps=2)
    assert env.step("nonsense")[2:4] == (False, False)
    assert env.step("search[shoes]")[2:4] == (False, True)


# --- the published files ---------------------------------------------------------------------------------------------

ITEMS = [
    {"asin": "B01ABC", "name": "Blue Cotton  Shirt", "pricing": "$1,012.50$1,300.00", "category": "fashion",
     "query": "men's shirts", "product_category": "Clothing › Men › Shirts", "full_description": None,
     "small_description": "One bullet", "customization_options": {"Size": [{"value": "  XL "}, {"value": "m"}],
     "Fit": None, "Style": [{"value": "m"}]}},
    {"asin": "B02", "name": "Tin Cup", "pricing": "", "customization_options": ""},
]  # fmt: skip
ATTRIBUTES = {
    "B01ABC": {"attributes": ["Machine Wash", "cotton"], "instruction": "find me a shirt.",
               "instruction_attributes": ["machine wash"]},
    "B02": {"attributes": ["tin"]},
    "B99": {"attributes": ["x"], "instruction": "y", "instruction_attributes": ["x"]},
}  # fmt: skip
HUMAN = {
    "B01ABC": [{"instruction": "i want an xl shirt", "instruction_attributes": ["cotton"],
                "instruction_options": ["xl"]},
               {"instruction": "no attributes", "instruction_attributes": [], "instruction_options": []}],
    "B98": [{"instruction": "gone", "instruction_attributes": ["x"], "instruction_options": []}],
}  # fmt: skip


def write(folder, suffix="_1000", **changed):
    files = {"items_shuffle": ITEMS, "items_ins_v2": ATTRIBUTES, **changed}
    for name, value in files.items():
        (folder / f"{name}{suffix}.json").write_text(json.dumps(value))
    (folder / "items_human_ins.json").write_text(json.dumps(HUMAN))
    return str(folder)


def test_the_published_files_are_read(tmp_path):
    shop = load_shop(write(tmp_path), "small", True)
    shirt, cup = shop.products
    assert shirt == Product(
        "b01abc", "Blue Cotton Shirt", "", ("One bullet",), 1012.5, "fashion", "men's shirts",
        ("clothing", "men", "shirts"), {"size": ("xl", "m"), "style": ("m",)}, frozenset({"machine wash", "cotton"}),
    )  # fmt: skip
    assert (cup.price, cup.options, cup.path) == (100.0, {}, ())
    (only,) = shop.goals
    assert (
        only.instruction.startswith("i want an xl shirt, and price lower than 10") and 1012.5 < only.price_upper < 1050
    )
    assert (only.attributes, only.options) == ({"cotton"}, {"xl"})


def test_generated_goals_name_an_option_each(tmp_path):
    env = make_env("webshop", {"data_dir": write(tmp_path, suffix=""), "dataset": "full", "human_goals": False})
    env.reset(0)
    size = env.goal.instruction.split("size: ")[1].split(",")[0]
    assert env.goal.instruction.startswith(f"find me a shirt, size: {size}, style: m, and price lower than")
    assert env.goal.options == {size, "m"}
    while env.oracle_action():
        reward = env.step(env.oracle_action())[1]
    assert reward == 1.0
    env.reset(0)
    env.step("search[shirt]")
    page = click(env, "b01abc", "m", "style: m")  # two options have the value: the first, or the one that is named
    assert "Option size: xl, m (chosen)\nOption style: m (chosen)" in page


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"items_shuffle": {}}, "must hold a list of products"),
        ({"items_shuffle": [{"asin": "x"}]}, "item 0 is no product with asin and name"),
        ({"items_shuffle": [ITEMS[1]]}, "holds no goal for a product"),
    ],
)
def test_files_of_another_form_say_so(tmp_path, changed, message):
    with pytest.raises(ValueError, match=message):
        load_shop(write(tmp_path, **changed), "small", True)


def test_missing_data_is_named(tmp_path):
    with pytest.raises(MissingData, match="dataset: full needs WebShop's data.*env_config.data_dir"):
        make_env("webshop", {"dataset": "full"})
    with pytest.raises(MissingData, match="lacks items_shuffle_1000.json"):
        make_env("webshop", {"data_dir": str(tmp_path)})
    with pytest.raises(ValueError, match="dataset is 'tiny'; choose one of small, full"):
        make_env("webshop", {"dataset": "tiny"})
