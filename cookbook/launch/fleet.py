"""The processes of a deployment that belong on this machine, started together and ended together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from cookbook.deployment import Process, Role
from cookbook.launch.loan import Borrowed
from cookbook.launch.local import Server, start, wait_until_ready
from cookbook.launch.phases import Phase
from cookbook.launch.processes import members
from cookbook.launch.share import put_pollers_last

__all__ = ["Fleet", "launch_all"]


class Fleet:
    """Running servers. What this process launched ends with `stop`, or with this process.

    Attributes:
        servers: In the order in which they were started; a router comes last.
    """

    def __init__(self, servers: Sequence[Server | Borrowed]) -> None:
        self.servers = tuple(servers)

    @property
    def base_url(self) -> str:
        """Address for clients on this machine: of the router, or of the first that listens."""
        routers = self.of("router")
        return (routers or [server for server in self.servers if server.process.serves])[0].base_url

    def of(self, *roles: Role) -> list[Server | Borrowed]:
        """The servers of these roles."""
        return [server for server in self.servers if server.process.role in roles]

    def alive(self) -> bool:
        """Whether all of them live."""
        return all(server.alive() for server in self.servers)

    def check_alive(self) -> None:
        """Do nothing, unless one is dead.

        Raises:
            ServerError: It is named, with the root cause out of its log.
        """
        for server in self.servers:
            server.check_alive()

    def stop(self) -> None:
        """Stop all, the router first. Doing so again does nothing."""
        for server in reversed(self.servers):
            server.ask_to_stop()
        for server in reversed(self.servers):
            server.stop()


def launch_all(
    processes: Sequence[Process],
    *,
    logs: Path,
    served_model_name: str,
    ready_timeout_s: float,
    on_phase: Callable[[Process, Phase], None],
    environ: Mapping[str, str] = os.environ,
) -> Fleet:
    """Start processes of a deployment on this machine, and wait until all that listen are ready.

    Engines start at the same time, as ranks of one group wait for each other; a router once they are ready. When this
    raises, whatever was started has been stopped.

    Args:
        processes: What to start.
        logs: Folder for their logs, one named like each process; existing ones are appended to.
        served_model_name: The model that has to be named.
        ready_timeout_s: Bound on the start of all, in seconds.
        on_phase: Told of each phase of each process.
        environ: What they inherit, and where their key is (VLLM_API_KEY).

    Raises:
        InputError: A command is missing, a port is in use, or a log cannot be written.
        ServerError: One died, or another server answers on its port.
        TimeLimitError: One was not ready in time.
    """
    began = time.monotonic()
    started: list[Server] = []
    try:
        for stage in _stages(processes):
            earlier = tuple(started)
            for process in stage:
                called = "The server" if len(processes) == 1 else process.name
                server = start(process, log=logs / f"{process.name}.log", called=called, environ=environ)
                started.append(server)
            wait_until_ready(
                started[len(earlier) :],
                served_model_name=served_model_name,
                ready_timeout_s=ready_timeout_s,
                began=began,
                on_phase=lambda server, phase: on_phase(server.process, phase),
                besides=earlier,
                environ=environ,
            )
            on_cpu = [server for server in started[len(earlier) :] if server.process.computes_on_cpu]
            put_pollers_last(process for server in on_cpu for process in members([server.pid], below=server.pid))
    except BaseException:
        Fleet(started).stop()
        raise
    return Fleet(started)


def _stages(processes: Sequence[Process]) -> Iterator[list[Process]]:
    engines = [process for process in processes if process.role != "router"]
    routers = [process for process in processes if process.role == "router"]
    yield from filter(None, (engines, routers))
