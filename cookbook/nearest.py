"""The selection nearest to one that a rule forbids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cookbook.catalog import Catalog
from cookbook.commands import allowed, offload_gib
from cookbook.errors import InputError
from cookbook.selection import Selection

__all__ = ["nearest_allowed"]

SEARCH_DEPTH = 3
"""Changes that the search makes at most."""
SEARCH_WIDTH = 200
"""Selections that it goes on from after each of them."""


def nearest_allowed(catalog: Catalog, selection: Selection) -> Selection | None:
    """The selection with the fewest changes that is allowed; None where none within a few changes is.

    A change drops or adds a feature, takes another strategy or number of nodes, drops an override, or leaves the size
    of the offload to arithmetic. Other hardware comes last: nobody changes that for a flag.
    """
    seen = {selection.model_dump_json()}
    layer = [selection]
    for _ in range(SEARCH_DEPTH):
        following = []
        for current in layer:
            for candidate in _neighbours(catalog, current):
                key = candidate.model_dump_json()  # an override may hold JSON, which has no hash
                if key not in seen:
                    seen.add(key)
                    following.append(candidate)
        found = _first_allowed(catalog, following)
        if found:
            return found
        layer = following[:SEARCH_WIDTH]
    return _first_allowed(catalog, _elsewhere(catalog, selection))


def _first_allowed(catalog: Catalog, candidates: Iterable[Selection]) -> Selection | None:
    for candidate in candidates:
        try:
            if not allowed(catalog, candidate):
                return candidate
        except InputError:
            continue
    return None


def _elsewhere(catalog: Catalog, selection: Selection) -> Iterator[Selection]:
    for name, hardware in catalog.hardware.items():
        if name != selection.hardware and selection.strategy in hardware.strategies and not hardware.model:
            yield selection.model_copy(update={"hardware": name, "nodes": None, "recipe": ""})


def _neighbours(catalog: Catalog, selection: Selection) -> Iterator[Selection]:
    def changed(**update: object) -> Selection:
        return selection.model_copy(update={**update, "recipe": ""})

    for override in selection.overrides:
        yield changed(overrides=tuple(one for one in selection.overrides if one != override))
    if selection.offload_gib is not None and selection.host_memory_gib is not None:
        devices = catalog.hardware[selection.hardware].devices_per_node
        yield changed(offload_gib=offload_gib(selection.model_copy(update={"offload_gib": None}), devices))
    for feature in reversed(selection.features):
        yield changed(features=tuple(one for one in selection.features if one != feature))
    for feature in catalog.features:
        if feature not in selection.features:
            yield changed(features=(*selection.features, feature))
    if selection.nodes is not None:
        yield changed(nodes=None)
    for strategy in catalog.hardware[selection.hardware].strategies:
        if strategy != selection.strategy:
            yield changed(strategy=strategy, nodes=None)
