"""What a machine has of what a recipe needs. It looks, and changes nothing; what it cannot tell it says so."""

from __future__ import annotations

import glob
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal

import psutil

from cookbook.capacity import GIB, offload_bytes_per_device
from cookbook.catalog import Catalog
from cookbook.catalog.schema import SeenEntry
from cookbook.deployment import Deployment, Frozen, Process

__all__ = ["Finding", "examine"]

SHARED_MEMORY_GIB = 16
"""Of /dev/shm, a node: workers pass tensors of images and long prompts through it."""
COMMAND_LIMIT_S = 30

State = Literal["ok", "missing", "unknown"]


class Finding(Frozen):
    """One thing that was looked at.

    Attributes:
        what: Its name.
        state: "unknown" where this machine cannot tell.
        found: What there is.
        todo: The way out where something is missing.
    """

    what: str
    state: State
    found: str
    todo: str = ""


def examine(catalog: Catalog, deployment: Deployment, node: int, cache: Path) -> tuple[Finding, ...]:
    """Hold this machine against what one node of a deployment needs.

    Args:
        catalog: How devices are seen, and the model's size.
        deployment: What is going to run.
        node: As which of its nodes this machine would serve.
        cache: Folder of the Hugging Face cache.
    """
    processes = [process for process in deployment.processes if process.node == node]
    return (
        *_devices(catalog, deployment, processes),
        *_engine(catalog, deployment, processes),
        *_disk(catalog, deployment, cache),
        *_memory(processes),
        *_ports(processes),
        *_addresses(deployment),
        *_image(deployment),
    )


def _devices(catalog: Catalog, deployment: Deployment, processes: list[Process]) -> Iterator[Finding]:
    hardware = catalog.hardware[deployment.hardware]
    needed = max((process.devices for process in processes), default=0)
    seen, how = _count(catalog.vendors[hardware.vendor].seen)
    what = f"devices ({hardware.title})"
    if hardware.model:
        cores = psutil.cpu_count() or 0
        state: State = "ok" if cores >= needed else "missing"
        yield Finding(
            what=what, state=state, found=f"{cores} CPU cores", todo="" if state == "ok" else f"{needed} cores."
        )
    elif seen >= needed:
        yield Finding(what=what, state="ok", found=f"{seen} seen ({how})")
    else:
        todo = f"This node needs {needed}. Run this on such a node, with its driver."
        yield Finding(what=what, state="missing", found=f"{seen} seen ({how})", todo=todo)


def _count(ways: tuple[SeenEntry, ...]) -> tuple[int, str]:
    """Devices of this machine, and how they were looked for: the first way that sees any. Never raises."""
    tried = []
    for way in ways:
        number, how = _look(way)
        if number:
            return number, how
        tried.append(how)
    return 0, ", ".join(tried)


