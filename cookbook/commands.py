"""A selection becomes processes: which run on which node, and the layers of each one's command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from cookbook.capacity import GIB
from cookbook.catalog import Catalog
from cookbook.catalog.schema import HardwareEntry, Place, RoleEntry, StrategyEntry
from cookbook.deployment import Argument, Process, Role
from cookbook.errors import InputError
from cookbook.layers import Builder, variables
from cookbook.rules import Violation, violations
from cookbook.selection import Override, Selection

__all__ = ["LOOPBACK", "Attempt", "address_name", "allowed", "attempt", "commands", "offload_gib", "place_of"]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
OFFLOAD_GIB = 128
"""For each device, where neither a size nor the host's memory is given: what the tested GB300 prefill workers used."""
OFFLOAD_SHARE = 0.9
"""Of the host memory that is free: the rest is left to the operating system and the page cache."""


@dataclass(frozen=True)
class Attempt:
    """What a selection of existing names comes to.

    Attributes:
        errors: Rules that forbid it.
        warnings: Rules that only warn.
        processes: Its commands; none where a rule on names alone forbids it.
    """

    errors: tuple[Violation, ...]
    warnings: tuple[Violation, ...]
    processes: tuple[Process, ...]


def attempt(catalog: Catalog, selection: Selection) -> Attempt:
    """Build the commands of a selection and hold the rules against them.

    Raises:
        InputError: An override cannot be applied, or the devices do not divide.
        CatalogError: Two layers want different values for the same JSON key.
    """
    place = place_of(catalog, selection)
    # Rules on names alone come first: what they refuse may not even make sense as a command.
    early = tuple(one for one in violations(catalog, selection, place, ()) if one.severity == "error")
    if early:
        return Attempt(early, (), ())
    processes = tuple(_processes(catalog, selection))
    found = violations(catalog, selection, place, processes)
    errors = tuple(one for one in found if one.severity == "error")
    return Attempt(errors, tuple(one for one in found if one.severity == "warning"), processes)


def allowed(catalog: Catalog, selection: Selection) -> tuple[Violation, ...]:
    """What forbids a selection of existing names; nothing where it is allowed. Raises as `attempt` does."""
    return attempt(catalog, selection).errors


def commands(catalog: Catalog, selection: Selection) -> tuple[Process, ...]:
    """The processes of a selection that is allowed, none of one that is not. Raises as `attempt` does."""
    tried = attempt(catalog, selection)
    return () if tried.errors else tried.processes


def place_of(catalog: Catalog, selection: Selection) -> Place:
    """The selection as the conditions of the catalog see it."""
    hardware = catalog.hardware[selection.hardware]
    return Place(
        hardware=selection.hardware,
        vendor=hardware.vendor,
        family=hardware.family,
        strategy=selection.strategy,
        features=frozenset(selection.features),
    )


def _processes(catalog: Catalog, selection: Selection) -> Iterator[Process]:
    hardware, strategy = catalog.hardware[selection.hardware], catalog.strategies[selection.strategy]
    nodes = _nodes(selection, hardware, strategy)
    first: dict[Role, int] = {}
    following = 0
    for role, entry in strategy.roles.items():
        first[role] = first[entry.beside] if entry.beside else following
        following += 0 if entry.beside else nodes[role]
    names = {role: [address_name(strategy, role, rank) for rank in range(nodes[role])] for role in strategy.roles}
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


def address_name(strategy: StrategyEntry, role: Role, rank: int) -> str:
    """The shell variable that holds the address of a role's node."""
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
        place = place_of(catalog, selection).model_copy(
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
            "offload_bytes": int(offload_gib(selection, hardware.devices_per_node) * GIB),
            "self": f"${{{names[rank]}}}",
            "head": f"${{{names[0]}}}",
            **{name: list(values) for name, values in urls.items()},
        }
        builder = Builder(place, marks)
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
                yield argument.model_copy(update={"value": value, "variables": variables(value)})
        else:
            yield argument


def _all_overrides(catalog: Catalog, selection: Selection, role: Role, *, engine: bool) -> Iterator[Override]:
    if engine and selection.revision:
        yield Override(name="revision", value=selection.revision)
    if engine and selection.model and selection.model != catalog.model.id:
        # Clients keep using the model's own name, wherever its files lie.
        yield Override(name="served-model-name", value=catalog.model.id)
    for override in selection.overrides:
        if override.role == role or (override.role is None and engine):
            yield override


def offload_gib(selection: Selection, devices: int) -> float:
    """Host memory in GiB for each of a node's devices: as given, or out of what is free, or as was tested."""
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
