"""A selection becomes a Deployment: pure, the same selection gives the same bytes.

Layers, in this order: model, hardware, strategy, features in the order chosen, the user's overrides. For a plain flag
the later layer wins. A flag that takes JSON is merged key by key, and two layers that want different values for the
same key are an error that names both; only the user's overrides may replace a key.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import JsonValue

from cookbook.catalog import Catalog
from cookbook.catalog.schema import ArgumentEntry, Layer, Reasoned
from cookbook.deployment import Argument, Claim, Deployment, EnvVar, Frozen, Image, Notice, Origin, Process, Source
from cookbook.errors import CatalogError, InputError

__all__ = ["Override", "Selection", "nearest", "parse_override", "resolve", "select"]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
SECRET_FLAGS = ("--api-key", "--hf-token")
OVERRIDES = "your override"
VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
FLAG = re.compile(r"-{0,2}[a-zA-Z0-9][a-zA-Z0-9._-]*")


class Override(Frozen):
    """One `--set`. A name in capitals is an environment variable, any other is a flag without its dashes.

    Attributes:
        name: "max-model-len", "--max-model-len" or "VLLM_LOGGING_LEVEL".
        value: None for a bare flag, False to take the flag out.
    """

    name: str
    value: JsonValue = None

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
        recipe: Name of the recipe.
        overrides: Applied last, in this order.
        model: A hub name or a folder to load in place of the catalog's model; None for that.
        revision: Commit of the model repository; None leaves it open.
    """

    recipe: str
    overrides: tuple[Override, ...] = ()
    model: str | None = None
    revision: str | None = None


def nearest(name: str, names: Iterable[str]) -> str:
    """For a name that does not exist: what was probably meant, or all that do exist."""
    known = sorted(names)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"Did you mean {' or '.join(close)}?" if close else f"There are: {', '.join(known)}."


def parse_override(text: str) -> Override:
    """Read "KEY=VALUE" or "KEY" as `--set` takes it.

    Raises:
        InputError: The text has no key, or its value looks like JSON and is not.
    """
    name, equals, raw = text.partition("=")
    name = name.strip()
    if not (VARIABLE.fullmatch(name) or FLAG.fullmatch(name)):
        raise InputError(f'"{text}" is not an override.', "Write KEY=VALUE, for example max-model-len=262144.")
    if not equals or raw == "true":
        return Override(name=name)
    if raw == "false":
        return Override(name=name, value=False)
    if raw.startswith(("{", "[")):
        try:
            return Override(name=name, value=json.loads(raw))
        except json.JSONDecodeError as error:
            raise InputError(
                f"The value of {name} is not valid JSON: {error}.", "Mend it, or quote it for the shell."
            ) from error
    return Override(name=name, value=raw)


def select(catalog: Catalog, recipe: str) -> str:
    """The name of a recipe, checked.

    Raises:
        InputError: There is none of that name; the message gives the nearest.
    """
    if recipe not in catalog.recipes:
        raise InputError(f'There is no recipe called "{recipe}".', nearest(recipe, catalog.recipes))
    return recipe


def resolve(catalog: Catalog, selection: Selection) -> Deployment:
    """Turn a selection into exact commands.

    Returns:
        The deployment, every argument with where it came from, why, and how sure that is.

    Raises:
        InputError: There is no such recipe, or an override cannot be applied.
        CatalogError: Two layers want different values for the same JSON key.
    """
    recipe = catalog.recipes[select(catalog, selection.recipe)]
    hardware = catalog.hardware[recipe.hardware]
    strategy = catalog.strategies[recipe.strategy]
    layers: list[tuple[str, Layer]] = [
        ("model", catalog.model),
        (f"hardware {recipe.hardware}", hardware),
        (f"strategy {recipe.strategy}", strategy),
        *((f"feature {name}", catalog.features[name]) for name in recipe.features),
    ]
    arguments: dict[str, Argument] = {}
    environment: dict[str, EnvVar] = {}
    for name, layer in layers:
        for flag, entry in layer.args.items():
            arguments[flag] = _merge(arguments.get(flag), flag, entry, name)
        for variable, setting in layer.env.items():
            environment[variable] = EnvVar(name=variable, value=setting.value, origin=_origin(setting, name))
    _apply_overrides(arguments, environment, _all_overrides(catalog, selection))

    model = selection.model or catalog.model.id
    host, port = _address(arguments)
    devices = _devices(arguments)
    if devices > hardware.devices_per_node * strategy.nodes:
        raise InputError(
            f"--tensor-parallel-size {devices} needs {devices} devices; {hardware.title} has "
            f"{hardware.devices_per_node * strategy.nodes}.",
            f"Set tensor-parallel-size={hardware.devices_per_node * strategy.nodes} or less.",
        )
    process = Process(
        name="engine-0",
        role="engine",
        node=0,
        program=("vllm", "serve", model),
        arguments=tuple(arguments.values()),
        environment=tuple(environment.values()),
        host=host,
        port=port,
        devices=devices,
    )
    claims = tuple(
        Claim(name=name, **entry.model_dump(include=set(Claim.model_fields) - {"name"}))
        for name, entry in catalog.claims.items()
        if entry.to(recipe.hardware, recipe.strategy, recipe.features)
        and all(str(process.value(flag)) == str(value) for flag, value in entry.with_args.items())
    )
    notices = tuple(Notice(**notice.model_dump()) for _, layer in layers for notice in layer.notices)
    image = None
    if hardware.image:
        image = Image(tag=hardware.image.tag, origin=_origin(hardware.image, f"hardware {recipe.hardware}"))
    return Deployment(
        recipe=selection.recipe,
        title=recipe.title,
        hardware=recipe.hardware,
        hardware_title=hardware.title,
        nodes=strategy.nodes,
        strategy=recipe.strategy,
        features=recipe.features,
        model=model,
        served_model_name=str(process.value("--served-model-name") or model),
        image=image,
        processes=(process,),
        claims=claims,
        notices=notices,
        sources=_sources(catalog, (process,), claims, notices, image),
    )


