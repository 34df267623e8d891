"""What helps to choose a recipe, from the catalog: Markdown of its numbers. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Container

from cookbook.capacity import capacities
from cookbook.catalog import Catalog
from cookbook.deployment import Deployment
from cookbook.errors import InputError
from cookbook.report import cell, link, table
from cookbook.resolve import resolve
from cookbook.selection import named

__all__ = ["fill", "layouts"]

LAYOUTS = "<!-- layouts -->"
CLAIM = re.compile(r"<!-- claim: (\w+) -->")

RECIPE = re.compile(r"\[(?P<text>[^\]]+)\]\(recipes/(?P<recipe>\w+)\.ipynb\)")


def fill(markdown: str, catalog: Catalog, pages: Container[str]) -> str:
    """Put the table of layouts, and published figures, where the page asks for them.

    `<!-- layouts -->` stands for the table, `<!-- claim: NAME -->` for what a source says, with a link to it.

    Args:
        markdown: The page.
        catalog: Has the figures.
        pages: Recipes that have a page. A link to another one becomes plain text.

    Raises:
        InputError: There is no claim of that name.
    """
    text = CLAIM.sub(lambda match: _claim(match[1], catalog), markdown)
    text = text.replace(LAYOUTS, layouts(catalog)) if LAYOUTS in text else text
    return RECIPE.sub(lambda match: match[0] if match["recipe"] in pages else match["text"], text)


def _claim(name: str, catalog: Catalog) -> str:
    if name not in catalog.claims:
        raise InputError(f'There is no claim "{name}".', f"There are {', '.join(catalog.claims)}.")
    claim = catalog.claims[name]
    source = catalog.sources[claim.source] if claim.source else None
    return f"{cell(claim.statement)} ({link(source)})" if source else cell(claim.statement)


def layouts(catalog: Catalog) -> str:
    """A row a recipe, by hardware: nodes, devices, tokens that fit by arithmetic, and what was published."""
    rows = []
    for name, entry in catalog.recipes.items():
        deployment = resolve(catalog, named(catalog, name))
        rows.append(
            (
                cell(catalog.hardware[entry.hardware].title),
                f"[{cell(entry.title)}](recipes/{name}.ipynb)",
                _size(deployment),
                _tokens(catalog, deployment),
                "<br>".join(cell(claim.statement) for claim in deployment.claims) or "–",
            )
        )
    return table(("Hardware", "Recipe", "Nodes x devices", "KV cache (tokens, computed)", "Published"), rows)


def _size(deployment: Deployment) -> str:
    nodes: dict[int, int] = {}
    for process in deployment.processes:
        nodes[process.node] = max(nodes.get(process.node, 0), process.devices)
    busy = [devices for devices in nodes.values() if devices]
    return f"{len(busy)} x {max(busy, default=0)}"


def _tokens(catalog: Catalog, deployment: Deployment) -> str:
    found = [one for one in capacities(catalog, deployment) if one.tokens_that_fit is not None]
    several = len(found) > 1
    shown = [
        f"{f'{one.role}: ' if several else ''}{'' if one.calibrated else 'at most '}{one.tokens_that_fit / 1e6:.1f} M"
        for one in found
        if one.tokens_that_fit is not None
    ]
    return "<br>".join(shown) or "memory not published"
