"""`cookbook list`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from cookbook import evidence
from cookbook.catalog import load
from cookbook.cli import echo_json
from cookbook.notebook import RECIPES
from cookbook.status import status


@click.command("list")
@click.option(
    "--runs", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where runs lie."
)
@click.option("--json", "as_json", is_flag=True, help="For a program.")
def command(runs: Path, *, as_json: bool) -> None:
    """The recipes, their hardware and their status, by the newest run of each."""
    rows = []
    for name, recipe in load().recipes.items():
        folder = evidence.latest(runs, name)
        found = evidence.read(folder / "evidence.json") if folder else None
        state = status(found, RECIPES / f"{name}.py", datetime.now(UTC))
        rows.append(
            {
                "recipe": name,
                "hardware": recipe.hardware,
                "title": recipe.title,
                "state": state.state,
                "status": state.text,
            }
        )
    if as_json:
        echo_json(rows)
        return
    shown = [(row["recipe"], row["hardware"], row["title"], row["status"]) for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for line in shown:
        click.echo("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
