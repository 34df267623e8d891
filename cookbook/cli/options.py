"""Options that several subcommands share: the catalog, and what is selected out of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from cookbook import machine
from cookbook.catalog import OVERLAY, Catalog, load
from cookbook.errors import InputError
from cookbook.selection import Selection, named, parse_override

__all__ = ["catalog_option", "selected", "selection_options"]

Command = TypeVar("Command", bound=Callable[..., Any])


def _load(_ctx: click.Context, _parameter: click.Parameter, folder: Path | None) -> Catalog:
    return load(overlay=folder)


catalog_option = click.option(
    "--catalog",
    type=click.Path(path_type=Path),
    envvar=OVERLAY,
    show_envvar=True,
    callback=_load,
    metavar="DIR",
    help="Folder whose YAML files are laid over the built-in catalog: your own hardware, images, recipes.",
)


def selection_options(function: Command) -> Command:
    """A recipe, or hardware, strategy and features by hand; then nodes, overrides, image and host memory."""
    for option in reversed(
        (
            click.argument("recipe", required=False),
            click.option("--hardware", metavar="NAME", help="In place of a recipe: hardware, see `cookbook list`."),
            click.option("--strategy", metavar="NAME", help="In place of a recipe: how the model is spread."),
            click.option("--feature", "features", multiple=True, metavar="NAME", help="With --hardware; may repeat."),
            click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="Spread over N nodes."),
            click.option(
                "--set",
                "overrides",
                multiple=True,
                metavar="[ROLE:]KEY=VALUE",
                help="Change a flag or a VARIABLE, of one role or of all; may repeat.",
            ),
            click.option("--model", metavar="NAME|DIR", help="Load this in place of the catalog's model."),
            click.option("--revision", metavar="COMMIT", help="Pin the model repository to a commit."),
            click.option("--image", metavar="TAG", help="Container image in place of the catalog's."),
            click.option(
                "--host-memory",
                metavar="GIB|here",
                help="Memory of a node that is free for KV offload, in GiB; `here` reads this machine's.",
            ),
            click.option(
                "--offload", type=click.FloatRange(min=0, min_open=True), metavar="GIB", help="KV offload a device."
            ),
        )
    ):
        function = option(function)
    return function


def selected(
    catalog: Catalog,
    *,
    recipe: str | None,
    hardware: str | None,
    strategy: str | None,
    features: tuple[str, ...],
    overrides: tuple[str, ...],
    host_memory: str | None,
    offload: float | None,
    **others: Any,
) -> Selection:
    """The selection that the options of `selection_options` make.

    Raises:
        InputError: Neither a recipe nor hardware and strategy are named, or both are, or a value is wrong.
    """
    common = {
        **others,
        "overrides": tuple(map(parse_override, overrides)),
        "host_memory_gib": _host_memory(host_memory),
        "offload_gib": offload,
    }
    by_hand = hardware or strategy or features
    if recipe and by_hand:
        raise InputError(
            "A recipe brings its own hardware, strategy and features.", "Name the recipe alone, or leave it out."
        )
    if recipe:
        return named(catalog, recipe, **common)
    if not hardware or not strategy:
        raise InputError(
            "No recipe is named." if not by_hand else "Without a recipe, both --hardware and --strategy are needed.",
            "`cookbook list` shows recipes, hardware, strategies and features.",
        )
    return Selection(hardware=hardware, strategy=strategy, features=features, **common)


def _host_memory(text: str | None) -> float | None:
    if text is None:
        return None
    if text == "here":
        return machine.free_memory_gib()
    try:
        return float(text)
    except ValueError:
        raise InputError(f'--host-memory is "{text}".', "Write a number of GiB, or `here`.") from None
