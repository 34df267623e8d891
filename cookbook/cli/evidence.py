"""`cookbook evidence`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from cookbook import evidence
from cookbook.cli import echo_json
from cookbook.cli.tables import checks_table
from cookbook.errors import InputError


@click.group("evidence")
def command() -> None:
    """What runs have recorded."""


@command.command("show")
@click.argument("what", metavar="RECIPE|FOLDER|FILE")
@click.option(
    "--runs", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where runs lie."
)
@click.option("--json", "as_json", is_flag=True, help="For a program.")
def show(what: str, runs: Path, *, as_json: bool) -> None:
    """The checks of the newest run of RECIPE, or of the run in FOLDER or FILE."""
    path = Path(what)
    if path.is_dir():
        path = path / "evidence.json"
    elif not path.is_file():
        folder = evidence.latest(runs, what)
        if folder is None:
            raise InputError(f'No run of "{what}" lies in {runs}.', f"Make one: cookbook run {what} --on cpu.")
        path = folder / "evidence.json"
    found = evidence.read(path)
    if as_json:
        echo_json(found.model_dump(mode="json"))
        return
    console = Console(highlight=False)
    console.print(checks_table(found))
    if found.error:
        console.print(found.error, markup=False, soft_wrap=True)
    console.print(f"Evidence: {path}", markup=False, soft_wrap=True)
