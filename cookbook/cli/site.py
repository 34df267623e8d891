"""`cookbook site`."""

from __future__ import annotations

from pathlib import Path

import click

from cookbook import site


@click.group("site")
def command() -> None:
    """Build or serve the site."""


RUNS = click.option(
    "--runs", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where runs lie."
)


@command.command("build")
@RUNS
@click.option("--output", type=click.Path(path_type=Path), default=Path("site"), show_default=True, help="Where to.")
def build(runs: Path, output: Path) -> None:
    """Build the site out of docs/ and the newest run of each recipe. A broken link fails it."""
    click.echo(f"Site: {site.build(Path.cwd(), output, runs)}")


@command.command("serve")
@RUNS
def serve(runs: Path) -> None:
    """Serve the site on this machine, and build it again when a page changes."""
    site.serve(Path.cwd(), runs)
