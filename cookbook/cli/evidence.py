"""`cookbook evidence`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cookbook import evidence
from cookbook.cli import echo_json
from cookbook.cli.tables import checks_table
from cookbook.compare import Comparison, Row, compare, earlier, find
from cookbook.errors import ChecksFailed

RUNS = click.option(
    "--runs", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where runs lie."
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="For a program.")
STYLE = {"better": "green", "worse": "red", "same": "", "none": "yellow"}


@click.group("evidence")
def command() -> None:
    """What runs have recorded."""


@command.command("show")
@click.argument("what", metavar="RECIPE|FOLDER|FILE")
@RUNS
@AS_JSON
def show(what: str, runs: Path, *, as_json: bool) -> None:
    """The checks of the newest run of RECIPE, or of the run in FOLDER or FILE."""
    path = find(what, runs)
    found = evidence.read(path)
    if as_json:
        echo_json(found.model_dump(mode="json"))
        return
    console = Console(highlight=False)
    console.print(checks_table(found))
    if found.error:
        console.print(found.error, markup=False, soft_wrap=True)
    console.print(f"Evidence: {path}", markup=False, soft_wrap=True)


@command.command("compare")
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@RUNS
@AS_JSON
def compare_command(before: str, after: str, runs: Path, *, as_json: bool) -> None:
    """What differs between run A and run B, and what moved from A to B.

    A and B are each a recipe (its newest run), the folder of a run, or a file of evidence. Ends with 1 if something got
    worse by more than the noise that earlier runs of the same kind show.
    """
    one, other = (evidence.read(find(what, runs)) for what in (before, after))
    found = compare(earlier(runs, one), earlier(runs, other))
    if as_json:
        echo_json(found.model_dump(mode="json"))
    else:
        console = Console(highlight=False)
        console.print(differences_table(found) if found.differences else "What differs: nothing")
        console.print(rows_table(found))
        if one.mode == "rehearsal":
            console.print("Both were rehearsed on a CPU: no figure here is one of the hardware.")
    if found.worse:
        titles = ", ".join(row.title for row in found.worse)
        raise ChecksFailed(f"Worse by more than noise: {titles}.", "What differs between the runs stands first.")


def differences_table(found: Comparison) -> Table:
    """What was not the same in the two runs."""
    table = Table(title="What differs", title_justify="left")
    for head in ("What", f"A: {found.before}", f"B: {found.after}"):
        table.add_column(Text(head), overflow="fold")
    for difference in found.differences:
        table.add_row(*map(Text, (difference.what, difference.before or "–", difference.after or "–")))
    return table


def rows_table(found: Comparison) -> Table:
    """What moved. Colour only repeats what the words say."""
    table = Table(title="What moved", title_justify="left")
    for head in ("Check", "A", "B", "Moved", "B is", "Runs like A"):
        table.add_column(head, overflow="fold")
    for row in found.rows:
        title = f"{row.title}, {row.unit}" if row.unit else row.title
        verdict = Text(_verdict(row), style=STYLE[row.change])
        table.add_row(Text(title), Text(row.before), Text(row.after), Text(_moved(row)), verdict, Text(_noise(row)))
    return table


def _moved(row: Row) -> str:
    return f"{row.difference:+,.6g}" if row.difference else ""


def _verdict(row: Row) -> str:
    if row.change in {"same", "none"}:
        return {"same": "same", "none": "not compared"}[row.change]
    noise = {True: "beyond the noise", False: "within the noise", None: "noise unknown"}[row.beyond_noise]
    return f"{row.change}, {noise}"


def _noise(row: Row) -> str:
    if row.noise is None:
        return ""
    runs = "1 run" if row.noise.runs == 1 else f"{row.noise.runs} runs"
    if row.noise.low == row.noise.high:
        return f"{row.noise.median:,.10g} ({runs})"
    return f"{row.noise.median:,.10g} ({row.noise.low:,.10g} to {row.noise.high:,.10g}, {runs})"
