"""Every combination of hardware, strategy and features that the catalog can name, allowed or not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations as subsets

from cookbook.catalog import Catalog
from cookbook.commands import allowed
from cookbook.deployment import Frozen
from cookbook.errors import InputError
from cookbook.selection import Selection, named

__all__ = ["Cell", "every", "matrix"]


def every(catalog: Catalog) -> Iterator[Selection]:
    """All subsets of the features on each strategy of each hardware, and the recipes with flags of their own.

    Features are in the catalog's order.
    """
    features = tuple(catalog.features)
    for hardware, entry in catalog.hardware.items():
        for strategy in entry.strategies:
            for size in range(len(features) + 1):
                for chosen in subsets(features, size):
                    yield Selection(hardware=hardware, strategy=strategy, features=chosen)
    for name, recipe in catalog.recipes.items():
        if recipe.args or recipe.env or recipe.where:
            yield named(catalog, name)


class Cell(Frozen):
    """What may be said of a feature or a strategy on a hardware.

    Attributes:
        hardware: Key of the hardware.
        name: Key of the feature or the strategy.
        state: "recipe" where a recipe has it, "possible" where it resolves, "refused" where a rule forbids it, "none"
            where no source shows it.
        recipes: Names of the recipes that have it.
        why: The rules that forbid it.
    """

    hardware: str
    name: str
    state: str
    recipes: tuple[str, ...] = ()
    why: tuple[str, ...] = ()


def matrix(catalog: Catalog) -> tuple[Cell, ...]:
    """A cell for each hardware with each strategy and each feature."""
    cells = []
    for hardware in catalog.hardware:
        cells += [_strategy(catalog, hardware, strategy) for strategy in catalog.strategies]
        cells += [_feature(catalog, hardware, feature) for feature in catalog.features]
    return tuple(cells)


def _strategy(catalog: Catalog, hardware: str, strategy: str) -> Cell:
    recipes = tuple(
        name for name, one in catalog.recipes.items() if (one.hardware, one.strategy) == (hardware, strategy)
    )
    known = strategy in catalog.hardware[hardware].strategies
    state = "recipe" if recipes else "possible" if known else "none"
    return Cell(hardware=hardware, name=strategy, state=state, recipes=recipes)


def _feature(catalog: Catalog, hardware: str, feature: str) -> Cell:
    recipes = tuple(
        name for name, one in catalog.recipes.items() if one.hardware == hardware and feature in one.features
    )
    if recipes:
        return Cell(hardware=hardware, name=feature, state="recipe", recipes=recipes)
    why: dict[str, None] = {}
    # Text only is what a TPU needs beside anything else.
    for strategy in catalog.hardware[hardware].strategies:
        for beside in ((), ("text_only",)):
            features = tuple(name for name in catalog.features if name in {feature, *beside})
            try:
                broken = allowed(catalog, Selection(hardware=hardware, strategy=strategy, features=features))
            except InputError:
                continue
            if not broken:
                return Cell(hardware=hardware, name=feature, state="possible")
            why |= {one.sentence(catalog.sources): None for one in broken if feature != "text_only" or not beside}
    return Cell(hardware=hardware, name=feature, state="refused", why=tuple(why))
