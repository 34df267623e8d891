"""`cookbook check`."""

from __future__ import annotations

import click

from cookbook.catalog import load
from cookbook.cli import echo_json
from cookbook.errors import ChecksFailed, InputError
from cookbook.resolve import Selection, parse_override, resolve


@click.command("check")
@click.argument("recipes", nargs=-1, metavar="[RECIPE]...")
@click.option("--all", "every", is_flag=True, help="Every recipe of the catalog.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a flag or a VARIABLE; may repeat.")
@click.option("--json", "as_json", is_flag=True, help="For a program.")
def command(recipes: tuple[str, ...], overrides: tuple[str, ...], *, every: bool, as_json: bool) -> None:
    """Hold each command of RECIPE against the argument parser and the registries of the vLLM installed here."""
    catalog = load()
    names = tuple(catalog.recipes) if every else recipes
    if not names:
        raise InputError("No recipe is named.", "Name one, or take --all.")
    changes = tuple(map(parse_override, overrides))
    deployments = [resolve(catalog, Selection(recipe=name, overrides=changes)) for name in names]

    from cookbook.parser import check, load_engine  # noqa: PLC0415  # imports vLLM, about 8 s: only once all names are known

    engine = load_engine()
    found = [(deployment.recipe, problem) for deployment in deployments for problem in check(deployment, engine)]
    if as_json:
        echo_json(
            {
                "vllm": engine.version,
                "recipes": list(names),
                "problems": [
                    {
                        "recipe": recipe,
                        "process": problem.process,
                        "subject": problem.subject,
                        "what": problem.what,
                        "nearest": list(problem.nearest),
                    }
                    for recipe, problem in found
                ],
            }
        )
    else:
        for recipe, problem in found:
            nearest = f" Did you mean {' or '.join(problem.nearest)}?" if problem.nearest else ""
            click.echo(f"{recipe} {problem.process} {problem.subject}: {problem.what}{nearest}")
    if found:
        raise ChecksFailed(f"{len(found)} problems with vLLM {engine.version}.", "Mend the catalog or the override.")
    if not as_json:
        commands = sum(len(deployment.processes) for deployment in deployments)
        click.echo(f"{commands} command(s) of {len(names)} recipe(s) are accepted by vLLM {engine.version}.")
