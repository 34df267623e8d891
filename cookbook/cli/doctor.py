"""`cookbook doctor`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from cookbook.catalog import Catalog
from cookbook.cli import echo_json
from cookbook.cli.options import catalog_option, selected, selection_options
from cookbook.doctor import examine
from cookbook.errors import ChecksFailed, InputError
from cookbook.resolve import resolve

MARK = {"ok": "ok", "missing": "MISSING", "unknown": "?"}


@click.command("doctor")
@selection_options
@click.option("--node", type=click.IntRange(min=0), default=0, show_default=True, metavar="N",
              help="As which of its nodes this machine would serve.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="For a program.")
@catalog_option
def command(catalog: Catalog, node: int, *, as_json: bool, **choice: Any) -> None:
    """Look at this machine for what RECIPE needs, and say what is missing. Nothing is changed.

    \b
        cookbook doctor b300_tp8
        cookbook doctor gb300_pd --node 2
    """
    deployment = resolve(catalog, selected(catalog, **choice))
    if node >= deployment.nodes:
        raise InputError(f"There is no node {node}.", f"The nodes are 0 to {deployment.nodes - 1}.")
    cache = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    findings = examine(catalog, deployment, node, cache)
    missing = [finding.what for finding in findings if finding.state == "missing"]
    if as_json:
        echo_json([finding.model_dump(mode="json") for finding in findings])
    else:
        click.echo(f"{deployment.title} ({deployment.recipe}), node {node} of {deployment.nodes}")
        for notice in deployment.notices:
            if notice.kind in {"preview", "unverified"}:
                click.echo(f"{notice.kind}: {notice.text}")
        click.echo()
        width = max(len(finding.what) for finding in findings)
        for finding in findings:
            click.echo(f"{MARK[finding.state]:<8} {finding.what:<{width}}  {finding.found}")
            if finding.todo:
                click.echo(f"{'':<8} {'':<{width}}  {finding.todo}")
    if missing:
        raise ChecksFailed(f"This machine lacks: {', '.join(missing)}.", "See above." if not as_json else "")