def _look(seen: SeenEntry) -> tuple[int, str]:
    files = {name for pattern in seen.paths for name in glob.glob(pattern)}  # noqa: PTH207  # patterns are absolute
    if seen.command and seen.line:
        tool = shutil.which(seen.command[0])
        if tool is None:
            return len(files), f"no {seen.command[0]}"
        try:
            done = subprocess.run(
                [tool, *seen.command[1:]], capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            return len(files), f"{seen.command[0]} fails: {type(error).__name__}"
        lines = [line for line in done.stdout.splitlines() if re.search(seen.line, line)]
        return len(lines), " ".join(seen.command)
    return len(files), ", ".join(seen.paths)


def _engine(catalog: Catalog, deployment: Deployment, processes: list[Process]) -> Iterator[Finding]:
    for program in dict.fromkeys(process.program[0] for process in processes):
        path = shutil.which(program, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
        todo = "Run this in the image, or install it."
        if deployment.install:
            todo = f"Install it: {'; '.join(step.command for step in deployment.install)}"
        yield Finding(
            what=f"command {program}",
            state="ok" if path else "missing",
            found=path or "not on PATH",
            todo="" if path else todo,
        )
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        yield Finding(what="vLLM", state="unknown", found="not in this Python environment")
        return
    registry = Path(spec.origin).parent / "model_executor" / "models" / "registry.py"
    architecture = catalog.model.engine.architecture
    version = metadata.version("vllm")
    if catalog.hardware[deployment.hardware].model:
        yield Finding(what="vLLM", state="ok", found=version)
    elif registry.exists() and architecture in registry.read_text():
        yield Finding(what="vLLM", state="ok", found=f"{version}, knows {architecture}")
    else:
        todo = f"Take an image made for the model, or a vLLM newer than {catalog.model.engine.newer_than}."
        yield Finding(what="vLLM", state="missing", found=f"{version} does not know {architecture}", todo=todo)


def _disk(catalog: Catalog, deployment: Deployment, cache: Path) -> Iterator[Finding]:
    if catalog.hardware[deployment.hardware].model:
        return
    name = deployment.model.replace("/", "--")
    needed = catalog.model.shape.checkpoint_bytes
    snapshot = cache / "hub" / f"models--{name}"
    if snapshot.exists():
        yield Finding(what="checkpoint", state="ok", found=str(snapshot))
        return
    there = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    enough = free >= needed
    todo = "" if enough else f"{needed / 1e12:.2f} TB are needed. Point HF_HOME at storage that every node reads."
    yield Finding(
        what="disk for the checkpoint",
        state="ok" if enough else "missing",
        found=f"{free / 1e12:.2f} TB free at {there}",
        todo=todo,
    )


def _memory(processes: list[Process]) -> Iterator[Finding]:
    wanted = sum(offload_bytes_per_device(process) * process.devices for process in processes)
    free = psutil.virtual_memory().available
    if wanted:
        enough = free >= wanted
        per_device = max(offload_bytes_per_device(process) for process in processes) / GIB
        todo = "" if enough else "Give the size by --offload, or this machine's memory by --host-memory here."
        yield Finding(
            what="host memory for the offload",
            state="ok" if enough else "missing",
            found=f"{free / GIB:.0f} GiB free, {wanted / GIB:.0f} GiB wanted ({per_device:g} GiB a device)",
            todo=todo,
        )
    shared = Path("/dev/shm")  # noqa: S108  # where POSIX shared memory lies
    if not shared.exists():
        yield Finding(what="shared memory", state="unknown", found="no /dev/shm")
        return
    size = shutil.disk_usage(shared).total / GIB
    enough = size >= SHARED_MEMORY_GIB
    todo = "" if enough else f"{SHARED_MEMORY_GIB} GiB are safe: docker run --ipc=host, or --shm-size."
    yield Finding(
        what="shared memory", state="ok" if enough else "missing", found=f"{size:.1f} GiB in /dev/shm", todo=todo
    )


def _ports(processes: list[Process]) -> Iterator[Finding]:
    for process in processes:
        if process.serves:
            free = _is_free(process.port)
            yield Finding(
                what=f"port {process.port} ({process.role})",
                state="ok" if free else "missing",
                found="free" if free else "in use",
                todo="" if free else "Stop what listens there, or --set port=… .",
            )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _addresses(deployment: Deployment) -> Iterator[Finding]:
    if deployment.addresses:
        names = ", ".join(address.name for address in deployment.addresses)
        found = f"{deployment.nodes} nodes; this machine sees itself only"
        yield Finding(what="other nodes", state="unknown", found=found, todo=f"Set on every node: {names}.")


def _image(deployment: Deployment) -> Iterator[Finding]:
    if deployment.image is None:
        return
    docker = shutil.which("docker")
    if docker is None:
        found = f"no docker here; {deployment.image.tag} ({deployment.image.origin.basis})"
        yield Finding(what="image", state="unknown", found=found)
        return
    command = [docker, "image", "inspect", "--format", "{{.Id}}", deployment.image.tag]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        yield Finding(what="image", state="unknown", found=f"docker fails: {type(error).__name__}")
        return
    there = done.returncode == 0
    yield Finding(
        what="image",
        state="ok" if there else "missing",
        found=done.stdout.strip() if there else f"{deployment.image.tag} is not on this machine",
        todo="" if there else f"docker pull {deployment.image.tag}",
    )
