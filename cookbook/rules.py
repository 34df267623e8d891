"""The rules of the catalog, and the two that are arithmetic, held against a selection and its commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from cookbook.capacity import (
    GIB,
    layout_of,
    offload_bytes_per_device,
    state_bytes_per_sequence,
    weight_bytes_per_device,
)
from cookbook.catalog import Catalog
from cookbook.catalog.schema import Demand, Place, RuleEntry
from cookbook.deployment import Basis, Process, Source
from cookbook.selection import Selection

__all__ = ["Violation", "violations"]

WEIGHTS_FIT = "weights_fit"
OFFLOAD_FITS = "offload_fits"


@dataclass(frozen=True)
class Violation:
    """A rule that is not obeyed.

    Attributes:
        rule: Its name.
        why: The rule as a sentence, with what breaks it.
        basis: How sure the rule is.
        source: Key of its source, or None.
        links: Upstream changes that would lift it.
        severity: A warning refuses nothing.
    """

    rule: str
    why: str
    basis: Basis
    source: str | None
    links: tuple[str, ...] = ()
    severity: Literal["error", "warning"] = "error"

    def sentence(self, sources: Mapping[str, Source]) -> str:
        """The rule with its name, its source and the links."""
        source = sources[self.source] if self.source else None
        said = f"rule {self.rule}, {self.basis.replace('_', ' ')}"
        said += f"; source: {source.title}{f' {source.url}' if source.url else ''}" if source else ""
        links = f" See {' and '.join(self.links)}." if self.links else ""
        return f"{self.why.removesuffix('.')} ({said}).{links}"


def violations(
    catalog: Catalog, selection: Selection, place: Place, processes: tuple[Process, ...]
) -> tuple[Violation, ...]:
    """All that a selection breaks.

    Args:
        catalog: The rules.
        selection: What was chosen, by names that exist.
        place: The selection as conditions see it.
        processes: Its commands; empty to look at the names alone.
    """
    found: dict[tuple[str, str], Violation] = {}
    for name, rule in catalog.rules.items():
        for broken in _rule(catalog, name, rule, place, processes):
            found.setdefault((broken.rule, broken.why), broken)
    if processes:
        for broken in (*_weights(catalog, selection, processes), *_offload(selection, processes)):
            found.setdefault((broken.rule, broken.why), broken)
    return tuple(found.values())


def _rule(
    catalog: Catalog, name: str, rule: RuleEntry, place: Place, processes: tuple[Process, ...]
) -> Iterator[Violation]:
    def broken(detail: str = "") -> Violation:
        return Violation(name, f"{rule.why}{detail}", rule.basis, rule.source, rule.links, rule.severity)

    if not rule.demands and not rule.given:
        if rule.when.to(place) and not any(one.to(place) for one in rule.unless):
            yield broken()
        return
    for process in processes:
        if process.role == "router":
            continue
        at = place.model_copy(update=_where(catalog, place, process, processes))
        if not rule.when.to(at) or any(one.to(at) for one in rule.unless):
            continue
        if any(_unmet(process, subject, demand) for subject, demand in rule.given.items()):
            continue
        for subject, demand in rule.demands.items():
            reason = _unmet(process, subject, demand)
            if reason:
                whose = "" if process.role == "engine" else f" in {process.role}"
                yield broken(f" Here {subject} {reason}{whose}.")


def _where(catalog: Catalog, place: Place, process: Process, processes: tuple[Process, ...]) -> dict[str, object]:
    count = sum(other.role == process.role for other in processes)
    return {
        "role": process.role,
        "head": process.rank == 0,
        "spans": count > 1,
        "nvlink": catalog.hardware[place.hardware].nvlink_nodes >= count,
    }


def _unmet(process: Process, subject: str, demand: Demand) -> str:
    """What breaks a demand, for a reader; empty where nothing does."""
    there, value = _look_up(process, subject)
    if demand.present is not None and there != demand.present:
        return "is missing" if demand.present else "is there"
    if not there:
        return ""
    shown = "" if value is None else str(value)
    if demand.one_of and shown not in map(str, demand.one_of):
        return f"is {shown or 'set'}"
    if demand.at_most is not None and not _at_most(shown, demand.at_most):
        return f"is {shown}"
    if demand.divides is not None:
        whole = demand.divides if isinstance(demand.divides, int) else _look_up(process, demand.divides)[1] or 1
        if not _divides(shown, str(whole)):
            return f"is {shown}, and {whole} is not a multiple of it"
    return ""


def _look_up(process: Process, subject: str) -> tuple[bool, JsonValue]:
    """Whether a flag, a key in its JSON or a variable is there, and its value."""
    if not subject.startswith("--"):
        for variable in process.environment:
            if variable.name == subject:
                return True, variable.value
        return False, None
    for argument in process.arguments:
        if argument.flag == subject:
            return True, argument.value
    flag, *keys = subject.split(".")
    if not keys:
        return False, None
    value = process.value(flag)
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            return False, None
        value = value[key]
    return True, value


def _at_most(shown: str, limit: float) -> bool:
    try:
        return float(shown) <= limit
    except ValueError:
        return False


def _divides(shown: str, whole: str) -> bool:
    return shown.isdecimal() and whole.isdecimal() and int(shown) > 0 and int(whole) % int(shown) == 0


def _weights(catalog: Catalog, selection: Selection, processes: tuple[Process, ...]) -> Iterator[Violation]:
    hardware = catalog.hardware[selection.hardware]
    # A folder of the user's may hold a model of any size.
    if hardware.memory is None or hardware.model or selection.model not in (None, catalog.model.id):
        return
    shape = catalog.model.shape
    for role in dict.fromkeys(process.role for process in processes if process.role != "router"):
        process = next(process for process in processes if process.role == role)
        layout = layout_of(process, hardware.memory.gib)
        weights = weight_bytes_per_device(shape, layout) / GIB
        state = state_bytes_per_sequence(shape, layout.tensor_parallel) / GIB
        usable = hardware.memory.gib * layout.utilization
        if weights + state > usable:
            why = (
                f"The weights have to fit: {weights:.1f} GiB of weights and {state:.2f} GiB of state for one sequence "
                f"on each device, of which {usable:.1f} GiB may be used ({layout.utilization:g} of "
                f"{hardware.memory.gib:g} GiB), in {role}."
            )
            yield Violation(WEIGHTS_FIT, why, hardware.memory.basis, hardware.memory.source)


def _offload(selection: Selection, processes: tuple[Process, ...]) -> Iterator[Violation]:
    if selection.host_memory_gib is None:
        return
    for process in processes:
        wanted = offload_bytes_per_device(process) / GIB
        whole = wanted * process.devices
        if whole > selection.host_memory_gib:
            why = (
                f"The offload has to fit into the host's memory: {process.devices} devices x {wanted:g} GiB are "
                f"{whole:g} GiB a node, of which {selection.host_memory_gib:g} GiB are free."
            )
            yield Violation(OFFLOAD_FITS, why, "stated", "spec")
            return
