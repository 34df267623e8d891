"""A deployment as bash: one block a process, one flag a line, and the reason of each flag as a table.

The head comes first. Where a deployment spans nodes, each block is for the node that it names, and the addresses of the
others are shell variables that are explained at the top and have to be set on every node.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cookbook.deployment import Basis, Deployment, Process, Source
from cookbook.errors import InputError
from cookbook.formats.words import argument_words, comment, header, quote, unsure

__all__ = ["Row", "addresses", "command_lines", "explain", "render"]


@dataclass(frozen=True)
class Row:
    """Why one flag or variable is there.

    Attributes:
        name: The flag or the variable.
        value: As it stands in the command; empty for a bare flag.
        layer: What set it.
        source: Where the reason comes from; None for the cookbook's own choices and the user's.
    """

    name: str
    value: str
    layer: str
    basis: Basis
    why: str
    source: Source | None


def render(deployment: Deployment, node: int | None = None) -> str:
    """Text that bash runs as it is. Values are quoted; comments cannot be broken out of.

    Args:
        deployment: What to render.
        node: Only what runs on this node; None for all, a block a process.

    Raises:
        InputError: There is no such node.
    """
    processes = [p for p in deployment.processes if node is None or p.node == node]
    if not processes:
        raise InputError(f"There is no node {node}.", f"The nodes are 0 to {deployment.nodes - 1}.")
    lines = list(header(deployment))
    if deployment.install:
        lines += ["", comment("Once, on every node:")]
        lines += [comment(step.command) for step in deployment.install]
    lines += addresses(deployment, processes)
    for process in processes:
        lines += ["", *_process(process, deployment.nodes)]
    # A router runs beside a server, so the first of the two must not hold the shell.
    if node is not None and len(processes) > 1:
        lines.append("wait")
        lines = [f"{line} &" if _ends_command(lines, index) else line for index, line in enumerate(lines)]
    return "\n".join(lines) + "\n"


def addresses(deployment: Deployment, processes: Iterable[Process]) -> list[str]:
    """Lines that name each address which the processes need, and stop a shell in which it is not set."""
    used = {name for process in processes for name in process.variables}
    if not used:
        return []
    known = [address for address in deployment.addresses if address.name in used]
    lines = [f': "${{{address.name}:?{address.meaning}}}"' for address in known]
    return ["", comment("Set these first, on every node:"), *lines]


def _ends_command(lines: list[str], index: int) -> bool:
    return index > 0 and lines[index - 1].endswith(" \\") and not lines[index].endswith(" \\")


def _process(process: Process, nodes: int) -> Iterator[str]:
    head = " (head)" if process.node == 0 and nodes > 1 else ""
    yield comment(f"{process.name}, role {process.role}, node {process.node}{head}")
    yield from unsure(process)
    yield from command_lines(process)


def command_lines(process: Process, prefix: tuple[str, ...] = ()) -> Iterator[str]:
    """The command of a process: a variable and a flag a line, each but the last continued.

    Args:
        process: What to start.
        prefix: Lines in front of the program and after the variables, already quoted.
    """
    words = [f"{variable.name}={quote(variable.value, variable.variables)}" for variable in process.environment]
    words += [*prefix, shlex.join(process.program)]
    for argument in process.arguments:
        words.append("  " + " ".join(quote(word, variables) for word, variables in argument_words(argument)))
    last = len(words) - 1
    for index, line in enumerate(words):
        yield line if index == last else f"{line} \\"


def explain(deployment: Deployment) -> tuple[Row, ...]:
    """A row for each reason of each flag and variable, in the order of the commands; the same row stands once."""
    rows = (row for process in deployment.processes for row in _reasons(process, deployment.sources))
    return tuple(dict.fromkeys(rows))


def _reasons(process: Process, sources: dict[str, Source]) -> Iterator[Row]:
    for argument in process.arguments:
        for origin in argument.origins:
            source = sources[origin.source] if origin.source else None
            value = " ".join(argument.words()[1:])
            yield Row(argument.flag, value, origin.layer, origin.basis, origin.why, source)
    for variable in process.environment:
        origin = variable.origin
        source = sources[origin.source] if origin.source else None
        yield Row(variable.name, variable.value, origin.layer, origin.basis, origin.why, source)
