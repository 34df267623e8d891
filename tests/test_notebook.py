"""Parameters: an unknown or mistyped one is an error before anything starts. And what a notebook has to look like."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import jupytext
import pytest

from cookbook import begin, notebook
from cookbook.catalog import Catalog
from cookbook.errors import InputError
from cookbook.notebook import RECIPES, Parameter

ALL = sorted(RECIPES.glob("*.py"))
HEAD = '# %% tags=["parameters"]\n'
OUTLINE = [
    "Why this layout",
    "Requirements",
    "Commands",
    "Launch",
    "Client",
    "Checks",
    "Evidence",
    "Troubleshooting",
    "References",
]


@pytest.fixture(params=ALL, ids=lambda path: path.stem)
def recipe(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_the_parameters_of_a_recipe(recipe: Path) -> None:
    found = {parameter.name: parameter for parameter in notebook.parameters(recipe)}
    known = set(begin.Parameters.__dataclass_fields__)
    assert known - {"gsm8k", "beam_1m"} <= set(found) <= known
    assert all(parameter.comment for parameter in found.values())
    assert found["rehearse"].default is False
    assert found["base_url"].default == ""


def test_the_outline_is_the_same_on_every_page(recipe: Path) -> None:
    cells = jupytext.read(recipe).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == OUTLINE
    assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1


def test_every_code_cell_is_short_and_introduced_by_text(recipe: Path) -> None:
    cells = jupytext.read(recipe).cells
    for before, cell in itertools.pairwise(cells):
        if cell.cell_type == "code":
            first = "parameters" in before.metadata.get("tags", ()) or cell.source == "run.finish()"
            assert before.cell_type == "markdown" or first, cell.source
            assert len(cell.source.splitlines()) <= 25, cell.source
            assert not re.search(r"^\s*(def|class) ", cell.source, re.MULTILINE), cell.source


def test_prose_carries_no_flag(recipe: Path) -> None:
    """A flag stands once, in the catalog; prose that repeated it would go stale."""
    cells = jupytext.read(recipe).cells
    for cell in cells:
        if cell.cell_type == "markdown":
            assert not re.search(r"--[a-z]|\bVLLM_", cell.source), cell.source


def test_every_recipe_of_the_catalog_has_its_notebook(catalog: Catalog) -> None:
    assert {path.stem for path in ALL} == set(catalog.recipes)


def test_a_page_opens_its_own_recipe(recipe: Path, catalog: Catalog) -> None:
    text = recipe.read_text()
    assert f'open_run("{recipe.stem}", globals())' in text
    assert f"# # {catalog.recipes[recipe.stem].title}\n" in text


def test_no_text_stands_on_two_pages() -> None:
    """What pages share is in the package. Headings and the parameters' cell are the outline, and the same on each."""
    seen: dict[str, str] = {}
    for path in ALL:
        for cell in jupytext.read(path).cells:
            if cell.cell_type != "markdown":
                continue
            for paragraph in cell.source.split("\n\n"):
                words = " ".join(paragraph.split())
                if words.startswith("#"):
                    continue
                assert words not in seen, f"{path.stem} and {seen[words]}: {words}"
                seen[words] = path.stem
    assert len(seen) > 10 * len(ALL)


def test_a_parameter_says_the_same_on_every_page() -> None:
    found: dict[str, set[Parameter]] = {}
    for path in ALL:
        for parameter in notebook.parameters(path):
            found.setdefault(parameter.name, set()).add(parameter)
    assert {name for name, kinds in found.items() if len(kinds) > 1} == set()


def test_no_page_carries_outputs(recipe: Path) -> None:
    assert not any(cell.get("outputs") for cell in jupytext.read(recipe).cells)


def test_values_get_the_types_of_the_cell(tmp_path: Path) -> None:
    path = tmp_path / "n.py"
    path.write_text(
        f"# %% [markdown]\n# Text\n{HEAD}name: str = 'a'  # a name\ncount: int = 1\nratio: float = 0.5\n"
        "on: bool = False\n# %%\nx = 1\n"
    )
    found = notebook.parameters(path)
    assert found[0] == Parameter("name", "str", "a", "a name")
    values = notebook.values("n", found, ["name=1e3", "count=7", "ratio=2", "on=true"])
    assert values == {"name": "1e3", "count": 7, "ratio": 2.0, "on": True}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("cuont=1", r'"cuont"\. Did you mean count'),
        ("count=many", 'count is "many". It has to be of type int'),
        ("count=1.5", "of type int"),
        ("on=maybe", "of type bool"),
        ("count", "Write name=value"),
    ],
)
def test_an_unknown_or_mistyped_parameter_is_an_error(tmp_path: Path, given: str, message: str) -> None:
    path = tmp_path / "n.py"
    path.write_text(f"{HEAD}count: int = 1\non: bool = False\n")
    with pytest.raises(InputError, match=message):
        notebook.values("n", notebook.parameters(path), [given])


def test_a_parameter_given_twice_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "n.py"
    path.write_text(f"{HEAD}count: int = 1\n")
    with pytest.raises(InputError, match='"count" is given twice'):
        notebook.values("n", notebook.parameters(path), ["count=1", "count=2"])


@pytest.mark.parametrize("line", ["x = 1", "x: list = []", "import os", "x: int"])
def test_a_line_that_is_no_parameter_is_an_error(tmp_path: Path, line: str) -> None:
    path = tmp_path / "n.py"
    path.write_text(f"{HEAD}{line}\n")
    with pytest.raises(InputError, match="is not a parameter"):
        notebook.parameters(path)


def test_a_notebook_without_parameters_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "n.py"
    path.write_text("# %%\nx = 1\n")
    with pytest.raises(InputError, match="no parameters cell"):
        notebook.parameters(path)


def test_a_recipe_without_a_notebook_is_an_error(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebook, "RECIPES", tmp_path)
    with pytest.raises(InputError, match="has no notebook yet"):
        notebook.source(catalog, "gb300_pd")
