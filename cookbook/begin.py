"""The start of a run: its parameters become a deployment and a record. Nothing is started yet.

Both `cookbook run` and a notebook that somebody opens in JupyterLab begin here.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from pydantic import JsonValue

from cookbook import client, machine, smallmodel
from cookbook.catalog import Catalog
from cookbook.deployment import Argument, Deployment, Origin, Process
from cookbook.errors import InputError
from cookbook.evidence import CommandRecord, Mode, RunRecord, Substitution
from cookbook.launch.loan import Loan
from cookbook.launch.preflight import check_port, find_executable
from cookbook.places import filled_in
from cookbook.rehearse import PORTS, Cpu, rehearse
from cookbook.resolve import resolve
from cookbook.selection import Override, named, select

__all__ = [
    "SECOND_TIER",
    "Here",
    "Parameters",
    "Plan",
    "command_record",
    "engine_version",
    "make_run_folder",
    "plan",
    "record",
    "run_folder",
]

PACKAGES = ("cookbook", "vllm", "torch", "transformers", "openai", "papermill", "ipykernel")

DEFAULT_PORT = 8000
SECOND_TIER = "second-tier"
"""Folder in that of a run which stands in for host memory in a rehearsal of KV offload. It goes with the servers."""

# Recorded when set, beside the variables that the recipe itself sets. Names only from this list: a whole environment
# holds secrets under names that nobody foresees.
RECORDED = (
    "CUDA_VISIBLE_DEVICES",
    "HF_HUB_OFFLINE",
    "NCCL_IB_HCA",
    "NCCL_SOCKET_IFNAME",
    "OMP_NUM_THREADS",
    "SLURM_JOB_ID",
    "SLURM_JOB_NUM_NODES",
    "VLLM_LOGGING_LEVEL",
)


@dataclass(frozen=True)
class Parameters:
    """The parameters of a recipe's notebook.

    Attributes:
        model: What to load: a hub name or a folder; at a server that already runs, the name that it serves.
        revision: Commit of the model repository; empty leaves it open.
        base_url: Address of a server that already runs; empty launches one.
        port: Port for the server that is launched; a rehearsal takes a free one unless you name one.
        ready_timeout_s: Bound on the server's start, in seconds.
        request_timeout_s: Bound on one request, in seconds.
        rehearse: Whether to cut the recipe down to this machine's CPU.
        gsm8k: File of GSM8K's questions as JSON lines; empty takes them from the hub.
        beam_1m: File of a long-context benchmark as JSON lines of "prompt" and "answer"; empty asks none.
    """

    model: str
    revision: str = ""
    base_url: str = ""
    port: int = DEFAULT_PORT
    ready_timeout_s: float = 3600
    request_timeout_s: float = 600
    rehearse: bool = False
    gsm8k: str = ""
    beam_1m: str = ""

    @property
    def mode(self) -> Mode:
        """What kind of run this is."""
        if self.base_url:
            return "attached"
        return "rehearsal" if self.rehearse else "hardware"


@dataclass(frozen=True)
class Plan:
    """What is going to run.

    Attributes:
        recipe_deployment: The deployment for the hardware.
        deployment: The one that runs here; the same unless this is a rehearsal, with addresses filled in.
        substitutions: How the two differ.
        in_job: Whether the processes are those of a Slurm job.
    """

    parameters: Parameters
    recipe_deployment: Deployment
    deployment: Deployment
    substitutions: tuple[Substitution, ...]
    in_job: bool = False

    @property
    def own(self) -> tuple[Process, ...]:
        """The processes that this run starts: those of the head; all in a rehearsal, and in a Slurm job."""
        return tuple(process for process in self.deployment.processes if self.in_job or process.node == 0)

    def words(self) -> tuple[tuple[str, ...], ...]:
        """What this machine runs, command by command, without the ports, which differ each time."""
        return tuple(
            (
                process.name,
                *process.program,
                *(
                    word
                    for argument in process.arguments
                    if not argument.flag.endswith("port")
                    for word in argument.words()
                ),
                *(f"{one.name}={one.value}" for one in process.environment if "PORT" not in one.name),
            )
            for process in self.own
        )

    def borrowing(self, loan: Loan) -> Plan:
        """The same with servers that run already, which the record then tells.

        Args:
            loan: Of servers whose commands are those of this plan.
        """
        lent = {server.process.name: server.process for server in loan.servers}
        processes = tuple(lent.get(process.name, process) for process in self.deployment.processes)
        deployment = self.deployment.model_copy(update={"processes": processes})
        if loan.job:
            return replace(self, deployment=deployment)
        change = Substitution(
            what="server",
            original="launched for this page",
            replacement=f"one for the pages of {', '.join(loan.recipes)}",
            reason="Their commands are the same here but for the ports, and starting takes longer than most checks.",
        )
        return replace(self, deployment=deployment, substitutions=(*self.substitutions, change))


@dataclass(frozen=True)
class Here:
    """A flag that one server of a rehearsal gets besides what the rules of rehearsals say.

    Attributes:
        flag: With its dashes.
        value: In place of the one that is there.
        reason: As a sentence.
    """

    flag: str
    value: str
    reason: str


def plan(
    catalog: Catalog,
    recipe: str,
    parameters: Parameters,
    *,
    on_step: Callable[[str], None],
    storage: Path = Path(SECOND_TIER),
    without: str = "",
    here: Here | None = None,
    in_job: bool = False,
) -> Plan:
    """Resolve the recipe, and cut it down where this is a rehearsal.

    Args:
        catalog: The catalog.
        recipe: Name of the recipe.
        parameters: Of the notebook.
        on_step: Told what takes long (preparing the small model).
        storage: Folder that stands in for host memory in a rehearsal of KV offload; it need not exist.
        without: A feature of the recipe to leave out, for the other side of a comparison; empty for none.
        here: What a rehearsal changes besides.
        in_job: Whether a Slurm job runs it: its nodes, and not this one, have to have what it needs, and their
            addresses stay open.

    Raises:
        InputError: A parameter does not fit, or the engine or the small model is missing here.
    """
    _check(parameters)
    if parameters.base_url and parameters.rehearse:
        raise InputError(
            "rehearse and base_url exclude each other: a rehearsal launches its own server.", "Leave one of them out."
        )
    features = catalog.recipes[select(catalog, recipe)].features
    selection = named(
        catalog,
        recipe,
        features=tuple(feature for feature in features if feature != without),
        model=None if parameters.base_url or parameters.model == catalog.model.id else parameters.model,
        revision=parameters.revision or None,
        # What offload may take is read off the node that is going to pin it.
        host_memory_gib=machine.free_memory_gib() if parameters.mode == "hardware" and not in_job else None,
        overrides=_port(catalog, recipe, parameters.port),
    )
    deployment = resolve(catalog, selection)
    if parameters.mode == "attached":
        attached = deployment.model_copy(update={"served_model_name": parameters.model})
        return Plan(parameters, deployment, attached, ())
    if parameters.mode == "hardware" and in_job:
        return Plan(parameters, deployment, deployment, (), in_job)
    if parameters.mode == "hardware":
        _check_engine(catalog, deployment)
        addresses = {address.name: os.environ.get(address.name, "") for address in deployment.addresses}
        processes = tuple(filled_in(process, addresses) for process in deployment.processes)
        found = Plan(parameters, deployment, deployment.model_copy(update={"processes": processes}), ())
        _check_launch(found.own)
        return found
    expected = catalog.rehearsal.engine
    found_engine = engine_version()
    if found_engine != expected.version:
        raise InputError(
            f"A rehearsal needs vLLM {expected.version}; this Python environment has "
            f"{f'vLLM {found_engine}' if found_engine else 'no vLLM'}.",
            "Install it with scripts/install cpu.",
        )
    port, *ports = _free_ports(1 + PORTS)
    cpu = Cpu(
        cores=machine.usable_cores(),
        port=port if parameters.port == DEFAULT_PORT else parameters.port,
        ports=tuple(ports),
        model=smallmodel.prepare(on_step=on_step),
        storage=storage,
        apart=in_job,
    )
    rehearsal = rehearse(deployment, catalog, cpu)
    if not in_job:
        _check_launch(rehearsal.deployment.processes)
    found = Plan(parameters, deployment, rehearsal.deployment, rehearsal.substitutions, in_job)
    return _changed(found, here) if here else found


def _changed(found: Plan, here: Here) -> Plan:
    """The plan with one more substitution."""
    origin = Origin(layer="rehearsal", why=here.reason, basis="chosen")
    new = Argument(flag=here.flag, value=here.value, origins=(origin,))
    processes = tuple(
        process.model_copy(update={"arguments": tuple(new if a.flag == here.flag else a for a in process.arguments)})
        for process in found.deployment.processes
    )
    original = str(found.recipe_deployment.processes[0].value(here.flag) or "")
    change = Substitution(what=here.flag, original=original, replacement=here.value, reason=here.reason)
    kept = tuple(one for one in found.substitutions if one.what != here.flag)
    deployment = found.deployment.model_copy(update={"processes": processes})
    return replace(found, deployment=deployment, substitutions=(*kept, change))


def _port(catalog: Catalog, recipe: str, port: int) -> tuple[Override, ...]:
    """The override of the port that clients use: of the router, where there is one."""
    if port == DEFAULT_PORT:
        return ()
    entry = catalog.strategies[catalog.recipes[recipe].strategy].entry
    return (Override(name="port", value=port, role=None if entry == "engine" else entry),)


def _check(parameters: Parameters) -> None:
    for name in ("ready_timeout_s", "request_timeout_s"):
        if getattr(parameters, name) <= 0:
            raise InputError(f"{name} is {getattr(parameters, name)}.", "It is a number of seconds above 0.")
    if not parameters.model:
        raise InputError("model is empty.", "Name a model or a folder.")
    if parameters.base_url:
        client.server_url(parameters.base_url)


def engine_version() -> str | None:
    """Version of the vLLM in this Python environment, or None. It is read, not imported: that would take 10 s."""
    try:
        return metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return None


def _check_engine(catalog: Catalog, deployment: Deployment) -> None:
    """Refuse a vLLM that does not know the model, before minutes of loading show it.

    The version alone does not tell: nobody states what the images made for K3.1 call themselves. So the registry's file
    is searched for the architecture. A vLLM outside this Python environment is left to the launch.
    """
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        return
    registry = Path(spec.origin).parent / "model_executor" / "models" / "registry.py"
    engine = catalog.model.engine
    if registry.exists() and engine.architecture not in registry.read_text():
        image = f"the image {deployment.image.tag}" if deployment.image else "a build made for this model"
        raise InputError(
            f"vLLM {engine_version() or 'here'} does not know {engine.architecture}, so it cannot serve "
            f"{catalog.model.title}.",
            f"Use {image} or a vLLM newer than {engine.newer_than}. To rehearse on a CPU: rehearse=True, or --on cpu.",
        )


def _check_launch(processes: Iterable[Process]) -> None:
    """Refuse here what the launch would refuse later: no vLLM command, or a port in use."""
    for process in processes:
        find_executable(process.program[0], os.environ)
        if process.serves:
            check_port(process.host, process.port)


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, each another one."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def run_folder(runs: Path, recipe: str) -> Path:
    """Path of the folder of a new run: its name is the time in UTC and a random part, and sorts by time."""
    return runs / recipe / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"


def make_run_folder(folder: Path) -> Path:
    """Make the folder of a run, and return it.

    Raises:
        InputError: It cannot be made.
    """
    try:
        (folder / "logs").mkdir(parents=True)
    except OSError as error:
        raise InputError(
            f"{folder} cannot be made: {error.strerror}.", "Name a folder that you may write to with --output."
        ) from error
    return folder


def record(plan: Plan, folder: Path) -> RunRecord:
    """The record of a run that has just begun. Its id is the folder's name."""
    deployment, parameters = plan.deployment, plan.parameters
    names = {variable.name for process in deployment.processes for variable in process.environment} | set(RECORDED)
    return RunRecord(
        run_id=folder.name,
        recipe=deployment.recipe,
        title=deployment.title,
        mode=parameters.mode,
        started_at=datetime.now(UTC),
        hardware=deployment.hardware,
        hardware_title=deployment.hardware_title,
        machine=machine.inspect(),
        versions=_versions(),
        model=deployment.model,
        served_model_name=deployment.served_model_name,
        image=deployment.image.tag if deployment.image and parameters.mode == "hardware" else None,
        commands=(),
        environment={name: os.environ[name] for name in sorted(names & os.environ.keys())},
        parameters=_as_json(parameters),
        substitutions=plan.substitutions,
    )


def command_record(process: Process) -> CommandRecord:
    """A process's command, for the record."""
    return CommandRecord(
        name=process.name,
        role=process.role,
        node=process.node,
        argv=process.argv,
        environment={variable.name: variable.value for variable in process.environment},
    )


def _as_json(parameters: Parameters) -> dict[str, JsonValue]:
    return {name: getattr(parameters, name) for name in parameters.__dataclass_fields__}


def _versions() -> dict[str, str]:
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
