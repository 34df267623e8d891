"""A deployment cut down to a CPU, and the list of what was replaced or left out, each with its reason.

The processes stay: nodes become processes of this machine, a core each, and a pool keeps one or two of them. Pure: it
is told what the machine has and never looks. A flag of the catalog that the rehearsal has no rule for is an error, so
nothing is left out in silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from cookbook.capacity import offload_bytes_per_device
from cookbook.catalog import Catalog
from cookbook.catalog.schema import Rule
from cookbook.deployment import Address, Argument, Claim, Deployment, EnvVar, Frozen, Notice, Origin, Process, Role
from cookbook.errors import CatalogError, InputError
from cookbook.evidence import Substitution
from cookbook.layers import OVERRIDES
from cookbook.places import LOOPBACK, filled_in

__all__ = ["PORTS", "Cpu", "Rehearsal", "rehearse", "threads_bind"]

NOTICE = "Rehearsed on a CPU with a small model: no number here is a number of the hardware."
LAYER = "rehearsal"
FEW_BLOCKS = 24  # A half more than the longest prompt needs.
BLOCK_TOKENS = 128  # Of vLLM's CPU backend.
PORTS = 12
"""Free ports that the largest rehearsal may take beside the one that clients use."""


class Cpu(Frozen):
    """What a rehearsal may use of this machine.

    Attributes:
        cores: Numbers of the CPU cores that this process may run on, ascending.
        port: A free TCP port, for clients.
        ports: Further free TCP ports, for what the processes say to each other.
        model: Folder of the small model.
        storage: Folder that stands in for host memory; it need not exist.
        apart: Whether each engine runs on a node of its own, whose address is known only there; else all run here.
    """

    cores: tuple[int, ...]
    port: int
    ports: tuple[int, ...] = ()
    model: Path
    storage: Path = Path("kv")
    apart: bool = False


class Rehearsal(Frozen):
    """The deployment that runs here, and how it differs from the one for the hardware."""

    deployment: Deployment
    substitutions: tuple[Substitution, ...]


def threads_bind(cores: tuple[int, ...], groups: int) -> str:
    """The cores of each worker, as VLLM_CPU_OMP_THREADS_BIND takes them, for example "0,1|2,3"."""
    share = len(cores) // groups
    return "|".join(",".join(map(str, cores[group * share : (group + 1) * share])) for group in range(groups))


def rehearse(deployment: Deployment, catalog: Catalog, cpu: Cpu) -> Rehearsal:
    """Cut `deployment` down to this machine.

    Returns:
        The deployment with the small model, and the list of substitutions in the order of the commands; what several
        processes have in common stands once.

    Raises:
        InputError: There are too few ports.
        CatalogError: A flag or variable of the catalog has no rule.
    """
    rules = catalog.rehearsal
    kept = _kept(deployment, rules.nodes)
    changes = [
        Substitution(what="model", original=deployment.model, replacement=rules.model.name, reason=rules.model.reason)
    ]
    if len(kept) < len(deployment.processes):
        changes.append(_fewer(deployment.processes, kept, rules.nodes_reason))
    seats = _seats(kept, cpu)
    nodes = _nodes(kept) if cpu.apart else dict.fromkeys({process.node for process in kept}, 0)
    processes = []
    for process in kept:
        rehearsed = _Rewriter(catalog, deployment, cpu, seats, process)
        processes.append(rehearsed.process().model_copy(update={"node": nodes[process.node]}))
        changes += rehearsed.changes
    if deployment.image:
        changes.append(
            Substitution(
                what="image",
                original=deployment.image.tag,
                replacement=f"vLLM {rules.engine.version} in this Python environment",
                reason="The image is for other hardware.",
            )
        )
    changes.append(
        Substitution(
            what="max_tokens of long answers",
            original=str(catalog.model.max_tokens),
            replacement=str(rules.max_tokens.value),
            reason=rules.max_tokens.reason,
        )
    )
    claims, left_out = _claims(deployment, processes, rules.kv_elements_per_token)
    return Rehearsal(
        deployment=deployment.model_copy(
            update={
                "model": str(cpu.model),
                "served_model_name": rules.model.name,
                "image": None,
                "install": (),
                "addresses": _addresses(deployment, nodes) if cpu.apart else (),
                "nodes": 1 + max(nodes.values()),
                "processes": tuple(processes),
                "claims": claims,
                "notices": (Notice(kind="rehearsal", text=NOTICE), *deployment.notices),
            }
        ),
        substitutions=tuple(dict.fromkeys((*changes, *left_out))),
    )


# Which processes, and what each may use


def _kept(deployment: Deployment, nodes: Mapping[Role, int]) -> tuple[Process, ...]:
    several = len({process.role for process in deployment.processes}) > 1
    limit = {role: 1 if several else count for role, count in nodes.items()}
    return tuple(process for process in deployment.processes if process.rank < limit.get(process.role, 1))


def _nodes(kept: Iterable[Process]) -> dict[int, int]:
    """The nodes that are left, numbered anew."""
    return {node: index for index, node in enumerate(sorted({process.node for process in kept}))}


def _addresses(deployment: Deployment, nodes: Mapping[int, int]) -> tuple[Address, ...]:
    return tuple(
        address.model_copy(update={"node": nodes[address.node]})
        for address in deployment.addresses
        if address.node in nodes
    )


def _fewer(before: Iterable[Process], after: Iterable[Process], reason: str) -> Substitution:
    def names(processes: Iterable[Process]) -> str:
        return ", ".join(process.name for process in processes)

    return Substitution(what="processes", original=names(before), replacement=names(after), reason=reason)


@dataclass(frozen=True)
class Seat:
    """What one process has of this machine, and its place among those that are kept.

    Attributes:
        count: Processes of its role.
        workers: Of this process.
        cores: Those of its workers, in groups.
        port: Where it listens.
        side_port: For NIXL's handshakes.
        group_port: Where the processes of a role find each other: the same for all of them.
        metrics_port: Of a router.
    """

    count: int
    workers: int
    cores: str
    port: int
    side_port: int
    group_port: int
    metrics_port: int


def _seats(kept: tuple[Process, ...], cpu: Cpu) -> dict[str, Seat]:
    engines = [process for process in kept if process.role != "router"]
    entry = kept[-1] if kept[-1].role == "router" else engines[0]
    ports = iter(cpu.ports)

    def port() -> int:
        try:
            return next(ports)
        except StopIteration:
            raise InputError(f"{len(cpu.ports)} ports are too few for this rehearsal.", f"Give it {PORTS}.") from None

    alone = len(engines) == 1
    groups: dict[str, int] = {}
    seats = {}
    for index, process in enumerate(engines):
        workers = 2 if alone and len(cpu.cores) > 1 and _number(process, "--tensor-parallel-size") > 1 else 1
        own = cpu.cores if alone else (cpu.cores[index % len(cpu.cores)],)
        needs = not alone
        if needs and process.role not in groups:
            groups[process.role] = port()
        seats[process.name] = Seat(
            count=sum(other.role == process.role for other in engines),
            workers=workers,
            cores=threads_bind(own, workers),
            port=cpu.port if process is entry else port(),
            side_port=port() if needs else 0,
            group_port=groups.get(process.role, 0),
            metrics_port=0,
        )
    for process in kept:
        if process.role == "router":
            seats[process.name] = Seat(1, 0, "", cpu.port, 0, 0, port())
    return seats


def _number(process: Process, flag: str) -> int:
    return int(str(process.value(flag) or 1))


class _Rewriter:
    """One process, rewritten by the rules, and what that changes."""

    def __init__(
        self, catalog: Catalog, deployment: Deployment, cpu: Cpu, seats: Mapping[str, Seat], process: Process
    ) -> None:
        self.changes: list[Substitution] = []
        self._rules = catalog.rehearsal
        self._deployment = deployment
        self._cpu = cpu
        self._seats = seats
        self._before = process
        self._engine = process.role != "router"
        # Clients of a router are on its node, with or without others.
        self._apart = cpu.apart and self._engine
        seat = seats[process.name]
        groups = seat.count if _number(process, "--data-parallel-size") > 1 and seat.count > 1 else None
        spans = seat.count if seat.count > 1 and groups is None else None
        self._marks: dict[str, JsonValue] = {
            "{tensor_parallel}": spans or (1 if groups else seat.workers),
            "{nodes}": spans,
            "{rank}": process.rank if spans else None,
            "{loopback_of_nodes}": LOOPBACK if spans else None,
            "{group_port}": seat.group_port if spans else None,
            "{data_parallel}": groups,
            "{data_parallel_local}": 1 if groups else None,
            "{data_parallel_start}": process.rank if groups else None,
            "{loopback_of_groups}": LOOPBACK if groups else None,
            "{rpc_port}": seat.group_port if groups else None,
            "{headless}": seat.count if seat.count > 1 else None,
            "{port}": seat.port,
            "{side_port}": str(seat.side_port) if seat.side_port else None,
            "{metrics_port}": seat.metrics_port or None,
            "{threads_bind}": seat.cores,
            "{model}": str(cpu.model),
            "{storage}": str(cpu.storage),
            "{few_blocks}": FEW_BLOCKS if offload_bytes_per_device(process) else None,
        }

    def process(self) -> Process:
        """The process that runs here."""
        arguments = tuple(self._arguments())
        environment = tuple(self._environment())
        program = self._before.program
        if self._engine:
            program = (*program[:-1], str(self._cpu.model))
        rewritten = self._before.model_copy(
            update={
                "program": program,
                "arguments": arguments,
                "environment": environment,
                "host": self._before.host if self._apart else LOOPBACK,
                "port": self._seats[self._before.name].port,
                "devices": 0,
            }
        )
        if self._cpu.apart:
            return rewritten
        return filled_in(rewritten, {address.name: LOOPBACK for address in self._deployment.addresses})

    def _arguments(self) -> Iterator[Argument]:
        present = set()
        for argument in self._before.arguments:
            for rewritten in self._argument(argument):
                present.add(rewritten.flag)
                yield rewritten
        added = self._rules.added_args if self._engine else self._rules.added_router_args
        for flag, addition in added.items():
            value = self._fill(addition.value)
            if (addition.value is None or value is not None) and flag not in present:
                yield Argument(flag=flag, value=value, origins=(_origin(addition.reason),))
                self._note(flag, "", str(value if value is not None else "on"), addition.reason)

    def _argument(self, argument: Argument) -> Iterator[Argument]:
        if argument.flag == "--kv-transfer-config" and isinstance(argument.value, dict):
            yield from self._transfer(argument, argument.value)
            return
        if argument.flag in {"--prefill", "--decode"}:
            yield from self._server(argument)
            return
        rule = _rule(self._rules.args, argument.flag, argument.origins)
        original = " ".join(argument.words()[1:]) or "on"
        lacks = rule.needs is not None and self._marks[rule.needs] is None
        if rule.keep and not lacks:
            yield argument
            return
        new = None if rule.drop or lacks else self._fill(rule.replace)
        if new == LOOPBACK and self._apart:
            yield argument
            return
        replacement = None if new is None else " ".join(Argument(flag="-", value=new, origins=()).words()[1:])
        if replacement != original:
            self._note(argument.flag, original, replacement, rule.reason)
        if new is not None:
            yield Argument(flag=argument.flag, value=new, origins=(_origin(rule.reason),))

    def _server(self, argument: Argument) -> Iterator[Argument]:
        """A server that the router is told of, where it is kept: at its port on this machine."""
        role, rank = argument.flag.removeprefix("--"), int(argument.variables[0].split("_")[-2])
        seat = self._seats.get(f"{role}-{rank}")
        apart = self._cpu.apart
        reason = "A port that is free." if apart else "The servers of a rehearsal listen on this machine."
        host = f"${{{argument.variables[0]}}}" if apart else LOOPBACK
        new = f"http://{host}:{seat.port}" if seat else None
        self._note(argument.flag, str(argument.value), new, reason)
        if new:
            named = argument.variables if apart else ()
            yield Argument(flag=argument.flag, value=new, origins=(_origin(reason),), variables=named)

    def _transfer(self, argument: Argument, config: dict[str, JsonValue]) -> Iterator[Argument]:
        """Each connector becomes the one that a CPU has in its place, also inside a MultiConnector."""
        new, reasons = self._connector(config)
        reason = " ".join(dict.fromkeys(reasons))
        original = " ".join(argument.words()[1:])
        if new is None:
            self._note(argument.flag, original, None, reason)
            return
        rewritten = Argument(flag=argument.flag, value=new, origins=(_origin(reason),))
        self._note(argument.flag, original, rewritten.words()[1], reason)
        yield rewritten

    def _connector(self, config: dict[str, JsonValue]) -> tuple[dict[str, JsonValue] | None, list[str]]:
        extra = config.get("kv_connector_extra_config")
        children = extra.get("connectors") if isinstance(extra, dict) else None
        if isinstance(children, list):
            pairs = [self._connector(child) for child in children if isinstance(child, dict)]
            inner: list[JsonValue] = [new for new, _ in pairs if new is not None]
            reasons = [reason for _, one in pairs for reason in one]
            return {**config, "kv_connector_extra_config": {"connectors": inner}} if inner else None, reasons
        entry = self._rules.connectors.get(str(config.get("kv_connector")))
        if entry is None:
            raise CatalogError(
                "rehearsal.yaml",
                f"connectors.{config.get('kv_connector')}",
                "has no rule.",
                "Say which connector takes its place on a CPU, and why.",
            )
        filled = self._fill(entry.replace)
        return filled if isinstance(filled, dict) else None, [entry.reason]

    def _environment(self) -> Iterator[EnvVar]:
        for variable in self._before.environment:
            rule = _rule(self._rules.env, variable.name, (variable.origin,))
            if rule.keep:
                yield variable
                continue
            new = None if rule.drop else self._fill(rule.replace)
            if new == LOOPBACK and self._apart:
                yield variable
                continue
            if new != variable.value:
                self._note(variable.name, variable.value, None if new is None else str(new), rule.reason)
            if new is not None:
                yield EnvVar(name=variable.name, value=str(new), origin=_origin(rule.reason))
        if self._engine:
            for name, addition in self._rules.added_env.items():
                value = str(self._fill(addition.value))
                yield EnvVar(name=name, value=value, origin=_origin(addition.reason))
                self._note(name, "", value, addition.reason)

    def _fill(self, value: JsonValue) -> JsonValue:
        if isinstance(value, dict):
            return {key: self._fill(inner) for key, inner in value.items()}
        return self._marks.get(value, value) if isinstance(value, str) else value

    def _note(self, what: str, original: str, replacement: str | None, reason: str) -> None:
        self.changes.append(Substitution(what=what, original=original, replacement=replacement, reason=reason))


def _rule(rules: Mapping[str, Rule], name: str, origins: tuple[Origin, ...]) -> Rule:
    if name in rules:
        return rules[name]
    if all(origin.layer == OVERRIDES for origin in origins):
        return Rule(keep=True)
    section = "args" if name.startswith("--") else "env"
    raise CatalogError(
        "rehearsal.yaml",
        f"{section}.{name}",
        "has no rule.",
        "Say whether a rehearsal keeps, replaces or drops it, and why.",
    )


def _origin(reason: str) -> Origin:
    return Origin(layer=LAYER, why=reason, basis="chosen")


def _claims(
    deployment: Deployment, processes: list[Process], elements_per_token: int
) -> tuple[tuple[Claim, ...], list[Substitution]]:
    """No published figure is about a CPU: the KV cache is held against the small model's arithmetic instead."""
    left_out = [
        Substitution(
            what=f"claim {claim.name}",
            original=f"{claim.value:g} {claim.unit}",
            replacement=None,
            reason="A CPU cannot show it.",
        )
        for claim in deployment.claims
    ]
    first = processes[0]
    role = [process for process in processes if process.role == first.role]
    workers = _number(first, "--tensor-parallel-size")
    engines = len(role) if _number(first, "--data-parallel-size") > 1 else 1
    # A draft model has a cache of its own in the same blocks; here it is the same model.
    copies = 2 if first.has("--speculative-config") else 1
    elements_per_token *= copies
    bytes_per_element = 1 if str(first.value("--kv-cache-dtype") or "auto").startswith("fp8") else 2
    gib = next(v.value for v in first.environment if v.name == "VLLM_CPU_KVCACHE_SPACE")
    tokens = int(float(gib) * 2**30 * workers / (elements_per_token * bytes_per_element)) * engines
    statement = (
        f"{gib} GiB for each of {workers * engines} worker(s), at {elements_per_token // workers} elements of "
        f"{bytes_per_element} byte(s) a token and worker, hold {tokens:,} tokens of the small model."
    )
    if first.has("--num-gpu-blocks-override"):
        blocks = _number(first, "--num-gpu-blocks-override")
        tokens = blocks * BLOCK_TOKENS * engines
        statement = f"{blocks} blocks of {BLOCK_TOKENS} tokens hold {tokens:,} tokens."
    claim = Claim(
        name="kv_cache_tokens",
        statement=statement,
        value=tokens,
        unit="tokens",
        tolerance=0.01,
        basis="chosen",
        source="cpu_measurement",
    )
    return (claim,), left_out
