"""The pictures of a page: which numbers go into which of `cookbook.plots`. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from IPython.display import HTML

from cookbook import plots
from cookbook.capacity import capacities
from cookbook.catalog import Catalog
from cookbook.deployment import Claim
from cookbook.evidence import Series
from cookbook.launch.phases import Phase
from cookbook.plots import ClaimLine
from cookbook.resolve import resolve
from cookbook.selection import named

__all__ = ["NOT_DRAWN", "capacity", "curves", "memory", "timeline"]

NOT_DRAWN = "Measured on a CPU, so the published figure is not drawn beside it"


def curves(
    title: str, measured: Mapping[str, Series], *, claim: Claim | None, at: float | None, log_x: bool, rehearsal: bool
) -> HTML:
    """Curves of one run or of two, with the published figure where they are of the hardware.

    Args:
        title: Of the picture.
        measured: By label. Where the claim is a ratio, the last one is what it is a ratio to.
        claim: The published figure; None for none.
        at: Where along the curve it was published; None for all of it.
        log_x: Whether x is logarithmic.
        rehearsal: Whether a CPU measured.
    """
    line, note = None, ""
    if claim and rehearsal:
        note = f"{NOT_DRAWN}: {claim.statement}"
    elif claim:
        value = _claimed(claim, list(measured.values())[-1], at)
        line = None if value is None else ClaimLine(label="Published", value=value, x=at)
        note = claim.statement
    return plots.curves(list(measured.values()), title=title, labels=list(measured), claim=line, log_x=log_x, note=note)


def _claimed(claim: Claim, other: Series, at: float | None) -> float | None:
    """The claim in the unit of the curve; a ratio is applied to the other side's median at this place."""
    if not claim.unit.startswith("times"):
        return claim.value
    values = next((point.values for point in other.points if point.x == at), None)
    if not values:
        return None
    return median(values) / claim.value if claim.unit == "times faster" else median(values) * claim.value


def capacity(catalog: Catalog, recipes: Sequence[str], *, measured: int | None) -> HTML:
    """Tokens that the KV cache holds in several layouts, by the arithmetic of `cookbook capacity`.

    Args:
        catalog: The catalog.
        recipes: One for each layout.
        measured: Tokens that this run's server logged, on the hardware; None for none.
    """
    values: dict[str, float] = {}
    claims: dict[str, float] = {}
    for recipe in recipes:
        deployment = resolve(catalog, named(catalog, recipe))
        found = capacities(catalog, deployment)[0]
        label = deployment.title + ("" if found.calibrated else " (upper bound)")
        if found.tokens_that_fit is None:
            continue
        values[label] = found.tokens_that_fit
        published = next((c.value for c in deployment.claims if c.name.startswith("kv_cache_tokens")), None)
        if published is not None:
            claims[label] = published
    if measured is not None:
        values["This run, as its log says"] = measured
    return plots.bars(
        values,
        title="KV cache by layout",
        unit="tokens",
        claim=claims,
        kind="Computed" if measured is None else "Computed, and measured in this run",
        note="Computed from the model's shape and the memory of the devices.",
    )


def timeline(phases: Mapping[str, Sequence[Phase]]) -> HTML:
    """What the servers did until they were ready.

    Args:
        phases: By process.
    """
    rows: list[tuple[str, str, float]] = []
    for process, found in phases.items():
        rows.append((process, "Process starts", 0.0))
        before = ""
        for phase in found:
            # A phase that is told in steps of ten percent is one phase.
            if phase.title != before:
                rows.append((process, phase.title, phase.seconds))
            before = phase.title
    return plots.timeline(rows, title="Start of the servers")


def memory(series: Sequence[Series], marks: Mapping[str, float]) -> HTML:
    """Memory in use over the run.

    Args:
        series: Of `cookbook.launch.memory.MemoryWatch`.
        marks: Events, in seconds of the run.
    """
    host = series[0]
    seconds = [point.x for point in host.points]
    whole = [one for one in series if len(one.points) == len(host.points)]
    values = {one.title: [point.values[0] for point in one.points] for one in whole}
    return plots.over_time(seconds, values, title="Memory in use on this machine", unit="GiB", marks=marks)
