"""What this machine is: processor, memory, accelerators. No host name, no address, no user."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import psutil

from cookbook.evidence import Accelerator, Machine

__all__ = ["free_memory_gib", "inspect", "usable_cores", "used_device_memory", "used_memory"]

NVIDIA_QUERY = ("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")


def usable_cores() -> tuple[int, ...]:
    """Numbers of the CPU cores that this process may run on, ascending."""
    return tuple(sorted(os.sched_getaffinity(0)))


def free_memory_gib() -> float:
    """Memory of this machine that is free, in whole GiB."""
    return float(psutil.virtual_memory().available // 2**30)


def used_memory() -> float:
    """Memory of this machine that is in use, in bytes; what is only cached from files does not count."""
    memory = psutil.virtual_memory()
    return float(memory.total - memory.available)


def used_device_memory() -> float | None:
    """Memory of all NVIDIA devices that is in use, in bytes; None where nvidia-smi does not tell."""
    command = shutil.which("nvidia-smi")
    if not command:
        return None
    query = (command, "--query-gpu=memory.used", "--format=csv,noheader,nounits")
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
        return sum(float(line) for line in answer.stdout.split()) * 2**20
    except (subprocess.SubprocessError, OSError, ValueError):
        return None


def inspect() -> Machine:
    """Look at this machine. What cannot be learned is left empty, never guessed."""
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=_processor(),
        cores=len(usable_cores()),
        memory_bytes=psutil.virtual_memory().total,
        accelerators=_nvidia(),
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _nvidia() -> tuple[Accelerator, ...]:
    command = shutil.which("nvidia-smi")
    if not command:
        return ()
    try:
        answer = subprocess.run([command, *NVIDIA_QUERY], capture_output=True, text=True, timeout=30, check=True)
    except (subprocess.SubprocessError, OSError):
        return ()
    return parse_nvidia_smi(answer.stdout)


def parse_nvidia_smi(text: str) -> tuple[Accelerator, ...]:
    """Devices out of nvidia-smi's CSV of name, memory in MiB and driver version."""
    devices = []
    for line in text.splitlines():
        name, memory, driver = (part.strip() for part in line.rsplit(",", 2))
        devices.append(
            Accelerator(name=name, memory_bytes=int(memory) * 2**20 if memory.isdecimal() else None, driver=driver)
        )
    return tuple(devices)
