"""The source of an example as a page shows it: the function, and whatever of its module it needs to run."""

from __future__ import annotations

import ast
import inspect
from types import FunctionType

from cookbook.examples import calls

__all__ = ["prose", "source"]

COMPANIONS = {"reasoning": ("unsupported_effort",), "long_input": ("over_limit",)}


def prose(name: str) -> str:
    """The first paragraph of the example's docstring, in one line.

    Raises:
        KeyError: There is no such example.
    """
    return " ".join((inspect.getdoc(_function(name)) or "").split("\n\n")[0].split())


def source(name: str) -> str:
    """The code of an example, complete: imports, constants and helpers too. What `prose` says is not repeated in it.

    Raises:
        KeyError: There is no such example.
    """
    main = _function(name).__name__
    text = inspect.getsource(calls)
    module = ast.parse(text)
    statements = {defined: node for node in module.body for defined in _defines(node)}
    needed: set[str] = set()
    waiting = [main, *COMPANIONS.get(name, ())]
    while waiting:
        current = waiting.pop()
        if current in needed or current not in statements:
            continue
        needed.add(current)
        if not isinstance(statements[current], ast.Import | ast.ImportFrom):
            waiting += [node.id for node in ast.walk(statements[current]) if isinstance(node, ast.Name)]
    return _written(module, text.splitlines(), needed, main)


def _written(module: ast.Module, lines: list[str], needed: set[str], main: str) -> str:
    imports: list[str] = []
    constants: list[str] = []
    functions: list[str] = []
    group = 0
    for node in module.body:
        names = [defined for defined in _defines(node) if defined in needed]
        if isinstance(node, ast.Import | ast.ImportFrom):
            if names and imports and "" in lines[group : node.lineno]:
                imports.append("")
            if names:
                clause = ", ".join(alias.name for alias in node.names if alias.name in names)
                from_ = f"from {node.module} " if isinstance(node, ast.ImportFrom) else ""
                imports.append(f"{from_}import {clause}")
                group = node.lineno
        elif names and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append("\n".join(_without_docstring(node, lines) if node.name == main else _lines(node, lines)))
        elif names:
            constants += _lines(node, lines)
    head = "\n\n".join("\n".join(block) for block in (imports, constants) if block)
    return "\n\n\n".join([head, *functions])


def _function(name: str) -> FunctionType:
    function: FunctionType = vars(calls)[name]
    return function


def _defines(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _lines(node: ast.stmt, lines: list[str]) -> list[str]:
    return lines[node.lineno - 1 : node.end_lineno]


def _without_docstring(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> list[str]:
    docstring = node.body[0]
    body = lines[docstring.end_lineno or 0 : node.end_lineno]
    return [*lines[node.lineno - 1 : docstring.lineno - 1], *(body if body[0] else body[1:])]
