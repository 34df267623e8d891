"""A selection becomes a deployment: every process with exact arguments, environment and image, and why.

Layers, in this order: model, vendor, hardware, strategy, features in the order chosen, role, recipe, the user's
overrides. What the rules of the catalog forbid is an error, with the nearest selection that works.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cookbook.catalog import Catalog
from cookbook.catalog.schema import HardwareEntry, NoticeEntry, Place, Placement, StrategyEntry
from cookbook.commands import address_name, attempt, place_of
from cookbook.deployment import Address, Claim, Deployment, Image, Notice, Origin, Process, Source, Step
from cookbook.errors import InputError, RuleError
from cookbook.layers import OVERRIDES, origin
from cookbook.nearest import nearest_allowed
from cookbook.rules import Violation
from cookbook.selection import Selection, nearest

__all__ = ["resolve"]


def resolve(catalog: Catalog, selection: Selection) -> Deployment:
    """Turn a selection into exact commands.

    Returns:
        The deployment, every argument with where it came from, why, and how sure that is.

    Raises:
        RuleError: A rule forbids the selection; the message has the rule, its source and the nearest that works.
        InputError: A name does not exist, or an override cannot be applied.
        CatalogError: Two layers want different values for the same JSON key.
    """
    _check_names(catalog, selection)
    tried = attempt(catalog, selection)
    if tried.errors:
        raise _refusal(catalog, selection, tried.errors)
    processes = tried.processes
    hardware, strategy = catalog.hardware[selection.hardware], catalog.strategies[selection.strategy]
    placement = hardware.strategies[selection.strategy]
    place = place_of(catalog, selection)
    model = selection.model or (hardware.model.id if hardware.model else catalog.model.id)
    claims = () if hardware.model else tuple(_claims(catalog, place, processes[0]))
    notices = tuple(dict.fromkeys((*_notices(catalog, selection, place, placement), *_warnings(tried.warnings))))
    image = _image(selection, hardware)
    install = tuple(
        Step(command=step.command, origin=origin(step, f"hardware {selection.hardware}")) for step in hardware.install
    )
    return Deployment(
        recipe=selection.name,
        title=_title(catalog, selection),
        hardware=selection.hardware,
        hardware_title=hardware.title,
        nodes=1 + max(process.node for process in processes),
        strategy=selection.strategy,
        features=selection.features,
        model=model,
        served_model_name=str(processes[0].value("--served-model-name") or model),
        image=image,
        install=install,
        addresses=tuple(_addresses(strategy, processes)),
        processes=processes,
        claims=claims,
        notices=notices,
        sources=_sources(catalog, processes, claims, notices, image, install),
    )


def _check_names(catalog: Catalog, selection: Selection) -> None:
    if selection.hardware not in catalog.hardware:
        raise InputError(
            f'There is no hardware called "{selection.hardware}".', nearest(selection.hardware, catalog.hardware)
        )
    hardware = catalog.hardware[selection.hardware]
    if selection.strategy not in catalog.strategies:
        raise InputError(
            f'There is no strategy called "{selection.strategy}".', nearest(selection.strategy, catalog.strategies)
        )
    if selection.strategy not in hardware.strategies:
        raise InputError(
            f"No source shows the strategy {selection.strategy} on {hardware.title}.",
            f"There it has: {', '.join(hardware.strategies)}.",
        )
    for feature in selection.features:
        if feature not in catalog.features:
            raise InputError(f'There is no feature called "{feature}".', nearest(feature, catalog.features))
    if len(set(selection.features)) < len(selection.features):
        raise InputError(f"A feature stands twice: {', '.join(selection.features)}.", "Leave one of them out.")
    if selection.nodes is not None and not catalog.strategies[selection.strategy].variable_nodes:
        fixed = sum(hardware.strategies[selection.strategy].nodes.values())
        if selection.nodes != fixed:
            raise InputError(
                f"The strategy {selection.strategy} has {fixed} node(s) on {hardware.title}, not {selection.nodes}.",
                "Leave --nodes out, or take a strategy over several nodes.",
            )
    elif selection.nodes is not None and selection.nodes < 2:
        raise InputError(f"{selection.nodes} nodes are not several.", "Take --nodes 2 or more.")
    for name in ("host_memory_gib", "offload_gib"):
        value = getattr(selection, name)
        if value is not None and value <= 0:
            raise InputError(f"{name} is {value:g}.", "It is a number of GiB above 0.")


def _refusal(catalog: Catalog, selection: Selection, broken: tuple[Violation, ...]) -> RuleError:
    reasons = " ".join(dict.fromkeys(one.sentence(catalog.sources) for one in broken))
    found = nearest_allowed(catalog, selection)
    if found is None:
        todo = "No selection near it works."
    elif len(found.overrides) < len(selection.overrides):
        kept = {(o.name, o.role) for o in found.overrides}
        dropped = [o.name for o in selection.overrides if (o.name, o.role) not in kept]
        todo = f"The nearest selection that works: the same without --set {', '.join(dropped)}."
    else:
        todo = f"The nearest selection that works: {found}"
        offload = "" if found.offload_gib == selection.offload_gib else f" --offload {found.offload_gib:g}"
        todo += f"{offload}."
    return RuleError(tuple(one.rule for one in broken), f"{selection} is not possible: {reasons}", todo)


def _title(catalog: Catalog, selection: Selection) -> str:
    if selection.recipe:
        return catalog.recipes[selection.recipe].title
    names = [catalog.strategies[selection.strategy].title, *(catalog.features[f].title for f in selection.features)]
    return f"{catalog.hardware[selection.hardware].title}: {', '.join(names)}"


def _image(selection: Selection, hardware: HardwareEntry) -> Image | None:
    if selection.image:
        return Image(tag=selection.image, origin=Origin(layer=OVERRIDES, why="Set by you.", basis="chosen"))
    if hardware.image.tag is None:
        return None
    return Image(tag=hardware.image.tag, origin=origin(hardware.image, f"hardware {selection.hardware}"))


def _claims(catalog: Catalog, place: Place, process: Process) -> Iterator[Claim]:
    for name, entry in catalog.claims.items():
        if entry.to(place) and all(str(process.value(flag)) == str(value) for flag, value in entry.with_args.items()):
            yield Claim(name=name, **entry.model_dump(include=set(Claim.model_fields) - {"name"}))


def _notices(catalog: Catalog, selection: Selection, place: Place, placement: Placement) -> Iterator[Notice]:
    layers: list[tuple[NoticeEntry, ...]] = [
        catalog.model.notices,
        catalog.hardware[selection.hardware].notices,
        placement.notices,
        catalog.strategies[selection.strategy].notices,
        *(catalog.features[feature].notices for feature in selection.features),
    ]
    if selection.recipe:
        layers.append(catalog.recipes[selection.recipe].notices)
    for entries in layers:
        for entry in entries:
            if entry.to(place):
                yield Notice(kind=entry.kind, text=entry.text, source=entry.source)
    if placement.basis not in {"stated", "chosen"} and not placement.notices:
        yield Notice(
            kind="unverified", text=f"The layout is {placement.basis}. {placement.why}", source=placement.source
        )
    if not _is_stated(catalog, selection) and not catalog.hardware[selection.hardware].model:
        yield Notice(
            kind="unverified",
            text="No source states this combination of hardware, strategy and features; only its parts are.",
        )


def _warnings(violations: Iterable[Violation]) -> Iterator[Notice]:
    for one in violations:
        yield Notice(kind="warning", text=one.why, source=one.source)


def _is_stated(catalog: Catalog, selection: Selection) -> bool:
    """Whether a recipe has this combination. Tool calling and reasoning go with any, and are left out of sight."""
    everywhere = {"tool_calling", "reasoning"}
    wanted = (selection.hardware, selection.strategy, set(selection.features) - everywhere, selection.nodes)
    return any(
        (recipe.hardware, recipe.strategy, set(recipe.features) - everywhere, None) == wanted
        for recipe in catalog.recipes.values()
    )


def _addresses(strategy: StrategyEntry, processes: Iterable[Process]) -> Iterator[Address]:
    processes = tuple(processes)
    used = {name for process in processes for name in process.variables}
    for process in processes:
        name = address_name(strategy, process.role, process.rank)
        if name in used and not strategy.roles[process.role].beside:
            which = "the head" if process.rank == 0 else f"node {process.rank} of it"
            of = "" if name.startswith(("HEAD", "NODE")) else f" of the {process.role} pool"
            if of:
                which = "the first node" if process.rank == 0 else f"node {process.rank}"
            yield Address(
                name=name,
                node=process.node,
                meaning=f"Address of {which}{of}, on the network between the nodes.",
            )


def _sources(
    catalog: Catalog,
    processes: Iterable[Process],
    claims: Iterable[Claim],
    notices: Iterable[Notice],
    image: Image | None,
    install: Iterable[Step],
) -> dict[str, Source]:
    keys = [claim.source for claim in claims] + [notice.source for notice in notices]
    keys += [image.origin.source] if image else []
    keys += [step.origin.source for step in install]
    for process in processes:
        keys += [origin.source for argument in process.arguments for origin in argument.origins]
        keys += [variable.origin.source for variable in process.environment]
    used = {key for key in keys if key is not None}
    return {key: source for key, source in catalog.sources.items() if key in used}
