"""`cookbook check`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cookbook.catalog import Catalog
from cookbook.cli import echo_json
from cookbook.cli.options import catalog_option
from cookbook.combinations import every
from cookbook.commands import commands
from cookbook.deployment import Process
from cookbook.errors import ChecksFailed, InputError
from cookbook.resolve import resolve
from cookbook.selection import Selection, named, parse_override

if TYPE_CHECKING:
    from cookbook.parser import Problem


@dataclass(frozen=True)
class Found:
    """A problem, and the selection whose command has it."""

    selection: str
    problem: Problem

    def as_json(self) -> dict[str, Any]:
        """For a program."""
        return {
            "selection": self.selection,
            "process": self.problem.process,
            "subject": self.problem.subject,
            "what": self.problem.what,
            "nearest": list(self.problem.nearest),
        }


@dataclass(frozen=True)
class Outcome:
    """What a check has found, and how many commands it held in how long."""

    found: list[Found]
    figures: dict[str, Any]


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
    if capture:
        _capture(capture, recipes, all_=all_)
        return
    # Names and rules first: vLLM's import takes about 8 s.
    selections = _selections(catalog, recipes, overrides, all_=all_)
    outcome = _check(catalog, selections, against)
    if as_json:
        echo_json(outcome.figures | {"problems": [one.as_json() for one in outcome.found]})
    else:
        _show(outcome.found)
    if outcome.found:
        raise ChecksFailed(
            f"{len(outcome.found)} problems with vLLM {outcome.figures['vllm']}.", "Mend the catalog or the override."
        )
    if not as_json:
        for line in _summary(catalog, outcome.figures, all_=all_):
            click.echo(line)


def _selections(
    catalog: Catalog, recipes: tuple[str, ...], overrides: tuple[str, ...], *, all_: bool
) -> list[tuple[str, Selection]]:
    if not recipes and not all_:
        raise InputError("No recipe is named.", "Name one, or take --all.")
    if all_ and (recipes or overrides):
        raise InputError("--all takes every combination as it is.", "Leave the recipes and --set out.")
    if all_:
        return [(selection.recipe or str(selection), selection) for selection in every(catalog)]
    changes = tuple(map(parse_override, overrides))
    given = [(name, named(catalog, name, overrides=changes)) for name in recipes]
    for _, selection in given:
        resolve(catalog, selection)
    return given


def _check(catalog: Catalog, selections: list[tuple[str, Selection]], against: Path | None) -> Outcome:
    began = time.perf_counter()
    from cookbook import parser  # noqa: PLC0415

    engine = parser.read(against) if against else parser.load_engine()
    router = parser.load_router()
    imported = time.perf_counter()
    tried = [(name, selection, commands(catalog, selection)) for name, selection in selections]
    allowed = [entry for entry in tried if entry[2]]
    resolved = time.perf_counter()
    found = [
        Found(name, problem)
        for name, selection, processes in allowed
        for problem in parser.check_processes(processes, engine, selection.hardware, catalog.names, router)
    ]
    checked = time.perf_counter()
    served = sum(_is_engine(process) for _, _, processes in allowed for process in processes)
    figures: dict[str, Any] = {
        "vllm": engine.version,
        "serves_the_model": catalog.model.engine.architecture in engine.architectures,
        "combinations": len(selections),
        "allowed": len(allowed),
        "commands": served,
        "router_commands": sum(len(processes) for _, _, processes in allowed) - served,
        "router_checked": router is not None,
        "import_s": round(imported - began, 2),
        "resolve_s": round(resolved - imported, 2),
        "check_s": round(checked - resolved, 2),
        "commands_per_s": round(served / max(checked - resolved, 1e-9)),
    }
    return Outcome(found, figures)


def _summary(catalog: Catalog, figures: dict[str, Any], *, all_: bool) -> Iterator[str]:
    if all_:
        yield (
            f"{figures['combinations']} combinations, {figures['allowed']} of them allowed: {figures['commands']} "
            f"commands are accepted by vLLM {figures['vllm']}."
        )
        yield (
            f"Import {figures['import_s']} s, resolving {figures['resolve_s']} s, checking {figures['check_s']} s "
            f"({figures['commands_per_s']} commands a second)."
        )
    else:
        commands_of = f"{figures['commands']} command(s) of {figures['allowed']} recipe(s)"
        yield f"{commands_of} are accepted by vLLM {figures['vllm']}."
    if figures["router_commands"]:
        how = "accepted by vllm-router" if figures["router_checked"] else "not checked: there is no vllm-router here"
        yield f"{figures['router_commands']} router command(s): {how}."
    if not figures["serves_the_model"]:
        architecture = catalog.model.engine.architecture
        yield f"This vLLM knows the flags and not the model: {architecture} is not in its registry."


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
