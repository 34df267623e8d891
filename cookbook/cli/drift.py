"""`cookbook drift`."""

from __future__ import annotations

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cookbook.catalog import BUILTIN, Catalog
from cookbook.cli import echo_json
from cookbook.cli.options import catalog_option
from cookbook.drift import UPSTREAM, Difference, apply, compare, fetch, parse
from cookbook.errors import ChecksFailed, InputError

TITLES = {
    "differs": "Upstream says otherwise",
    "missing_here": "Only upstream has it",
    "only_here": "Only the catalog has it",
    "confirmed": "The same: the catalog was not sure",
    "remark": "Hardware, strategies and bounds",
}


@click.command("drift")
@click.option("--from", "source", metavar="FILE|URL", default=UPSTREAM, show_default=True, help="The model's recipe.")
@click.option("--apply", "write", is_flag=True, help="Write it into the catalog's YAML, as stated, with its source.")
@click.option("--json", "as_json", is_flag=True, help="For a program.")
@catalog_option
def command(catalog: Catalog, source: str, *, write: bool, as_json: bool) -> None:
    """What vLLM's own recipe for the model says otherwise than the catalog, and which side states its source.

    \b
        cookbook drift --from Kimi-K3.1-Pro.yaml
        cookbook drift --apply
    """
    if write and catalog.overlay:
        raise InputError("--apply changes the built-in catalog.", "Leave --catalog out.")
    upstream = parse(fetch(source), source)
    found = compare(catalog, upstream)
    changed = sum(one.state in {"differs", "missing_here"} for one in found)
    confirmed = sum(one.state == "confirmed" for one in found)
    done = apply(BUILTIN, found, upstream) if write else ()
    if as_json:
        echo_json(
            {
                "upstream": {"where": source, "title": upstream.title, "updated": upstream.updated},
                "differences": [one.model_dump(mode="json") for one in found],
                "not_understood": list(upstream.not_understood),
                "applied": list(done),
            }
        )
    else:
        _show(found, upstream.not_understood)
        for line in done:
            click.echo(line)
        click.echo(f"{changed} to change, {confirmed} confirmed: {upstream.title} {upstream.updated}, {source}")
    if changed and not write:
        raise ChecksFailed(f"{changed} things differ from {source}.", "With --apply they go into the catalog.")


def _show(found: tuple[Difference, ...], not_understood: tuple[str, ...]) -> None:
    console = Console(width=100, highlight=False)
    for state, title in TITLES.items():
        rows = [one for one in found if one.state == state]
        if not rows:
            continue
        table = Table(title=title, title_justify="left")
        table.add_column("What", overflow="fold", min_width=28)
        for head in ("Here", "From", "Upstream", "Recipes"):
            table.add_column(head, overflow="fold")
        for one in rows:
            recipes = ", ".join(one.recipes[:2]) + (f" and {len(one.recipes) - 2} more" if len(one.recipes) > 2 else "")
            theirs = f"{one.theirs} ({one.their_layer})" if one.their_layer else one.theirs or "–"
            cells = (one.subject, one.ours or "–", one.ours_from or "–", theirs, recipes or "all")
            table.add_row(*map(Text, cells))
        console.print(table)
    if not_understood:
        console.print(f"Not understood: {', '.join(not_understood)}", markup=False, soft_wrap=True)