def _origin(entry: Reasoned, layer: str) -> Origin:
    return Origin(layer=layer, why=entry.why, basis=entry.basis, source=entry.source)


def _merge(before: Argument | None, flag: str, entry: ArgumentEntry, layer: str) -> Argument:
    origin = _origin(entry, layer)
    if before is None or not (isinstance(before.value, dict) and isinstance(entry.value, dict)):
        return Argument(flag=flag, value=entry.value, origins=(origin,))
    clash = _clash(before.value, entry.value)
    if clash:
        first = " and ".join(o.layer for o in before.origins)
        raise CatalogError(
            "catalog",
            f"{flag}.{clash}",
            f"{first} and {layer} want different values.",
            "Take one of the two out of the selection.",
        )
    return Argument(flag=flag, value=_deep_merge(before.value, entry.value), origins=(*before.origins, origin))


def _clash(left: Mapping[str, Any], right: Mapping[str, Any]) -> str:
    for key in left.keys() & right.keys():
        if isinstance(left[key], dict) and isinstance(right[key], dict):
            inner = _clash(left[key], right[key])
            if inner:
                return f"{key}.{inner}"
        elif left[key] != right[key]:
            return key
    return ""


def _deep_merge(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(left)
    for key, value in right.items():
        both = isinstance(merged.get(key), dict) and isinstance(value, dict)
        merged[key] = _deep_merge(merged[key], value) if both else value
    return merged


def _all_overrides(catalog: Catalog, selection: Selection) -> Iterator[Override]:
    if selection.revision:
        yield Override(name="revision", value=selection.revision)
    if selection.model and selection.model != catalog.model.id:
        # Clients keep using the model's own name, wherever its files lie.
        yield Override(name="served-model-name", value=catalog.model.id)
    yield from selection.overrides


def _apply_overrides(
    arguments: dict[str, Argument], environment: dict[str, EnvVar], overrides: Iterable[Override]
) -> None:
    origin = Origin(layer=OVERRIDES, why="Set by you.", basis="chosen")
    for override in overrides:
        if override.is_variable:
            if any(word in override.name for word in ("TOKEN", "SECRET", "PASSWORD", "API_KEY")):
                raise InputError(
                    f"{override.name} is a secret.", "Put it into the environment; a secret is never a parameter."
                )
            if override.value is False:
                environment.pop(override.name, None)
            else:
                value = "1" if override.value is None else str(override.value)
                environment[override.name] = EnvVar(name=override.name, value=value, origin=origin)
            continue
        flag = override.flag
        if flag in SECRET_FLAGS:
            raise InputError(
                f"{flag} is a secret.", "Put it into VLLM_API_KEY or HF_TOKEN; a secret is never a parameter."
            )
        before = arguments.get(flag)
        if override.value is False:
            arguments.pop(flag, None)
        elif before and isinstance(before.value, dict) and isinstance(override.value, dict):
            merged = _deep_merge(before.value, override.value)
            arguments[flag] = Argument(flag=flag, value=merged, origins=(*before.origins, origin))
        else:
            arguments[flag] = Argument(flag=flag, value=override.value, origins=(origin,))


def _address(arguments: Mapping[str, Argument]) -> tuple[str, int]:
    host = str(arguments["--host"].value) if "--host" in arguments else LOOPBACK[0]
    if host not in LOOPBACK:
        raise InputError(
            f"--host {host} would open the server to the network.",
            "Keep 127.0.0.1 and put a gateway with authentication in front: "
            "vLLM's API key covers only some of its paths.",
        )
    return host, _number(arguments, "--port", 8000, 1, 65535)


def _devices(arguments: Mapping[str, Argument]) -> int:
    return _number(arguments, "--tensor-parallel-size", 1, 1, 4096)


def _number(arguments: Mapping[str, Argument], flag: str, default: int, low: int, high: int) -> int:
    value = arguments[flag].value if flag in arguments else default
    try:
        number = int(str(value))
    except ValueError:
        number = low - 1
    if not low <= number <= high:
        raise InputError(f"{flag} {value} is not a whole number from {low} to {high}.", "Mend the override.")
    return number


def _sources(
    catalog: Catalog,
    processes: Iterable[Process],
    claims: Iterable[Claim],
    notices: Iterable[Notice],
    image: Image | None,
) -> dict[str, Source]:
    keys = [claim.source for claim in claims] + [notice.source for notice in notices]
    keys += [image.origin.source] if image else []
    for process in processes:
        keys += [origin.source for argument in process.arguments for origin in argument.origins]
        keys += [variable.origin.source for variable in process.environment]
    used = {key for key in keys if key is not None}
    return {key: source for key, source in catalog.sources.items() if key in used}
