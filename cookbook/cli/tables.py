"""Tables for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from rich.table import Table
from rich.text import Text

from cookbook.evidence import Evidence
from cookbook.report import VERDICT

STYLE = {"pass": "green", "fail": "red", "left_out": "yellow"}


def checks_table(found: Evidence) -> Table:
    """The checks of a run. Colour only repeats what the words say."""
    rehearsal = " (rehearsed on a CPU: no number of the hardware)" if found.mode == "rehearsal" else ""
    table = Table(title=f"{found.title}{rehearsal}: {found.status.replace('_', ' ')}", title_justify="left")
    for head in ("Verdict", "Check", "Expected", "Measured"):
        table.add_column(head, overflow="fold")
    for check in found.checks:
        left_out = check.verdict == "left_out"
        table.add_row(
            Text(VERDICT[check.verdict], style=STYLE[check.verdict]),
            Text(check.title),
            Text(f"{check.expected} {check.unit}".strip()),
            Text(check.detail if left_out else f"{check.measured} {check.unit}".strip()),
        )
    return table


def runs_table(found: Mapping[str, Evidence], asked: Iterable[str]) -> Table:
    """A line a recipe: what became of it, and how many of its checks hold."""
    table = Table(title="All recipes", title_justify="left")
    for head in ("Recipe", "Status", "Hold", "Fell short", "Left out", "Seconds"):
        table.add_column(head, justify="left" if head in {"Recipe", "Status"} else "right")
    for recipe in asked:
        run = found.get(recipe)
        if run is None:
            table.add_row(recipe, Text("not run", style="yellow"), "", "", "", "")
            continue
        verdicts = Counter(check.verdict for check in run.checks)
        seconds = (run.ended_at - run.started_at).total_seconds()
        status = Text(run.status.replace("_", " "), style="green" if run.status == "passed" else "red")
        counts = (str(verdicts[verdict]) for verdict in ("pass", "fail", "left_out"))
        table.add_row(recipe, status, *counts, f"{seconds:.0f}")
    return table
