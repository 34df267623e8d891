"""`cookbook run`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from cookbook import notebook
from cookbook.catalog import Catalog
from cookbook.cli import echo_json
from cookbook.cli.options import catalog_option
from cookbook.cli.tables import checks_table
from cookbook.errors import InputError
from cookbook.execute import execute


@click.command("run")
@click.argument("recipe")
@click.option("--on", "target", type=click.Choice(["local", "cpu"]), default="local", show_default=True,
              help="local: this machine is the recipe's hardware. cpu: rehearse with a small model.")  # fmt: skip
@click.option("--parameters", "given", multiple=True, metavar="K=V", help="A parameter of the notebook; may repeat.")
@click.option("--output", "runs", type=click.Path(path_type=Path), default=Path("runs"), show_default=True,
              help="Folder for evidence, executed notebook and logs.")  # fmt: skip
@click.option("--time-limit", type=click.FloatRange(min=1), default=14400, show_default=True, metavar="SECONDS",
              help="Bound on the whole run.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the evidence as JSON; progress goes to stderr.")
@catalog_option
@click.pass_context
def command(
    ctx: click.Context,
    catalog: Catalog,
    recipe: str,
    target: str,
    given: tuple[str, ...],
    runs: Path,
    time_limit: float,
    *,
    as_json: bool,
) -> None:
    """Run RECIPE's notebook under papermill: launch the server, run the examples and checks, leave evidence.

    \b
        cookbook run b300_tp8                    on a B300 node, with vLLM in this Python environment
        cookbook run b300_tp8 --on cpu           a rehearsal
        cookbook run b300_tp8 --parameters base_url=http://127.0.0.1:8000
    """
    path = notebook.source(catalog, recipe)
    known = notebook.parameters(path)
    parameters = notebook.values(recipe, known, given)
    if target == "cpu":
        if parameters.get("rehearse") is False:
            raise InputError("rehearse=false contradicts --on cpu.", "Leave one of them out.")
        parameters["rehearse"] = True
    console = Console(stderr=as_json, highlight=False)
    outcome = execute(
        catalog,
        recipe,
        parameters,
        {parameter.name: parameter.default for parameter in known},
        runs=runs,
        time_limit_s=time_limit,
        on_event=_Show(console),
    )
    found = outcome.evidence
    if as_json:
        echo_json(found.model_dump(mode="json"))
    else:
        console.print(checks_table(found))
    if found.error:
        click.echo(f"cookbook: {found.error}", err=True)
    console.print(f"Evidence: {outcome.folder / 'evidence.json'}", soft_wrap=True)
    ctx.exit(found.exit_code)


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
