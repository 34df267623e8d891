"""What a user chose: hardware, strategy, features, nodes and overrides, by hand or by the name of a recipe."""

from __future__ import annotations

import difflib
import json
import re
import typing
from collections.abc import Iterable

from pydantic import JsonValue

from cookbook.catalog import Catalog
from cookbook.deployment import Frozen, Role
from cookbook.errors import InputError

__all__ = ["Override", "Selection", "named", "nearest", "parse_override", "select"]

VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
FLAG = re.compile(r"-{0,2}[a-zA-Z0-9][a-zA-Z0-9._-]*")
ROLES: tuple[Role, ...] = typing.get_args(Role)


class Override(Frozen):
    """One `--set`. A name in capitals is an environment variable, any other is a flag without its dashes.

    Attributes:
        name: "max-model-len", "--max-model-len" or "VLLM_LOGGING_LEVEL".
        value: None for a bare flag, False to take the flag out.
        role: The role that it is for; None for every `vllm serve`.
    """

    name: str
    value: JsonValue = None
    role: Role | None = None

    @property
    def is_variable(self) -> bool:
        """Whether this sets an environment variable."""
        return VARIABLE.fullmatch(self.name) is not None

    @property
    def flag(self) -> str:
        """The flag with its dashes."""
        return "--" + self.name.lstrip("-").replace("_", "-")


class Selection(Frozen):
    """What the user chose.

    Attributes:
        hardware: Key of the hardware.
        strategy: Key of the strategy.
        features: Keys of the features, applied in this order.
        recipe: Name of the recipe that this is, whose own flags apply too; empty for none.
        nodes: How many nodes to spread over, where the strategy leaves that open; None for the catalog's number.
        overrides: Applied last, in this order.
        model: A hub name or a folder to load in place of the catalog's model; None for that.
        revision: Commit of the model repository; None leaves it open.
        image: A container image in place of the catalog's; None for that.
        host_memory_gib: Memory of a node in GiB that is free for KV offload; None where it is not known.
        offload_gib: Memory in GiB that KV offload takes for each device; None to compute it.
    """

    hardware: str
    strategy: str
    features: tuple[str, ...] = ()
    recipe: str = ""
    nodes: int | None = None
    overrides: tuple[Override, ...] = ()
    model: str | None = None
    revision: str | None = None
    image: str | None = None
    host_memory_gib: float | None = None
    offload_gib: float | None = None

    @property
    def name(self) -> str:
        """The recipe's name, or one made of hardware, strategy and features, for files and resources."""
        return self.recipe or "_".join((self.hardware, self.strategy, *self.features))

    def __str__(self) -> str:
        """As options of `cookbook show`."""
        words = [f"--hardware {self.hardware} --strategy {self.strategy}"]
        words += [f"--feature {feature}" for feature in self.features]
        if self.nodes is not None:
            words.append(f"--nodes {self.nodes}")
        return " ".join(words)


def nearest(name: str, names: Iterable[str]) -> str:
    """For a name that does not exist: what was probably meant, or all that do exist."""
    known = sorted(names)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"Did you mean {' or '.join(close)}?" if close else f"There are: {', '.join(known)}."


def parse_override(text: str) -> Override:
    """Read "KEY=VALUE" or "KEY" as `--set` takes it, with "ROLE:" in front for one role alone.

    Raises:
        InputError: The text has no key, or its value looks like JSON and is not.
    """
    name, equals, raw = text.partition("=")
    name = name.strip()
    role = next((role for role in ROLES if name.startswith(f"{role}:")), None)
    if role:
        name = name.removeprefix(f"{role}:")
    if not (VARIABLE.fullmatch(name) or FLAG.fullmatch(name)):
        raise InputError(f'"{text}" is not an override.', "Write KEY=VALUE, for example max-model-len=262144.")
    if not equals or raw == "true":
        return Override(name=name, role=role)
    if raw == "false":
        return Override(name=name, value=False, role=role)
    if raw.startswith(("{", "[")):
        try:
            return Override(name=name, value=json.loads(raw), role=role)
        except json.JSONDecodeError as error:
            raise InputError(
                f"The value of {name} is not valid JSON: {error}.", "Mend it, or quote it for the shell."
            ) from error
    return Override(name=name, value=raw, role=role)


def select(catalog: Catalog, recipe: str) -> str:
    """The name of a recipe, checked.

    Raises:
        InputError: There is none of that name; the message gives the nearest.
    """
    if recipe not in catalog.recipes:
        raise InputError(f'There is no recipe called "{recipe}".', nearest(recipe, catalog.recipes))
    return recipe


def named(catalog: Catalog, recipe: str, **changes: object) -> Selection:
    """The selection of a recipe.

    Args:
        catalog: The catalog.
        recipe: Its name.
        **changes: Further fields of `Selection`.

    Raises:
        InputError: There is no such recipe.
    """
    entry = catalog.recipes[select(catalog, recipe)]
    base = {"hardware": entry.hardware, "strategy": entry.strategy, "features": entry.features, "recipe": recipe}
    return Selection.model_validate(base | changes)
