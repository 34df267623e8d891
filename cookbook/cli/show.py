"""`cookbook show`."""

from __future__ import annotations

import click

from cookbook.catalog import load
from cookbook.cli import echo_json
from cookbook.formats import bash
from cookbook.resolve import Selection, parse_override, resolve


@click.command("show")
@click.argument("recipe")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a flag or a VARIABLE; may repeat.")
@click.option("--explain", is_flag=True, help="Why each flag is there, how sure that is, and its source.")
@click.option("--json", "as_json", is_flag=True, help="The whole deployment, for a program.")
def command(recipe: str, overrides: tuple[str, ...], *, explain: bool, as_json: bool) -> None:
    """The exact commands of RECIPE, for bash, one flag a line.

    \b
        cookbook show b300_tp8
        cookbook show b300_tp8 --set max-model-len=262144 --set no-enable-prefix-caching --set VLLM_LOGGING_LEVEL=DEBUG
    """
    deployment = resolve(load(), Selection(recipe=recipe, overrides=tuple(map(parse_override, overrides))))
    if as_json:
        echo_json(deployment.model_dump(mode="json"))
        return
    click.echo(bash.render(deployment), nl=False)
    if explain:
        for row in bash.explain(deployment):
            source = f" {row.source.title} {row.source.url or ''}".rstrip() if row.source else ""
            click.echo(f"\n{f'{row.name} {row.value}'.strip()}")
            click.echo(f"    {row.why}")
            click.echo(f"    [{row.basis}, {row.layer}]{source}")
