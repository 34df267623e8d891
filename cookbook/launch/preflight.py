"""What has to hold before a server is started: a command to run, a free port, a log that can be written."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from cookbook.errors import InputError

__all__ = ["check_log", "check_port", "find_executable", "port_holders"]


def find_executable(name: str, environ: Mapping[str, str]) -> str:
    """The command of this Python environment, else the one on PATH.

    Args:
        name: The command, for example "vllm".
        environ: Its PATH is searched.

    Raises:
        InputError: There is none.
    """
    beside = Path(sys.executable).parent / name
    if os.access(beside, os.X_OK):
        return str(beside)
    found = shutil.which(name, path=environ.get("PATH", os.defpath))
    if found is None:
        version = ".".join(map(str, sys.version_info[:3]))
        raise InputError(
            f"There is no `{name}` command, neither beside {sys.executable} (Python {version}) nor on PATH.",
            "Run this in the image that the recipe names, or install the CPU engine: scripts/install cpu.",
        )
    return found


def check_port(host: str, port: int) -> None:
    """See that a server can listen on `port`.

    Raises:
        InputError: It cannot: the port is in use, or the address is not one of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            # As the server does: a port in TIME_WAIT is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        held = ", ".join(f"{process.name()} (pid {process.pid})" for process in port_holders(port))
        raise InputError(
            f"Port {port} on {host} cannot be used: {error.strerror}{f', it is held by {held}' if held else ''}.",
            "Stop what listens there, name another with the parameter port, or use that server with base_url.",
        ) from error


def port_holders(port: int) -> list[psutil.Process]:
    """The processes that listen on a TCP port, as far as this user may see them."""
    pids: set[int] = set()
    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            here = connection.laddr[1:2] == (port,)
            if here and connection.status == psutil.CONN_LISTEN and connection.pid:
                pids.add(connection.pid)
    holders = []
    for pid in sorted(pids):
        with suppress(psutil.NoSuchProcess):
            holders.append(psutil.Process(pid))
    return holders


def check_log(log: Path) -> int:
    """See that the log can be written, and make its folder.

    Returns:
        Where its next byte goes: what an earlier server wrote stays.

    Raises:
        InputError: It cannot be written.
    """
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            return file.tell()
    except OSError as error:
        raise InputError(
            f"The log {log} cannot be written: {error.strerror}.", "Name a folder that you may write to with --output."
        ) from error
