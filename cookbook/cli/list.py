"""`cookbook list`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from cookbook import evidence
from cookbook.catalog import Catalog
from cookbook.cli import echo_json
from cookbook.cli.options import catalog_option
from cookbook.combinations import Cell, matrix
from cookbook.notebook import find
from cookbook.status import status

IMAGE = {"stated": "none published", "unknown": "not known", "chosen": "not needed"}
SHOWN = {"recipe": "recipe", "possible": "can", "refused": "-", "none": ""}


@click.command("list")
@click.option(
    "--runs", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where runs lie."
)
@click.option("--json", "as_json", is_flag=True, help="For a program, with the reason of each refusal.")
@catalog_option
def command(catalog: Catalog, runs: Path, *, as_json: bool) -> None:
    """The recipes with their status by the newest run of each, and what goes with which hardware."""
    rows = [_row(catalog, name, runs) for name in catalog.recipes]
    cells = matrix(catalog)
    facts = [_hardware(catalog, name) for name in catalog.hardware]
    if as_json:
        echo_json({"recipes": rows, "hardware": facts, "matrix": [cell.model_dump(mode="json") for cell in cells]})
        return
    shown = [(row["recipe"], row["hardware"], row["status"], ", ".join(row["marks"])) for row in rows]
    for line in _columns([("RECIPE", "HARDWARE", "STATUS", "BEWARE"), *shown]):
        click.echo(line)
    click.echo()
    for line in _columns([("HARDWARE", "A NODE", "A DEVICE", "IMAGE", "SEEN BY"), *map(_hardware_line, facts)]):
        click.echo(line)
    for title, names in (("STRATEGY", catalog.strategies), ("FEATURE", catalog.features)):
        click.echo()
        for line in _columns([(title, *catalog.hardware), *(_line(catalog, cells, name) for name in names)]):
            click.echo(line)
    click.echo("\nrecipe: a recipe has it. can: it resolves, no recipe has it. -: a rule forbids it. Empty: no source.")
    click.echo("`cookbook list --json` has the reasons; `cookbook show --hardware … --strategy …` the commands.")


def _row(catalog: Catalog, name: str, runs: Path) -> dict[str, Any]:
    recipe = catalog.recipes[name]
    notebook = find(catalog, name)
    folder = evidence.latest(runs, name)
    found = evidence.read(folder / "evidence.json") if folder else None
    state = status(found, notebook, datetime.now(UTC))
    kinds = {notice.kind for notice in (*catalog.hardware[recipe.hardware].notices, *recipe.notices)}
    return {
        "recipe": name,
        "hardware": recipe.hardware,
        "strategy": recipe.strategy,
        "features": list(recipe.features),
        "title": recipe.title,
        "state": state.state,
        "status": state.text,
        "marks": sorted(kinds & {"preview", "unverified"}),
    }


def _hardware(catalog: Catalog, name: str) -> dict[str, Any]:
    entry = catalog.hardware[name]
    seen = catalog.vendors[entry.vendor].seen
    return {
        "hardware": name,
        "title": entry.title,
        "devices_per_node": entry.devices_per_node,
        "memory": entry.memory.model_dump(mode="json") if entry.memory else None,
        "nodes": {
            strategy: {**placement.nodes, "basis": placement.basis} for strategy, placement in entry.strategies.items()
        },
        "image": entry.image.model_dump(mode="json"),
        "install": [step.model_dump(mode="json") for step in entry.install],
        "seen_by": [name for way in seen for name in (*way.command[:1], *way.paths)],
        "requirements": [fact.model_dump(mode="json") for fact in entry.requirements],
        "notices": [notice.text for notice in entry.notices],
    }


def _hardware_line(facts: dict[str, Any]) -> tuple[str, ...]:
    memory, image = facts["memory"], facts["image"]
    return (
        facts["hardware"],
        f"{facts['devices_per_node']} devices",
        f"{memory['gib']:g} GiB ({memory['basis']})" if memory else "not known",
        f"{image['tag']} ({image['basis']})" if image["tag"] else IMAGE[image["basis"]],
        ", ".join(facts["seen_by"]),
    )


def _line(catalog: Catalog, cells: tuple[Cell, ...], name: str) -> tuple[str, ...]:
    found = {cell.hardware: SHOWN[cell.state] for cell in cells if cell.name == name}
    return (name, *(found[hardware] for hardware in catalog.hardware))


def _columns(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows)
    return [line.rstrip() for line in lines]
