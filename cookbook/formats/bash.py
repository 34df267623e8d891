"""A deployment as bash: one block a process, one flag a line, and the reason of each flag as a table."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from cookbook.deployment import Basis, Deployment, Process, Source

__all__ = ["Row", "explain", "render"]


UNSURE: dict[Basis, str] = {
    "from_k3": "inferred from Kimi-K3, not stated for K3.1",
    "vllm_source": "read in vLLM's source",
    "inferred": "inferred, stated by nobody",
    "unknown": "unknown",
    "chosen": "our choice",
}


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


def render(deployment: Deployment) -> str:
    """Text that bash runs as it is. Values are quoted; comments cannot be broken out of."""
    lines = [_comment(f"{deployment.title} ({deployment.recipe})")]
    if deployment.image:
        basis = deployment.image.origin.basis
        lines.append(_comment(f"image: {deployment.image.tag}{'' if basis == 'stated' else f' ({basis})'}"))
    lines += [_comment(f"{notice.kind}: {notice.text}") for notice in deployment.notices]
    for process in deployment.processes:
        lines += ["", *_process(process)]
    return "\n".join(lines) + "\n"


def _process(process: Process) -> Iterator[str]:
    yield _comment(f"{process.name}, role {process.role}, node {process.node}")
    yield from _unsure(process)
    words = [f"{variable.name}={shlex.quote(variable.value)}" for variable in process.environment]
    words.append(shlex.join(process.program))
    words += [f"  {shlex.join(argument.words())}" for argument in process.arguments]
    yield " \\\n".join(words)


def _unsure(process: Process) -> Iterator[str]:
    """Which flags and variables are not stated for this model: in a comment, as a line that goes on cannot have one."""
    for basis, words in UNSURE.items():
        names = [a.flag for a in process.arguments if any(origin.basis == basis for origin in a.origins)]
        names += [v.name for v in process.environment if v.origin.basis == basis]
        if names:
            yield _comment(f"{words}: {', '.join(names)}")


def _comment(text: str) -> str:
    return f"# {' '.join(text.split())}"


def explain(deployment: Deployment) -> tuple[Row, ...]:
    """A row for each reason of each flag and variable, in the order of the commands."""
    return tuple(row for process in deployment.processes for row in _reasons(process, deployment.sources))


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
