"""The score of a purchase, after the WebShop paper (Yao et al. 2022, arXiv:2207.01206, section 3).

    r = r_type · (|wanted attributes that it has| + |wanted options that were chosen| + [price ≤ limit])
              / (|wanted attributes| + |wanted options| + 1)

`r_type` lowers the score of another kind of product. It compares titles: 0 where they share nothing, 0.1 where less
than a tenth of the wanted title's words, 0.5 where at most a fifth and neither the search term nor the category agree,
else 1. The paper compares nouns, found by a tagger; here it is all words but numbers and the commonest ones. Attributes
and options count where they are equal but for case and blanks.
"""

from __future__ import annotations

from collections.abc import Collection

from ragen.env.webshop.data import Goal, Product, title_words


def type_score(bought: Product, wanted: Product) -> float:
    """0, 0.1, 0.5 or 1: whether it is the kind of product that was asked for."""
    target = title_words(wanted.title)
    match = len(title_words(bought.title) & target) / len(target) if target else float(bought.asin == wanted.asin)
    same_query = bought.query == wanted.query != ""
    same_category = bought.path[-1:] == wanted.path[-1:] if wanted.path else bought.category == wanted.category
    if match == 0:
        return 0.0
    if match < 0.1:
        return 0.1
    return 0.5 if match <= 0.2 and not same_query and not same_category else 1.0


def purchase_score(bought: Product, chosen: Collection[str], goal: Goal, wanted: Product) -> float:
    """The score in [0, 1].

    Args:
        bought: the product bought.
        chosen: the option values chosen, as `plain` writes them.
        goal: what was asked for.
        wanted: the product that the goal was written for.
    """
    met = len(goal.attributes & bought.attributes) + len(goal.options & set(chosen))
    met += bought.price <= goal.price_upper
    return type_score(bought, wanted) * met / (len(goal.attributes) + len(goal.options) + 1)
