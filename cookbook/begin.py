"""The start of a run: its parameters become a deployment and a record. Nothing is started yet.

Both `cookbook run` and a notebook that somebody opens in JupyterLab begin here.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from pydantic import JsonValue

from cookbook import client, machine, smallmodel
from cookbook.catalog import Catalog
from cookbook.deployment import Deployment, Process
from cookbook.errors import InputError
from cookbook.evidence import CommandRecord, Mode, RunRecord, Substitution
from cookbook.launch.preflight import check_port, find_executable
from cookbook.rehearse import Cpu, rehearse
from cookbook.resolve import resolve
from cookbook.selection import Override, named

__all__ = ["Parameters", "Plan", "command_record", "engine_version", "new_run_folder", "plan", "record"]

PACKAGES = ("cookbook", "vllm", "torch", "transformers", "openai", "papermill", "ipykernel")

DEFAULT_PORT = 8000

# Recorded when set, beside the variables that the recipe itself sets. Names only from this list: a whole environment
# holds secrets under names that nobody foresees.
RECORDED = (
    "CUDA_VISIBLE_DEVICES",
    "HF_HUB_OFFLINE",
    "NCCL_IB_HCA",
    "NCCL_SOCKET_IFNAME",
    "OMP_NUM_THREADS",
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
    """

    model: str
    revision: str = ""
    base_url: str = ""
    port: int = DEFAULT_PORT
    ready_timeout_s: float = 3600
    request_timeout_s: float = 600
    rehearse: bool = False

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
        deployment: The one that runs here; the same unless this is a rehearsal.
        substitutions: How the two differ.
    """

    parameters: Parameters
    recipe_deployment: Deployment
    deployment: Deployment
    substitutions: tuple[Substitution, ...]


def plan(catalog: Catalog, recipe: str, parameters: Parameters, *, on_step: Callable[[str], None]) -> Plan:
    """Resolve the recipe, and cut it down where this is a rehearsal.

    Args:
        catalog: The catalog.
        recipe: Name of the recipe.
        parameters: Of the notebook.
        on_step: Told what takes long (preparing the small model).

    Raises:
        InputError: A parameter does not fit, or the engine or the small model is missing here.
    """
    _check(parameters)
    if parameters.base_url and parameters.rehearse:
        raise InputError(
            "rehearse and base_url exclude each other: a rehearsal launches its own server.", "Leave one of them out."
        )
    selection = named(
        catalog,
        recipe,
        model=None if parameters.base_url or parameters.model == catalog.model.id else parameters.model,
        revision=parameters.revision or None,
        # What offload may take is read off the node that is going to pin it.
        host_memory_gib=machine.free_memory_gib() if parameters.mode == "hardware" else None,
        overrides=(Override(name="port", value=parameters.port),) if parameters.port != DEFAULT_PORT else (),
    )
    deployment = resolve(catalog, selection)
    if parameters.mode == "attached":
        attached = deployment.model_copy(update={"served_model_name": parameters.model})
        return Plan(parameters, deployment, attached, ())
    if parameters.mode == "hardware":
        _check_engine(catalog, deployment)
        _check_launch(deployment)
        return Plan(parameters, deployment, deployment, ())
    expected = catalog.rehearsal.engine
    found = engine_version()
    if found != expected.version:
        raise InputError(
            f"A rehearsal needs vLLM {expected.version}; this Python environment has "
            f"{f'vLLM {found}' if found else 'no vLLM'}.",
            "Install it with scripts/install cpu.",
        )
    if len(deployment.processes) > 1:
        raise InputError(
            f"{deployment.title} has {len(deployment.processes)} processes, and a rehearsal launches one so far.",
            "Rehearse a recipe of one node.",
        )
    cpu = Cpu(
        cores=machine.usable_cores(),
        port=_free_port() if parameters.port == DEFAULT_PORT else parameters.port,
        model=smallmodel.prepare(on_step=on_step),
    )
    rehearsal = rehearse(deployment, catalog, cpu)
    _check_launch(rehearsal.deployment)
    return Plan(parameters, deployment, rehearsal.deployment, rehearsal.substitutions)


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


def _check_launch(deployment: Deployment) -> None:
    """Refuse here what the launch would refuse later: no vLLM command, or a port in use."""
    for process in deployment.processes:
        find_executable(process.program[0], os.environ)
        check_port(process.host, process.port)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def new_run_folder(runs: Path, recipe: str) -> Path:
    """Make the folder of a new run: its name is the time in UTC and a random part, and sorts by time.

    Raises:
        InputError: It cannot be made.
    """
    folder = runs / recipe / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
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
