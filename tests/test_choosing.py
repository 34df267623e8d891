"""The page that helps to choose: its numbers come out of the catalog, and a wrong name is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from cookbook import choosing
from cookbook.catalog import Catalog
from cookbook.errors import InputError

PAGE = Path(__file__).parent.parent / "docs" / "choose.md"


def test_every_recipe_has_its_row(catalog: Catalog) -> None:
    rows = choosing.layouts(catalog).splitlines()[2:]
    assert len(rows) == len(catalog.recipes)
    for name, row in zip(catalog.recipes, rows, strict=True):
        assert f"(recipes/{name}.ipynb)" in row


def test_a_figure_that_nobody_published_is_called_a_bound(catalog: Catalog) -> None:
    rows = {line.partition("recipes/")[2].partition(".")[0]: line for line in choosing.layouts(catalog).splitlines()}
    assert "| 2.6 M |" in rows["b300_tp8"]
    assert "at most" in rows["mi355x_tp8"]
    assert "memory not published" in rows["vr200_tp8"]
    assert "prefill: 2.6 M<br>decode:" in rows["gb300_pd"]
    assert "| 6 x 4 |" in rows["gb300_pd"]


def test_a_claim_is_told_with_its_source(catalog: Catalog) -> None:
    text = choosing.fill("So: <!-- claim: long_prompt_ttft --> End.", catalog, ())
    claim = catalog.claims["long_prompt_ttft"]
    assert text.startswith(f"So: {claim.statement} (")
    assert catalog.sources[claim.source or ""].title in text


def test_a_claim_that_does_not_exist_is_an_error(catalog: Catalog) -> None:
    with pytest.raises(InputError, match='no claim "speed"'):
        choosing.fill("<!-- claim: speed -->", catalog, ())


def test_the_page_names_recipes_that_exist_and_states_no_figure_itself(catalog: Catalog) -> None:
    text = PAGE.read_text()
    for part in text.split("recipes/")[1:]:
        assert part.partition(".ipynb")[0] in catalog.recipes
    assert choosing.fill(text, catalog, catalog.recipes).count("<!--") == 0


def test_a_recipe_without_a_page_is_named_and_not_linked(catalog: Catalog) -> None:
    text = "[One](recipes/b300_tp8.ipynb) or [other](recipes/b300_tep.ipynb)"
    assert choosing.fill(text, catalog, {"b300_tp8"}) == "[One](recipes/b300_tp8.ipynb) or other"
