"""Tables for the terminal."""

from __future__ import annotations

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
