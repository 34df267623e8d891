"""`cookbook check`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cookbook.catalog import Catalog
from cookbook.cli import echo_json
from cookbook.cli.options import catalog_option
from cookbook.combinations import every
from cookbook.commands import commands
from cookbook.deployment import Process
from cookbook.errors import ChecksFailed, InputError
from cookbook.resolve import resolve
from cookbook.selection import named, parse_override

if TYPE_CHECKING:
    from cookbook.parser import Problem


@dataclass(frozen=True)
class Found:
    """A problem, and the selection whose command has it."""

    selection: str
    problem: Problem


@click.command("check")
@click.argument("recipes", nargs=-1, metavar="[RECIPE]...")
@click.option("--all", "all_", is_flag=True, help="Every allowed combination of hardware, strategy and features.")
@click.option(
    "--set", "overrides", multiple=True, metavar="[ROLE:]KEY=VALUE", help="Change a flag or a VARIABLE; may repeat."
)
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The vLLM that was captured in FILE, in place of the one installed here.",
)
@click.option(
    "--capture",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the options of the vLLM installed here to FILE, for --against elsewhere.",
)
@click.option("--json", "as_json", is_flag=True, help="For a program.")
@catalog_option
def command(
    catalog: Catalog,
    recipes: tuple[str, ...],
    overrides: tuple[str, ...],
    against: Path | None,
    capture: Path | None,
    *,
    all_: bool,
    as_json: bool,
) -> None:
    """Hold each command of RECIPE against the argument parser and the registries of the vLLM installed here.

    \b
        cookbook check b300_tp8 gb300_pd
        cookbook check --all
        cookbook check --capture kimi-k31.json             in an image made for the model
        cookbook check --all --against kimi-k31.json       here
    """
    began = time.perf_counter()
    if capture:
        _capture(capture, recipes, all_=all_)
        return
    if not recipes and not all_:
        raise InputError("No recipe is named.", "Name one, or take --all.")
    if all_ and (recipes or overrides):
        raise InputError("--all takes every combination as it is.", "Leave the recipes and --set out.")
    changes = tuple(map(parse_override, overrides))
    # Names and rules first: vLLM's import takes about 8 s.
    given = [(name, named(catalog, name, overrides=changes)) for name in recipes]
    for _, selection in given:
        resolve(catalog, selection)
    if all_:
        given = [
            (str(selection) if not selection.recipe else selection.recipe, selection) for selection in every(catalog)
        ]

    from cookbook import parser  # noqa: PLC0415

    engine = parser.read(against) if against else parser.load_engine()
    imported = time.perf_counter()
    plan = [(name, selection, commands(catalog, selection)) for name, selection in given]
    plan = [entry for entry in plan if entry[2]]
    resolved = time.perf_counter()
    found = [
        Found(name, problem)
        for name, selection, processes in plan
        for problem in parser.check_processes(processes, engine, selection.hardware, catalog.names)
    ]
    checked = time.perf_counter()
    count = sum(_is_engine(process) for _, _, processes in plan for process in processes)
    figures = {
        "combinations": len(given),
        "allowed": len(plan),
        "commands": count,
        "import_s": round(imported - began, 2),
        "resolve_s": round(resolved - imported, 2),
        "check_s": round(checked - resolved, 2),
        "commands_per_s": round(count / max(checked - resolved, 1e-9)),
    }
    serves = catalog.model.engine.architecture in engine.architectures
    if as_json:
        echo_json(
            {
                "vllm": engine.version,
                "serves_the_model": serves,
                "recipes": [name for name, _, _ in plan],
                **figures,
                "problems": [
                    {
                        "selection": one.selection,
                        "process": one.problem.process,
                        "subject": one.problem.subject,
                        "what": one.problem.what,
                        "nearest": list(one.problem.nearest),
                    }
                    for one in found
                ],
            }
        )
    else:
        _show(found)
    if found:
        raise ChecksFailed(f"{len(found)} problems with vLLM {engine.version}.", "Mend the catalog or the override.")
    if as_json:
        return
    if all_:
        click.echo(
            f"{len(given)} combinations, {len(plan)} of them allowed: {count} commands are accepted by vLLM "
            f"{engine.version}.\nImport {figures['import_s']} s, resolving {figures['resolve_s']} s, checking "
            f"{figures['check_s']} s ({figures['commands_per_s']} commands a second)."
        )
    else:
        click.echo(f"{count} command(s) of {len(plan)} recipe(s) are accepted by vLLM {engine.version}.")
    if not serves:
        click.echo(
            f"This vLLM knows the flags and not the model: {catalog.model.engine.architecture} is not in its registry."
        )


def _capture(path: Path, recipes: tuple[str, ...], *, all_: bool) -> None:
    if recipes or all_:
        raise InputError("--capture writes what vLLM knows and checks nothing.", "Leave recipes and --all out.")
    from cookbook import parser  # noqa: PLC0415

    engine = parser.load_engine()
    parser.write(path, parser.capture(engine))
    click.echo(f"vLLM {engine.version} is captured in {path}.")


def _is_engine(process: Process) -> bool:
    return process.program[:2] == ("vllm", "serve")


def _show(found: list[Found]) -> None:
    """One line a problem: the same one in many combinations is said once, with the first and how many more."""
    where: dict[tuple[str, str, str], list[str]] = {}
    for one in found:
        nearest = f" Did you mean {' or '.join(one.problem.nearest)}?" if one.problem.nearest else ""
        key = (one.problem.process.rstrip("0123456789-"), one.problem.subject, f"{one.problem.what}{nearest}")
        where.setdefault(key, []).append(one.selection)
    for (role, subject, text), selections in where.items():
        others = len(set(selections)) - 1
        more = f" (and {others} more)" if others else ""
        click.echo(f"{selections[0]}{more}, {role}: {subject}: {text}")
