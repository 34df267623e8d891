"""Commands held against vLLM itself: its argument parser, and the tables that the parser does not look into.

The parser of vLLM 0.32.0 takes an unknown attention backend, KV connector, tool or reasoning parser, load format and
speculative method, and any key of `--speculative-config`; the server dies of these later, some only after the weights
are loaded. They are looked up here in the tables that vLLM itself looks them up in.

The vLLM is the one that is installed (`load_engine`), or another one out of a file that was written where that one is
installed (`capture`, `write`, `read`).
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Mapping

from cookbook.deployment import Deployment, Process
from cookbook.parser.capture import capture, read, write
from cookbook.parser.engine import Engine, Pairs
from cookbook.parser.load import load_engine
from cookbook.parser.names import ENVIRONMENT, Foreign, Names, Stale, plain
from cookbook.parser.problem import Problem
from cookbook.parser.router import PROGRAM, check_router, load_router

__all__ = [
    "Engine",
    "Foreign",
    "Names",
    "Problem",
    "Stale",
    "capture",
    "check",
    "check_processes",
    "load_engine",
    "load_router",
    "read",
    "write",
]

SERVE = ("vllm", "serve")


def check(deployment: Deployment, engine: Engine, names: Names | None = None) -> list[Problem]:
    """All that is wrong with the commands of a deployment, as `check_processes` says it."""
    return check_processes(deployment.processes, engine, deployment.hardware, names)


def check_processes(
    processes: Iterable[Process],
    engine: Engine,
    hardware: str,
    names: Names | None = None,
    router: ArgumentParser | None = None,
) -> list[Problem]:
    """All that is wrong with the commands of `processes`.

    Args:
        processes: Of one deployment.
        engine: The vLLM to hold them against.
        hardware: Key of the hardware that they are for.
        names: What plugins and other programs bring, and what is not to be used any more. With them, a variable that
            nobody lists is a problem too, unless the user set it. None to go by vLLM alone.
        router: The parser of vllm-router; None leaves its commands out.
    """
    processes = tuple(processes)
    served = [process for process in processes if process.program[: len(SERVE)] == SERVE]
    routed = [
        problem
        for process in processes
        if router and process.program == (PROGRAM,)
        for problem in check_router(process, router)
    ]
    if names is None:
        return engine.check_all(served) + routed
    foreign = frozenset(
        (entry.subject, entry.value) for entry in names.foreign if not entry.hardware or hardware in entry.hardware
    )
    stale = {entry.name: entry for entry in names.stale}
    found = engine.check_all(served, foreign)
    listed = [
        problem
        for process in served
        for problem in (
            *_stale(process, stale),
            # A stale name is told once, whatever else is wrong with it.
            *(one for one in found if one.process == process.name and plain(one.subject) not in stale),
            *_unlisted(process, engine, foreign, stale),
        )
    ]
    return listed + routed


def _stale(process: Process, stale: Mapping[str, Stale]) -> Iterator[Problem]:
    used = [argument.flag for argument in process.arguments] + [variable.name for variable in process.environment]
    for name in used:
        if entry := stale.get(plain(name)):
            yield Problem(process.name, name, entry.why, (entry.instead,) if entry.instead else ())


def _unlisted(process: Process, engine: Engine, foreign: Pairs, stale: Mapping[str, Stale]) -> Iterator[Problem]:
    from cookbook.layers import OVERRIDES  # noqa: PLC0415  # it imports the catalog, which holds these names

    for variable in process.environment:
        name = variable.name
        listed = name in stale or name in engine.tables.variables or (ENVIRONMENT, name) in foreign
        # The engine names the unknown ones of vLLM's own, and what users set is theirs to know.
        if not listed and not name.startswith("VLLM_") and variable.origin.layer != OVERRIDES:
            yield Problem(process.name, name, "Neither vLLM nor the catalog's list knows the variable.")
