"""Servers that several rehearsals use one after the other, because their commands are the same here.

A rehearsal spends most of its time on the start. On the hardware the commands differ, and each page launches its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from cookbook.begin import Plan
from cookbook.deployment import Process
from cookbook.errors import CookbookError, Interrupted
from cookbook.evidence import write_bytes
from cookbook.launch.fleet import Fleet, launch_all
from cookbook.launch.loan import LentServer, Loan
from cookbook.launch.local import Server
from cookbook.launch.phases import Phase

__all__ = ["Pool", "side_by_side"]

OnEvent = Callable[[Mapping[str, Any]], None]


def side_by_side(plans: Mapping[str, Plan]) -> list[tuple[str, ...]]:
    """Recipes whose servers are the same here, in the order in which they are given; most stand alone.

    A deployment with a router stands alone in any case: its page stops a pool of servers to see what happens.

    Args:
        plans: By recipe.
    """
    groups: dict[object, list[str]] = {}
    for recipe, plan in plans.items():
        alone = plan.parameters.mode != "rehearsal" or any(process.role == "router" for process in plan.own)
        groups.setdefault(recipe if alone else plan.words(), []).append(recipe)
    return [tuple(recipes) for recipes in groups.values()]


class Pool:
    """Launches what the first recipe of a group needs, lends it to each of them, and ends it after the last.

    It is to be used in a `with` block, whose end ends what still runs.

    Args:
        groups: Of `side_by_side`. A recipe that stands alone launches its own servers.
    """

    def __init__(self, groups: Iterable[tuple[str, ...]]) -> None:
        self._groups = {recipe: group for group in groups if len(group) > 1 for recipe in group}
        self._fleet: Fleet | None = None
        self._lent_to: tuple[str, ...] = ()
        self._logs = tempfile.TemporaryDirectory(prefix="cookbook-", ignore_cleanup_errors=True)

    @property
    def sessions(self) -> tuple[int, ...]:
        """Session ids of what runs and is to outlive a page."""
        servers = self._fleet.servers if self._fleet else ()
        return tuple(pid for server in servers if isinstance(server, Server) for pid in server.sessions)

    def lend(self, recipe: str, plan: Plan, folder: Path, on_event: OnEvent) -> None:
        """Have servers run for this recipe where it shares some, and leave word of them in the folder of its run.

        Where they do not come up, nothing is lent, so that the page launches its own and says what is wrong.

        Args:
            recipe: That is going to run.
            plan: Of that run.
            folder: Of that run.
            on_event: Told of the start.

        Raises:
            Interrupted: A signal came meanwhile; nothing is left running.
        """
        group = self._groups.get(recipe)
        if group is None:
            return
        if self._fleet is None or self._lent_to != group or not self._fleet.alive():
            self._end()
            try:
                self._launch(plan, recipe, on_event)
            except Interrupted:
                raise
            except CookbookError as error:
                on_event({"kind": "step", "title": f"The shared servers did not come up: {error}"})
                return
            self._lent_to = group
        else:
            on_event({"kind": "step", "title": f"Server: the one that runs, for {', '.join(group)}"})
        assert self._fleet
        servers = [LentServer.of(server) for server in self._fleet.servers if isinstance(server, Server)]
        Loan(recipes=group, servers=tuple(servers)).write(folder)

    def _launch(self, plan: Plan, recipe: str, on_event: OnEvent) -> None:
        def tell(process: Process, phase: Phase) -> None:
            name = f"{process.name}: " if len(plan.own) > 1 else ""
            on_event({"kind": "phase", "title": f"{name}{phase.title}", "detail": phase.detail})

        self._fleet = launch_all(
            plan.own,
            logs=Path(self._logs.name) / recipe,
            served_model_name=plan.deployment.served_model_name,
            ready_timeout_s=plan.parameters.ready_timeout_s,
            on_phase=tell,
        )

    def take_back(self, recipe: str, folder: Path) -> None:
        """Put the servers' logs into the folder of a run that is over, and end them when no other recipe needs them."""
        group = self._groups.get(recipe)
        if self._fleet is None or group is None:
            return
        logs = folder / "logs"
        logs.mkdir(exist_ok=True)
        for server in self._fleet.servers:
            write_bytes(logs / f"{server.process.name}.log", server.read_log().encode())
        if recipe == group[-1]:
            self._end()

    def _end(self) -> None:
        if self._fleet:
            self._fleet.stop()
            self._fleet = None

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._end()
        self._logs.cleanup()
