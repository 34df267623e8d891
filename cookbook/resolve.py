"""A selection becomes a deployment: every process with exact arguments, environment and image, and why.

Layers, in this order: model, vendor, hardware, strategy, features in the order chosen, role, recipe, the user's
overrides. A later layer wins for a plain flag; JSON is merged key by key, and two layers that want different values for
a key are an error. What the model's rules forbid is an error too, with the nearest selection that works.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import JsonValue

from cookbook.capacity import GIB
from cookbook.catalog import Catalog
from cookbook.catalog.schema import (
    ArgumentEntry,
    Conditional,
    HardwareEntry,
    NoticeEntry,
    Place,
    Placement,
    Reasoned,
    RoleEntry,
    StrategyEntry,
    VariableEntry,
)
from cookbook.deployment import (
    Address,
    Argument,
    Claim,
    Deployment,
    EnvVar,
    Image,
    Notice,
    Origin,
    Process,
    Role,
    Source,
    Step,
)
from cookbook.errors import CatalogError, InputError, RuleError
from cookbook.rules import Violation, violations
from cookbook.selection import Override, Selection, nearest

__all__ = ["OVERRIDES", "allowed", "commands", "resolve"]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
SECRET_FLAGS = ("--api-key", "--hf-token")
OVERRIDES = "your override"
MARK = re.compile(r"\{([a-z_]+)\}")
SEARCH_DEPTH = 3
"""Changes that the search for the nearest selection makes at most."""
OFFLOAD_GIB = 128
"""For each device, where neither a size nor the host's memory is given: what the tested GB300 prefill workers used."""
OFFLOAD_SHARE = 0.9
"""Of the host memory that is free: the rest is left to the operating system and the page cache."""


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
    broken, warnings, processes = _attempt(catalog, selection)
    if broken:
        raise _refusal(catalog, selection, broken)
    hardware, strategy = catalog.hardware[selection.hardware], catalog.strategies[selection.strategy]
    placement = hardware.strategies[selection.strategy]
    place = _place(catalog, selection)
    model = selection.model or (hardware.model.id if hardware.model else catalog.model.id)
    claims = () if hardware.model else tuple(_claims(catalog, place, processes[0]))
    notices = tuple(dict.fromkeys((*_notices(catalog, selection, place, placement), *warnings)))
    image = _image(selection, hardware)
    install = tuple(
        Step(command=step.command, origin=_origin(step, f"hardware {selection.hardware}")) for step in hardware.install
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


def commands(catalog: Catalog, selection: Selection) -> tuple[Process, ...]:
    """The processes of a selection that is allowed; none of one that is not. For enumerating many.

    Raises:
        InputError: A name does not exist, or an override cannot be applied.
    """
    broken, _, processes = _attempt(catalog, selection)
    return () if broken else processes


def allowed(catalog: Catalog, selection: Selection) -> tuple[Violation, ...]:
    """What forbids a selection of existing names; nothing where it is allowed."""
    return _attempt(catalog, selection)[0]


def _attempt(
    catalog: Catalog, selection: Selection
) -> tuple[tuple[Violation, ...], tuple[Notice, ...], tuple[Process, ...]]:
    place = _place(catalog, selection)
    # Rules on names alone come first: what they refuse may not even make sense as a command.
    early = violations(catalog, selection, place, ())
    errors = tuple(found for found in early if found.severity == "error")
    if errors:
        return errors, (), ()
    processes = tuple(_processes(catalog, selection))
    found = violations(catalog, selection, place, processes)
    warnings = (Notice(kind="warning", text=one.why, source=one.source) for one in found if one.severity == "warning")
    return tuple(one for one in found if one.severity == "error"), tuple(warnings), processes


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


def nearest_allowed(catalog: Catalog, selection: Selection) -> Selection | None:
    """The selection with the fewest changes that is allowed; None where none within a few changes is.

    A change drops or adds a feature, takes another strategy or number of nodes, drops an override, leaves the size of
    the offload to arithmetic, or takes other hardware.
    """
    seen = {selection.model_dump_json()}
    layer = [selection]
    for _ in range(SEARCH_DEPTH):
        following = []
        for current in layer:
            for candidate in _neighbours(catalog, current):
                key = candidate.model_dump_json()  # an override may hold JSON, which has no hash
                if key not in seen:
                    seen.add(key)
                    following.append(candidate)
        for candidate in following:
            try:
                if not allowed(catalog, candidate):
                    return candidate
            except InputError:
                continue
        layer = following[:200]
    return None


def _neighbours(catalog: Catalog, selection: Selection) -> Iterator[Selection]:
    def changed(**update: object) -> Selection:
        return selection.model_copy(update={**update, "recipe": ""})

    for override in selection.overrides:
        yield changed(overrides=tuple(one for one in selection.overrides if one != override))
    if selection.offload_gib is not None and selection.host_memory_gib is not None:
        devices = catalog.hardware[selection.hardware].devices_per_node
        yield changed(offload_gib=_offload_gib(selection.model_copy(update={"offload_gib": None}), devices))
    for feature in reversed(selection.features):
        yield changed(features=tuple(one for one in selection.features if one != feature))
    for feature in catalog.features:
        if feature not in selection.features:
            yield changed(features=(*selection.features, feature))
    if selection.nodes is not None:
        yield changed(nodes=None)
    for strategy in catalog.hardware[selection.hardware].strategies:
        if strategy != selection.strategy:
            yield changed(strategy=strategy, nodes=None)
    for name, hardware in catalog.hardware.items():
        if name != selection.hardware and selection.strategy in hardware.strategies and not hardware.model:
            yield changed(hardware=name, nodes=None)


def _place(catalog: Catalog, selection: Selection) -> Place:
    hardware = catalog.hardware[selection.hardware]
    return Place(
        hardware=selection.hardware,
        vendor=hardware.vendor,
        family=hardware.family,
        strategy=selection.strategy,
        features=frozenset(selection.features),
    )


def _title(catalog: Catalog, selection: Selection) -> str:
    if selection.recipe:
        return catalog.recipes[selection.recipe].title
    names = [catalog.strategies[selection.strategy].title, *(catalog.features[f].title for f in selection.features)]
    return f"{catalog.hardware[selection.hardware].title}: {', '.join(names)}"


# Processes


def _processes(catalog: Catalog, selection: Selection) -> Iterator[Process]:
    hardware, strategy = catalog.hardware[selection.hardware], catalog.strategies[selection.strategy]
    nodes = _nodes(selection, hardware, strategy)
    first: dict[Role, int] = {}
    following = 0
    for role, entry in strategy.roles.items():
        first[role] = first[entry.beside] if entry.beside else following
        following += 0 if entry.beside else nodes[role]
    names = {role: [_variable(strategy, role, rank) for rank in range(nodes[role])] for role in strategy.roles}
    urls = {
        f"{role}_urls": [
            f"http://${{{names[role][rank]}}}:{entry.port}"
            for rank in range(nodes[role] if entry.serves == "all" else 1)
        ]
        for role, entry in strategy.roles.items()
    }
    for role, entry in strategy.roles.items():
        yield from _role(catalog, selection, role, entry, first[role], names[role], urls)


def _nodes(selection: Selection, hardware: HardwareEntry, strategy: StrategyEntry) -> dict[Role, int]:
    placement = hardware.strategies[selection.strategy]
    return {
        role: 1 if entry.beside else selection.nodes or placement.nodes.get(role, 1)
        for role, entry in strategy.roles.items()
    }


def _variable(strategy: StrategyEntry, role: Role, rank: int) -> str:
    own = [name for name, entry in strategy.roles.items() if not entry.beside]
    if len(own) == 1:
        return "HEAD_IP" if rank == 0 else f"NODE_{rank}_IP"
    return f"{role.upper()}_{rank}_IP"


def _role(
    catalog: Catalog,
    selection: Selection,
    role: Role,
    entry: RoleEntry,
    first: int,
    names: list[str],
    urls: Mapping[str, list[str]],
) -> Iterator[Process]:
    hardware = catalog.hardware[selection.hardware]
    count = len(names)
    devices = count * hardware.devices_per_node
    tensor = entry.tensor_parallel or devices
    groups, left = divmod(devices, tensor)
    local = hardware.devices_per_node // tensor
    if left or not groups or (groups > 1 and not local):
        raise InputError(
            f"The role {role} has {devices} devices on {count} node(s), which groups of {tensor} do not divide.",
            "Take another number of nodes or other hardware.",
        )
    model = selection.model or (hardware.model.id if hardware.model else catalog.model.id)
    engine = entry.program[:2] == ("vllm", "serve")
    for rank in range(count):
        place = _place(catalog, selection).model_copy(
            update={
                "role": role,
                "head": rank == 0,
                "spans": count > 1,
                "nvlink": hardware.nvlink_nodes >= count,
            }
        )
        marks: dict[str, JsonValue] = {
            "nodes": count,
            "devices": devices,
            "rank": rank,
            "tensor_parallel": tensor,
            "data_parallel": groups,
            "data_parallel_local": max(local, 1),
            "data_parallel_start": rank * max(local, 1),
            "port": entry.port,
            "offload_bytes": int(_offload_gib(selection, hardware.devices_per_node) * GIB),
            "self": f"${{{names[rank]}}}",
            "head": f"${{{names[0]}}}",
            **{name: list(values) for name, values in urls.items()},
        }
        builder = _Builder(place, marks)
        if engine:
            builder.layer("model", catalog.model)
            builder.layer(f"vendor {hardware.vendor}", catalog.vendors[hardware.vendor])
            builder.layer(f"hardware {selection.hardware}", hardware)
            builder.layer(f"strategy {selection.strategy}", catalog.strategies[selection.strategy])
            for feature in selection.features:
                builder.layer(f"feature {feature}", catalog.features[feature])
        builder.layer(f"role {role}", entry)
        if engine and selection.recipe:
            builder.layer(f"recipe {selection.recipe}", catalog.recipes[selection.recipe])
        builder.override(_all_overrides(catalog, selection, role, engine=engine))
        arguments = builder.arguments
        serves = entry.serves == "all" or rank == 0
        host, port = _address(arguments, serves=serves, port=entry.port)
        if engine:
            _check_devices(arguments, hardware, devices, count)
        yield Process(
            name=f"{role}-{rank}",
            role=role,
            node=first + rank,
            rank=rank,
            program=tuple(model if word == "{model}" else word for word in entry.program),
            arguments=tuple(_spread(arguments.values())),
            environment=tuple(builder.environment.values()),
            host=host,
            port=port,
            devices=0 if entry.beside else hardware.devices_per_node,
            serves=serves,
        )


def _spread(arguments: Iterable[Argument]) -> Iterator[Argument]:
    """A list of addresses stands as one flag each: `vllm-router` takes a flag as often as there are servers."""
    for argument in arguments:
        if isinstance(argument.value, list) and argument.variables:
            for value in argument.value:
                yield argument.model_copy(update={"value": value, "variables": _variables(value)})
        else:
            yield argument


class _Builder:
    """Collects the flags and variables of one process, layer by layer."""

    def __init__(self, place: Place, marks: Mapping[str, JsonValue]) -> None:
        self.arguments: dict[str, Argument] = {}
        self.environment: dict[str, EnvVar] = {}
        self._place = place
        self._marks = marks

    def layer(self, name: str, layer: Any) -> None:
        """Apply a layer: its flags and variables, then those that apply here only."""
        self._entries(name, layer)
        for conditional in layer.where:
            if conditional.to(self._place):
                for flag in conditional.drop:
                    self.arguments.pop(flag, None)
                self._entries(name, conditional)

    def _entries(self, name: str, entries: Conditional | Any) -> None:
        args: dict[str, ArgumentEntry] = entries.args
        env: dict[str, VariableEntry] = entries.env
        for flag, entry in args.items():
            value = _fill(entry.value, self._marks)
            self.arguments.pop(_opposite(flag), None)
            self.arguments[flag] = _merge(self.arguments.get(flag), flag, value, _origin(entry, name))
        for variable, setting in env.items():
            text = str(_fill(setting.value, self._marks))
            self.environment[variable] = EnvVar(
                name=variable,
                value=text,
                origin=_origin(setting, name),
                variables=_variables(text) if text != setting.value else (),
            )

    def override(self, overrides: Iterable[Override]) -> None:
        """Apply the user's changes.

        Raises:
            InputError: One would set a secret.
        """
        origin = Origin(layer=OVERRIDES, why="Set by you.", basis="chosen")
        for override in overrides:
            if override.is_variable:
                self._override_variable(override, origin)
            else:
                self._override_flag(override, origin)

    def _override_variable(self, override: Override, origin: Origin) -> None:
        if any(word in override.name for word in ("TOKEN", "SECRET", "PASSWORD", "API_KEY")):
            raise InputError(
                f"{override.name} is a secret.", "Put it into the environment; a secret is never a parameter."
            )
        if override.value is False:
            self.environment.pop(override.name, None)
        else:
            value = "1" if override.value is None else str(override.value)
            self.environment[override.name] = EnvVar(name=override.name, value=value, origin=origin)

    def _override_flag(self, override: Override, origin: Origin) -> None:
        flag = override.flag
        if flag in SECRET_FLAGS:
            raise InputError(
                f"{flag} is a secret.", "Put it into VLLM_API_KEY or HF_TOKEN; a secret is never a parameter."
            )
        before = self.arguments.get(flag)
        self.arguments.pop(_opposite(flag), None)
        if override.value is False:
            self.arguments.pop(flag, None)
        elif before and isinstance(before.value, dict) and isinstance(override.value, dict):
            merged = _deep_merge(before.value, override.value)
            self.arguments[flag] = Argument(flag=flag, value=merged, origins=(*before.origins, origin))
        else:
            self.arguments[flag] = Argument(flag=flag, value=override.value, origins=(origin,))


def _opposite(flag: str) -> str:
    """`--no-x` for `--x` and the other way round: vLLM would take the last of the two."""
    return f"--{flag[5:]}" if flag.startswith("--no-") else f"--no-{flag[2:]}"


def _fill(value: JsonValue, marks: Mapping[str, JsonValue]) -> JsonValue:
    if isinstance(value, dict):
        return {key: _fill(inner, marks) for key, inner in value.items()}
    if isinstance(value, list):
        return [_fill(inner, marks) for inner in value]
    match = MARK.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    if match[1] not in marks:
        raise CatalogError("catalog", str(value), "there is no such mark.", f"There are: {', '.join(marks)}.")
    return marks[match[1]]


def _variables(value: JsonValue) -> tuple[str, ...]:
    """Names of the addresses in a value that was filled in."""
    texts = value if isinstance(value, list) else [value]
    return tuple(name for text in texts if isinstance(text, str) for name in re.findall(r"\$\{([A-Z0-9_]+)\}", text))


def _origin(entry: Reasoned, layer: str) -> Origin:
    return Origin(layer=layer, why=entry.why, basis=entry.basis, source=entry.source)


def _merge(before: Argument | None, flag: str, value: JsonValue, origin: Origin) -> Argument:
    # What a layer says of one place goes before what it says in general.
    same_layer = before is not None and all(one.layer == origin.layer for one in before.origins)
    if before is None or same_layer or not (isinstance(before.value, dict) and isinstance(value, dict)):
        return Argument(flag=flag, value=value, origins=(origin,), variables=_variables(value))
    clash = _clash(before.value, value)
    if clash:
        first = " and ".join(o.layer for o in before.origins)
        raise CatalogError(
            "catalog",
            f"{flag}.{clash}",
            f"{first} and {origin.layer} want different values.",
            "Take one of the two out of the selection.",
        )
    return Argument(flag=flag, value=_deep_merge(before.value, value), origins=(*before.origins, origin))


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


def _all_overrides(catalog: Catalog, selection: Selection, role: Role, *, engine: bool) -> Iterator[Override]:
    if engine and selection.revision:
        yield Override(name="revision", value=selection.revision)
    if engine and selection.model and selection.model != catalog.model.id:
        # Clients keep using the model's own name, wherever its files lie.
        yield Override(name="served-model-name", value=catalog.model.id)
    for override in selection.overrides:
        if override.role == role or (override.role is None and engine):
            yield override


def _offload_gib(selection: Selection, devices: int) -> float:
    if selection.offload_gib is not None:
        return selection.offload_gib
    if selection.host_memory_gib is None:
        return OFFLOAD_GIB
    return int(selection.host_memory_gib * OFFLOAD_SHARE / devices) or selection.host_memory_gib / devices


def _address(arguments: Mapping[str, Argument], *, serves: bool, port: int) -> tuple[str, int]:
    argument = arguments.get("--host")
    host = str(argument.value) if argument else LOOPBACK[0]
    if host not in LOOPBACK and not (argument and argument.variables) and serves:
        raise InputError(
            f"--host {host} would open the server to the network.",
            "Keep 127.0.0.1 and put a gateway with authentication in front: "
            "vLLM's API key covers only some of its paths.",
        )
    return host, _number(arguments, "--port", port, 1, 65535)


def _check_devices(arguments: Mapping[str, Argument], hardware: HardwareEntry, devices: int, nodes: int) -> None:
    tensor = _number(arguments, "--tensor-parallel-size", 1, 1, 4096)
    groups = _number(arguments, "--data-parallel-size", 1, 1, 4096)
    stages = _number(arguments, "--pipeline-parallel-size", 1, 1, 4096)
    if tensor * groups * stages > devices:
        product = " x ".join(str(factor) for factor in (tensor, groups, stages) if factor > 1)
        where = hardware.title if nodes == 1 else f"{nodes} nodes of {hardware.title}"
        raise InputError(
            f"--tensor-parallel-size {product} needs {tensor * groups * stages} devices; {where} has {devices}.",
            f"Set tensor-parallel-size={max(devices // groups // stages, 1)} or less.",
        )


def _number(arguments: Mapping[str, Argument], flag: str, default: int, low: int, high: int) -> int:
    value = arguments[flag].value if flag in arguments else default
    try:
        number = int(str(value))
    except ValueError:
        number = low - 1
    if not low <= number <= high:
        raise InputError(f"{flag} {value} is not a whole number from {low} to {high}.", "Mend the override.")
    return number


# What goes with the processes


def _image(selection: Selection, hardware: HardwareEntry) -> Image | None:
    if selection.image:
        return Image(tag=selection.image, origin=Origin(layer=OVERRIDES, why="Set by you.", basis="chosen"))
    if hardware.image is None:
        return None
    return Image(tag=hardware.image.tag, origin=_origin(hardware.image, f"hardware {selection.hardware}"))


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
        name = _variable(strategy, process.role, process.rank)
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
