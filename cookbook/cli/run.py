"""`cookbook run`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import click
from pydantic import JsonValue
from rich.console import Console

from cookbook import begin, notebook
from cookbook.catalog import Catalog
from cookbook.cli import echo_json
from cookbook.cli.options import catalog_option
from cookbook.cli.tables import checks_table, runs_table
from cookbook.errors import InputError
from cookbook.evidence import Evidence
from cookbook.execute import execute, settings
from cookbook.onslurm import Order
from cookbook.pool import Pool, side_by_side

Planned: TypeAlias = tuple[dict[str, JsonValue], dict[str, JsonValue]]
INTERRUPTED = 128
"""Above it are the exit codes of a signal: what ended one run ends them all."""


@click.command("run")
@click.argument("recipes", nargs=-1, metavar="[RECIPE]...")
@click.option("--all", "every", is_flag=True, help="Every recipe of the catalog.")
@click.option("--on", "target", type=click.Choice(["local", "cpu", "slurm"]), default="local", show_default=True,
              help="local: this machine is the recipe's hardware. cpu: rehearse with a small model. slurm: submit a "
              "job, follow it, and cancel it at the end.")  # fmt: skip
@click.option("--partition", metavar="NAME", help="Of Slurm.")
@click.option("--sbatch", "options", multiple=True, metavar="K=V",
              help="An option of sbatch, for example time=04:00:00; may repeat.")  # fmt: skip
@click.option("--queue-limit", type=click.FloatRange(min=1), metavar="SECONDS",
              help="How long a Slurm job may wait for its nodes; a day unless you say so.")  # fmt: skip
@click.option("--parameters", "given", multiple=True, metavar="K=V", help="A parameter of the notebook; may repeat.")
@click.option("--output", "runs", type=click.Path(path_type=Path), default=Path("runs"), show_default=True,
              help="Folder for evidence, executed notebook and logs.")  # fmt: skip
@click.option("--time-limit", type=click.FloatRange(min=1), default=14400, show_default=True, metavar="SECONDS",
              help="Bound on the run of one recipe.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the evidence as JSON; progress goes to stderr.")
@catalog_option
@click.pass_context
def command(
    ctx: click.Context,
    catalog: Catalog,
    recipes: tuple[str, ...],
    target: str,
    partition: str | None,
    options: tuple[str, ...],
    queue_limit: float | None,
    given: tuple[str, ...],
    runs: Path,
    time_limit: float,
    *,
    every: bool,
    as_json: bool,
) -> None:
    """Run the notebook of each RECIPE under papermill: launch the server, run examples and checks, leave evidence.

    \b
        cookbook run b300_tp8                    on a B300 node, with vLLM in this Python environment
        cookbook run b300_tp8 --on cpu           a rehearsal
        cookbook run --all --on cpu              every recipe rehearsed
        cookbook run b300_tp8 --parameters base_url=http://127.0.0.1:8000
        cookbook run gb300_pd --on slurm --partition gb300 --sbatch time=04:00:00

    Of several recipes one that fails does not keep the others from being run, and the exit code is the largest of them.
    Rehearsals whose commands are the same on a CPU use one server, one after the other; their pages say so.
    """
    if every and recipes:
        raise InputError("--all and a recipe exclude each other.", "Leave one of them out.")
    if not every and not recipes:
        raise InputError("Name a recipe, or all of them with --all.", "`cookbook list` shows them.")
    names = list(catalog.recipes) if every else list(dict.fromkeys(recipes))
    order = _order(target, partition, options, queue_limit)
    several = len(names) > 1
    planned = {name: _parameters(catalog, name, given, target, several=several) for name in names}
    if unknown := _unknown(catalog, names, given) if several else "":
        raise InputError(f'No recipe has a parameter "{unknown}".', "The first code cell of a notebook has them.")
    console = Console(stderr=as_json, highlight=False)
    groups = _groups(catalog, planned) if several and not order else [(name,) for name in names]
    found: dict[str, Evidence] = {}
    with Pool(groups) as pool:
        for name in (name for group in groups for name in group):
            if several:
                console.print(f"\n[bold]{name}[/bold] ({len(found) + 1} of {len(names)})")
            outcome = execute(
                catalog,
                name,
                *planned[name],
                runs=runs,
                time_limit_s=time_limit,
                on_event=_Show(console),
                pool=pool,
                order=order,
            )
            found[name] = outcome.evidence
            if not as_json:
                console.print(checks_table(outcome.evidence))
            if outcome.evidence.error:
                click.echo(f"cookbook: {outcome.evidence.error}", err=True)
            console.print(f"Evidence: {outcome.folder / 'evidence.json'}", soft_wrap=True)
            if outcome.evidence.exit_code > INTERRUPTED:
                break
    if as_json:
        records = [one.model_dump(mode="json") for one in found.values()]
        echo_json(records if every or several else records[0])
    elif several:
        console.print(runs_table(found, names))
    ctx.exit(max(one.exit_code for one in found.values()))


def _order(target: str, partition: str | None, options: tuple[str, ...], queue_limit: float | None) -> Order | None:
    """How a Slurm job is submitted; None where there is none."""
    if target != "slurm":
        for name, value in (("--partition", partition), ("--sbatch", options), ("--queue-limit", queue_limit)):
            if value:
                raise InputError(f"{name} is for a Slurm job.", "Add --on slurm, or leave it out.")
        return None
    for option in options:
        if not option.partition("=")[0].strip("-"):
            raise InputError(f'--sbatch "{option}" names no option.', "Write it as time=04:00:00, or exclusive.")
    words = [f"--partition={partition}"] if partition else []
    words += [f"--{option.lstrip('-')}" for option in options]
    return Order(tuple(words)) if queue_limit is None else Order(tuple(words), queue_limit)


def _groups(catalog: Catalog, planned: Mapping[str, Planned]) -> list[tuple[str, ...]]:
    """The recipes in the order in which they run, with those together that can share servers."""
    plans = {
        name: begin.plan(catalog, name, settings(*values), on_step=lambda _: None)
        for name, values in planned.items()
        if values[0].get("rehearse")
    }
    return [*side_by_side(plans), *((name,) for name in planned if name not in plans)]


def _parameters(catalog: Catalog, recipe: str, given: tuple[str, ...], target: str, *, several: bool) -> Planned:
    """The parameters that are set, and the defaults of all; of several recipes each takes those that it has."""
    known = notebook.parameters(notebook.source(catalog, recipe))
    names = {parameter.name for parameter in known}
    own = [one for one in given if not several or "=" not in one or one.partition("=")[0] in names]
    parameters = notebook.values(recipe, known, own)
    if target == "cpu":
        if parameters.get("rehearse") is False:
            raise InputError("rehearse=false contradicts --on cpu.", "Leave one of them out.")
        parameters["rehearse"] = True
    return parameters, {parameter.name: parameter.default for parameter in known}


def _unknown(catalog: Catalog, recipes: Iterable[str], given: Iterable[str]) -> str:
    """The first of these parameters that no recipe has, or nothing."""
    known = {one.name for recipe in recipes for one in notebook.parameters(notebook.source(catalog, recipe))}
    return next((name for name in (one.partition("=")[0] for one in given) if name not in known), "")


class _Show:
    """Shows what happens while a run goes on, a line an event."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()

    def __call__(self, event: Mapping[str, Any]) -> None:
        match event["kind"]:
            case "cell":
                text = f"cell {event['index']:>2} of {event['of']}  {event['title']}"
            case "phase":
                text = f"    server: {', '.join(filter(None, (event['title'], event['detail'])))}"
            case "check":
                text = f"    check: {event['verdict'].replace('_', ' ')}: {event['title']}"
            case _:
                text = event["title"]
        self._console.print(f"[dim]{time.monotonic() - self._began:6.1f} s[/dim]  ", end="")
        self._console.print(text, markup=False, soft_wrap=True)
