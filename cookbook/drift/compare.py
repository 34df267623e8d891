"""The catalog held against upstream's recipe, recipe by recipe."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Literal

from pydantic import JsonValue

from cookbook.catalog import Catalog
from cookbook.catalog.schema import HardwareEntry, RecipeEntry
from cookbook.deployment import Deployment, EnvVar, Frozen, Origin, Process
from cookbook.drift.read import Block, Conditioned, Upstream
from cookbook.layers import OVERRIDES
from cookbook.resolve import resolve
from cookbook.selection import named

__all__ = ["Difference", "compare"]

# Upstream's strategies set these, in files of their own, and so do ours.
COMPUTED = {
    "--tensor-parallel-size",
    "--enable-expert-parallel",
    "--nnodes",
    "--node-rank",
    "--master-addr",
    "--headless",
    "--host",
    "--port",
    "--kv-transfer-config",
    "--data-parallel-size",
    "--data-parallel-size-local",
    "--data-parallel-start-rank",
    "--data-parallel-address",
    "--data-parallel-rpc-port",
}
LAYERS_OF_THEIRS = ("model", "vendor", "hardware", "feature")

State = Literal["differs", "missing_here", "only_here", "confirmed", "remark"]


class Difference(Frozen):
    """One thing that upstream says otherwise, or for the first time, or as the catalog does.

    Attributes:
        state: "differs", "missing_here" (only upstream has it), "only_here", "confirmed" (the same, and the catalog was
            not sure), or "remark" (about hardware, strategies and bounds; nothing to apply).
        kind: "flag", "environment", "image" or "bound".
        subject: The flag, the variable, or what the bound is on.
        ours: As text; None where we have none.
        theirs: The same.
        value: Theirs, as the catalog would hold it.
        ours_from: Our layer, basis and source.
        their_layer: Where upstream states it: "base", "hardware KEY", "strategy KEY", "feature KEY", "role KEY".
        hardware: Key of our hardware.
        strategy: Key of our strategy.
        role: The process.
        recipes: Our recipes that it is about.
    """

    state: State
    kind: Literal["flag", "environment", "image", "bound"]
    subject: str
    ours: str | None
    theirs: str | None
    value: JsonValue = None
    ours_from: str = ""
    their_layer: str = ""
    hardware: str = ""
    strategy: str = ""
    role: str = ""
    recipes: tuple[str, ...] = ()


def compare(catalog: Catalog, upstream: Upstream) -> tuple[Difference, ...]:
    """Everything that differs, or that upstream confirms; the same thing in several recipes stands once."""
    found: dict[str, Difference] = {}
    for one in (*_bounds(catalog, upstream), *_recipes(catalog, upstream)):
        # The same flag of the same layers is one thing, whichever recipes have it. A generation of hardware is several
        # entries of the catalog.
        several = one.ours is None and one.their_layer.startswith("hardware")
        key = one.model_dump_json(exclude={"recipes", "strategy", "role"} | (set() if several else {"hardware"}))
        before = found.get(key)
        recipes = (*(before.recipes if before else ()), *one.recipes)
        found[key] = (before or one).model_copy(update={"recipes": tuple(dict.fromkeys(recipes))})
    order = ("differs", "missing_here", "only_here", "confirmed", "remark")
    return tuple(sorted(found.values(), key=lambda one: order.index(one.state)))


def _bounds(catalog: Catalog, upstream: Upstream) -> Iterator[Difference]:
    engine, shape = catalog.model.engine, catalog.model.shape
    if upstream.model_id != catalog.model.id:
        yield _remark("model", catalog.model.id, upstream.model_id)
    if upstream.context_length not in (None, shape.max_context):
        yield _remark("context length", str(shape.max_context), str(upstream.context_length))
    if upstream.min_vllm_version and _version(upstream.min_vllm_version) <= _version(engine.newer_than):
        yield _remark("vLLM version", f"newer than {engine.newer_than}", f"{upstream.min_vllm_version} or newer")
    ours = {name for name, entry in catalog.hardware.items() if not entry.model}
    for name in upstream.hardware_names:
        if name not in ours:
            yield _remark(f"hardware {name}", None, "listed")
    for name in upstream.features:
        if name not in catalog.features:
            yield _remark(f"feature {name}", None, "listed")


def _remark(subject: str, ours: str | None, theirs: str | None, recipes: tuple[str, ...] = ()) -> Difference:
    return Difference(state="remark", kind="bound", subject=subject, ours=ours, theirs=theirs, recipes=recipes)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("+", maxsplit=1)[0].split(".") if part.isdecimal())


def _recipes(catalog: Catalog, upstream: Upstream) -> Iterator[Difference]:
    for name, recipe in catalog.recipes.items():
        hardware = catalog.hardware[recipe.hardware]
        keys = (hardware.vendor, hardware.family, recipe.hardware)
        known = set(upstream.hardware) | set(upstream.hardware_names)
        if hardware.model or (known and not known & set(keys)):
            yield _remark(f"hardware {recipe.hardware}", "has recipes", None, (name,))
            continue
        if upstream.strategies_listed and recipe.strategy not in upstream.strategies_listed:
            yield _remark(f"strategy {recipe.strategy}", "has recipes", None, (name,))
        deployment = resolve(catalog, named(catalog, name))
        yield from _least(upstream, name, recipe, deployment)
        yield from _image(upstream, name, hardware, deployment)
        for role in dict.fromkeys(process.role for process in deployment.processes if process.role != "router"):
            process = next(process for process in deployment.processes if process.role == role)
            yield from _process(upstream, name, recipe, keys, process)


def _least(upstream: Upstream, name: str, recipe: RecipeEntry, deployment: Deployment) -> Iterator[Difference]:
    needed = upstream.min_gpus.get(recipe.hardware) or upstream.min_gpus.get(recipe.strategy, 0)
    ours = sum(process.devices for process in deployment.processes)
    if ours < needed:
        yield _remark(f"devices of {recipe.strategy}", str(ours), f"at least {needed}", (name,))


def _image(upstream: Upstream, name: str, hardware: HardwareEntry, deployment: Deployment) -> Iterator[Difference]:
    theirs = upstream.images.get(deployment.hardware) or upstream.images.get(hardware.vendor)
    ours = deployment.image
    if theirs is None or (ours and ours.tag == theirs and ours.origin.basis == "stated"):
        return
    state: State = "confirmed" if ours and ours.tag == theirs else "differs" if ours else "missing_here"
    yield Difference(
        state=state,
        kind="image",
        subject=f"image for {deployment.hardware}",
        ours=ours.tag if ours else None,
        theirs=theirs,
        value=theirs,
        ours_from=_from(ours.origin) if ours else "",
        their_layer="base",
        hardware=deployment.hardware,
        strategy=deployment.strategy,
        recipes=(name,),
    )


def _process(
    upstream: Upstream, name: str, recipe: RecipeEntry, keys: tuple[str, ...], process: Process
) -> Iterator[Difference]:
    args: dict[str, tuple[JsonValue, str]] = {}
    env: dict[str, tuple[JsonValue, str]] = {}
    for layer, block in _layers(upstream, recipe, keys, process.role):
        for flag, value in block.args.items():
            before = args.get(flag, (None, ""))[0]
            both = isinstance(before, dict) and isinstance(value, dict)
            args[flag] = ({**before, **value} if both else value, layer)  # type: ignore[dict-item]
        env |= {variable: (value, layer) for variable, value in block.env.items()}
    ours = {argument.flag: (argument.value, argument.origins[-1]) for argument in process.arguments}
    about = {"hardware": recipe.hardware, "strategy": recipe.strategy, "role": process.role, "recipes": (name,)}
    for one in (*_flags(ours, args), *_variables(process.environment, env)):
        yield (_ours_alone(one, upstream) or one).model_copy(update=about)


def _ours_alone(one: Difference, upstream: Upstream) -> Difference | None:
    """What a preset of ours sets, or a feature that upstream has not, stands above what upstream says in general."""
    kind, _, name = one.ours_from.partition(":")[0].partition(" ")
    if kind == "recipe" or (kind == "feature" and name not in upstream.features):
        update = {"state": "only_here", "theirs": None, "value": None, "their_layer": ""}
        return one.model_copy(update=update)
    return None


def _layers(upstream: Upstream, recipe: RecipeEntry, keys: tuple[str, ...], role: str) -> Iterator[tuple[str, Block]]:
    yield "base", upstream.base
    yield from ((f"hardware {key}", upstream.hardware[key]) for key in keys if key in upstream.hardware)
    strategy = upstream.strategies.get(recipe.strategy, Conditioned())
    yield from _conditioned(f"strategy {recipe.strategy}", strategy, keys)
    for feature in recipe.features:
        yield from _conditioned(f"feature {feature}", upstream.features.get(feature, Conditioned()), keys)
    if role in strategy.roles:
        yield f"role {role}", strategy.roles[role]


def _conditioned(layer: str, entry: Conditioned, keys: tuple[str, ...]) -> Iterator[tuple[str, Block]]:
    yield layer, entry.block
    yield from ((layer, entry.hardware[key]) for key in keys if key in entry.hardware)


def _flags(ours: dict[str, tuple[JsonValue, Origin]], theirs: dict[str, tuple[JsonValue, str]]) -> Iterator[Difference]:
    for flag, (value, layer) in theirs.items():
        mine = ours.get(flag)
        yield from _one("flag", flag, mine, value, layer)
    for flag, (value, origin) in ours.items():
        if flag not in theirs and flag not in COMPUTED and origin.layer.startswith(LAYERS_OF_THEIRS):
            yield _only_here("flag", flag, value, origin)


def _variables(ours: Iterable[EnvVar], theirs: dict[str, tuple[JsonValue, str]]) -> Iterator[Difference]:
    mine = {variable.name: (variable.value, variable.origin) for variable in ours}
    for name, (value, layer) in theirs.items():
        yield from _one("environment", name, mine.get(name), value, layer)
    for name, (text, origin) in mine.items():
        if name not in theirs and origin.layer.startswith(LAYERS_OF_THEIRS):
            yield _only_here("environment", name, text, origin)


def _one(
    kind: Literal["flag", "environment"],
    subject: str,
    mine: tuple[JsonValue, Origin] | None,
    value: JsonValue,
    layer: str,
) -> Iterator[Difference]:
    same = mine is not None and _text(mine[0]) == _text(value)
    if mine is not None and same and (mine[1].basis == "stated" or mine[1].layer == OVERRIDES):
        return
    state: State = "missing_here" if mine is None else "confirmed" if same else "differs"
    yield Difference(
        state=state,
        kind=kind,
        subject=subject,
        ours=None if mine is None else _text(mine[0]),
        theirs=_text(value),
        value=value,
        ours_from="" if mine is None else _from(mine[1]),
        their_layer=layer,
    )


def _only_here(kind: Literal["flag", "environment"], subject: str, value: JsonValue, origin: Origin) -> Difference:
    return Difference(
        state="only_here", kind=kind, subject=subject, ours=_text(value), theirs=None, ours_from=_from(origin)
    )


def _from(origin: Origin) -> str:
    return f"{origin.layer}: {origin.basis}{f', {origin.source}' if origin.source else ''}"


def _text(value: JsonValue) -> str:
    if value is None:
        return "on"
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
