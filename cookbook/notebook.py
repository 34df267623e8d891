"""The recipes' notebooks: where they lie, and their parameters, read as text without running or importing anything.

papermill only warns of an unknown parameter and takes any type, and a run of an hour would end with the wrong server.
So both are errors here, before anything starts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue, TypeAdapter, ValidationError

from cookbook.catalog import Catalog
from cookbook.errors import InputError
from cookbook.selection import nearest, select

__all__ = ["RECIPES", "Parameter", "find", "parameters", "source", "values"]

RECIPES = Path(__file__).parent / "recipes"

CELL = re.compile(r"^# %%(?P<head>.*)$", re.MULTILINE)
TYPES: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool}


@dataclass(frozen=True)
class Parameter:
    """One parameter.

    Attributes:
        name: As it stands in the cell.
        kind: "str", "int", "float" or "bool".
        default: What the cell sets.
        comment: The comment on its line, for help.
    """

    name: str
    kind: str
    default: JsonValue
    comment: str


def find(catalog: Catalog, recipe: str) -> Path | None:
    """The notebook of a recipe, in the folder laid over the catalog or in the package; None where it has none."""
    folders = ([catalog.overlay / "recipes"] if catalog.overlay else []) + [RECIPES]
    return next((path for path in (folder / f"{recipe}.py" for folder in folders) if path.exists()), None)


def source(catalog: Catalog, recipe: str) -> Path:
    """The notebook of a recipe.

    Raises:
        InputError: There is no such recipe, or it has no notebook yet.
    """
    path = find(catalog, select(catalog, recipe))
    if path is None:
        raise InputError(f"The recipe {recipe} has no notebook yet.", f"`cookbook show {recipe}` has its commands.")
    return path


def parameters(notebook: Path) -> tuple[Parameter, ...]:
    """The parameters of a notebook in jupytext's percent format.

    Raises:
        InputError: The file has no parameters cell, or a line in it is not `name: type = value`.
    """
    text = notebook.read_text()
    heads = list(CELL.finditer(text))
    for index, head in enumerate(heads):
        if '"parameters"' in head["head"]:
            end = heads[index + 1].start() if index + 1 < len(heads) else len(text)
            return tuple(_parse(notebook, text[head.end() : end]))
    raise InputError(f"{notebook} has no parameters cell.", 'Tag one: # %% tags=["parameters"].')


def _parse(notebook: Path, cell: str) -> Iterable[Parameter]:
    lines = cell.splitlines()
    for statement in ast.parse(cell).body:
        if not (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(statement.annotation, ast.Name)
            and statement.annotation.id in TYPES
            and statement.value is not None
        ):
            raise InputError(
                f'{notebook}: "{ast.unparse(statement)}" is not a parameter.', "Write name: str|int|float|bool = value."
            )
        comment = lines[(statement.end_lineno or 1) - 1].partition("#")[2].strip()
        yield Parameter(statement.target.id, statement.annotation.id, ast.literal_eval(statement.value), comment)


def values(recipe: str, known_parameters: Iterable[Parameter], given: Iterable[str]) -> dict[str, JsonValue]:
    """The values to inject, from "name=value" as the command line gives them.

    Raises:
        InputError: A name is not a parameter of the notebook, stands twice, or its value is of another type.
    """
    known = {parameter.name: parameter for parameter in known_parameters}
    result: dict[str, JsonValue] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f'"{text}" is not a parameter.', "Write name=value.")
        if name not in known:
            raise InputError(f'{recipe} has no parameter "{name}".', nearest(name, known))
        if name in result:
            raise InputError(f'The parameter "{name}" is given twice.', "Leave one of them out.")
        try:
            result[name] = TypeAdapter(TYPES[known[name].kind]).validate_python(value)
        except ValidationError as error:
            raise InputError(
                f'The parameter {name} is "{value}".', f"It has to be of type {known[name].kind}."
            ) from error
    return result
