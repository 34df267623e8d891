"""Two runs beside each other: what differs between them, what moved, and whether that is more than noise.

Noise is what the runs themselves show: the spread that a check states, and how far earlier runs of the same kind lie
apart. Where neither is known, nothing is called worse that still passes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Literal

from cookbook import evidence
from cookbook.baseline import alike, newest_first, number
from cookbook.errors import InputError
from cookbook.evidence import CheckResult, CommandRecord, Evidence, Record

__all__ = ["Comparison", "Difference", "Row", "Spread", "compare", "differences", "earlier", "find"]

HISTORY = 10
Direction = Literal["larger", "smaller"]
Change = Literal["better", "worse", "same", "none"]

# Which way is better, by the name of a check, then by its unit. Elsewhere only the verdict is compared.
BY_NAME: Mapping[str, Direction] = {
    "ready": "smaller",
    "kv_cache_tokens": "larger",
    "prefix_cache": "larger",
    "accuracy": "larger",
    "accuracy_baseline": "larger",
    "draft_acceptance": "larger",
    "dcp_decode_step": "smaller",
    "low_latency_dcp8": "smaller",
    "low_latency_batch_1": "larger",
    "low_latency_batch_32": "larger",
    "dcp_times_tp8": "larger",
    "dcp_prefill": "smaller",
    "nvfp4_kv_tokens": "larger",
    "bytes_per_token": "smaller",
    "kv_returned": "larger",
    "same_tokens": "larger",
    "client_flat": "smaller",
    "long_prompt_ttft": "smaller",
}
BY_UNIT: Mapping[str, Direction] = {
    "tokens": "larger",
    "tokens a step": "larger",
    "tokens/s": "larger",
    "times faster": "larger",
    "times FP8's tokens": "larger",
    "times TP8's decode step": "smaller",
    "times TP8's tokens": "larger",
    "times TP8's time": "smaller",
    "bytes a token and layer": "smaller",
    "% of the time to first token": "smaller",
    "s": "smaller",
    "ms": "smaller",
}

# Where a server listens is drawn anew in each rehearsal, and changes no measurement.
NOT_COMPARED = frozenset({"--port", "port"})
FIGURE = r"(-?\d[\d,]*(?:\.\d+)?)"
RANGE = re.compile(rf"(?:spread|interval|range)\b[^\d-]{{0,12}}{FIGURE}\s*(?:to|\.\.)\s*{FIGURE}")
PLUS_MINUS = re.compile(rf"±\s*{FIGURE}")


class Difference(Record):
    """Something that is not the same in two runs. Empty where a run does not have it."""

    what: str
    before: str
    after: str


class Spread(Record):
    """Values of one check in runs of the same kind, in its unit.

    Attributes:
        low: The lowest, less what the checks themselves state as their spread.
        median: Of the values.
        high: The highest, with that spread.
        runs: How many.
    """

    low: float
    median: float
    high: float
    runs: int


class Row(Record):
    """One check in two runs.

    Attributes:
        unit: Of the figures; empty for text.
        before: What the first run measured, or its verdict where that is no figure.
        after: The same of the second.
        difference: After less before, in `unit`; None where one of them is no figure.
        change: By the direction of the check; "none" where that is not known, or one run did not make the check.
        beyond_noise: None where the runs show no noise to hold it against.
        noise: Of runs of the first run's kind; None where there is no figure.
    """

    name: str
    title: str
    unit: str
    before: str
    after: str
    difference: float | None
    change: Change
    beyond_noise: bool | None
    noise: Spread | None


class Comparison(Record):
    """Two runs beside each other."""

    before: str
    after: str
    differences: tuple[Difference, ...]
    rows: tuple[Row, ...]

    @property
    def worse(self) -> tuple[Row, ...]:
        """What got worse by more than noise."""
        return tuple(row for row in self.rows if row.change == "worse" and row.beyond_noise)


@dataclass(frozen=True)
class Runs:
    """A run and those of its kind.

    Attributes:
        run: The one that is compared.
        earlier: Older ones in the same circumstances, newest first.
    """

    run: Evidence
    earlier: tuple[Evidence, ...] = ()


def find(what: str, runs: Path) -> Path:
    """The evidence that a recipe (its newest run), a folder or a file stands for.

    Raises:
        InputError: There is none.
    """
    path = Path(what)
    if path.is_dir():
        return path / "evidence.json"
    if path.is_file():
        return path
    folder = evidence.latest(runs, what)
    if folder is None:
        raise InputError(f'No run of "{what}" lies in {runs}.', f"Make one: cookbook run {what} --on cpu.")
    return folder / "evidence.json"


def earlier(runs: Path, run: Evidence) -> Runs:
    """A run with up to ten earlier ones of the same recipe in the same circumstances. Run ids sort by time."""
    before = (other for other in newest_first(runs, run.recipe) if other.run_id < run.run_id and alike(other, run))
    return Runs(run, tuple(islice(before, HISTORY)))


def compare(before: Runs, after: Runs) -> Comparison:
    """What differs between two runs, and what moved from the first to the second.

    Args:
        before: The first run, and those of its kind.
        after: The second run, and those of its kind.

    Raises:
        InputError: It is the same run twice, or a rehearsal and a run that is none.
    """
    one, other = before.run, after.run
    if (one.recipe, one.run_id) == (other.recipe, other.run_id):
        raise InputError(f"Both are run {one.run_id} of {one.recipe}.", "Name the folder of another run.")
    if (one.mode == "rehearsal") != (other.mode == "rehearsal"):
        rehearsed, real = (one, other) if one.mode == "rehearsal" else (other, one)
        raise InputError(
            f"Run {rehearsed.run_id} of {rehearsed.recipe} is a rehearsal on a CPU and run {real.run_id} of"
            f" {real.recipe} is none: their figures have nothing to do with each other.",
            "Compare two rehearsals, or two runs on hardware.",
        )
    return Comparison(
        before=f"{one.recipe} {one.run_id}",
        after=f"{other.recipe} {other.run_id}",
        differences=tuple(differences(one, other)),
        rows=tuple(_rows(before, after)),
    )


# What differs


def differences(before: Evidence, after: Evidence) -> Iterator[Difference]:
    """Everything that the two runs did not have in common, apart from what they measured."""
    one, other = _conditions(before), _conditions(after)
    for what in [*one, *(what for what in other if what not in one)]:
        if one.get(what) != other.get(what):
            yield Difference(what=what, before=one.get(what, ""), after=other.get(what, ""))


def _conditions(run: Evidence) -> dict[str, str]:
    machine = run.machine
    devices = [f"{device.name} {device.memory_bytes or ''} {device.driver}".strip() for device in machine.accelerators]
    found: dict[str, object] = {
        "recipe": run.recipe,
        "mode": run.mode,
        "hardware": run.hardware,
        "model": run.model,
        "served model": run.served_model_name,
        "image": run.image,
        "image digest": run.image_digest,
        "machine: system": machine.system,
        "machine: processor": machine.processor,
        "machine: cores": machine.cores,
        "machine: memory in bytes": machine.memory_bytes,
        "machine: accelerators": ", ".join(devices),
    }
    found |= {f"version: {name}": version for name, version in run.versions.items()}
    found |= {f"parameter: {name}": value for name, value in run.parameters.items() if name not in NOT_COMPARED}
    found |= {f"variable: {name}": value for name, value in run.environment.items()}
    for command in run.commands:
        found |= {f"{command.name}: {name}": value for name, value in command.environment.items()}
        found |= {f"{command.name}: {flag}": value for flag, value in _flags(command).items()}
    return {what: str(value) for what, value in found.items() if value is not None and value != ""}


def _flags(command: CommandRecord) -> dict[str, str]:
    """Flags and their values; "set" for one without a value. What stands before the first flag is left out."""
    flags: dict[str, list[str]] = {}
    values: list[str] = []
    for word in command.argv:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            values = flags.setdefault(flag, [])
            if equals:
                values.append(value)
        else:
            values.append(word)
    return {flag: " ".join(words) or "set" for flag, words in flags.items() if flag not in NOT_COMPARED}


# What moved


def _rows(before: Runs, after: Runs) -> Iterator[Row]:
    one, other = _checks(before.run), _checks(after.run)
    for name in [*one, *(name for name in other if name not in one)]:
        yield _row(name, before, after)


def _checks(run: Evidence) -> dict[str, CheckResult]:
    return {check.name: check for check in run.checks}


def _row(name: str, before: Runs, after: Runs) -> Row:
    one, other = _checks(before.run).get(name), _checks(after.run).get(name)
    known = other or one
    assert known is not None
    values = _value(one), _value(other)
    noise, beyond = _noise(name, before, after)
    change = _change(one, other)
    if _turned(one, other):
        beyond = True  # The check itself says that it is too much.
    return Row(
        name=name,
        title=known.title,
        unit="" if values == (None, None) else known.unit,
        before=_shown(one),
        after=_shown(other),
        difference=None if values[0] is None or values[1] is None else values[1] - values[0],
        change=change,
        beyond_noise=beyond if change in {"better", "worse"} else None,
        noise=noise,
    )


def _direction(check: CheckResult) -> Direction | None:
    return BY_NAME.get(check.name) or BY_UNIT.get(check.unit)


def _value(check: CheckResult | None) -> float | None:
    return number(check.measured) if check and _direction(check) else None


def _shown(check: CheckResult | None) -> str:
    if check is None:
        return "not made"
    verdict = check.verdict.replace("_", " ")
    value = _value(check)
    if value is None:
        return verdict
    return f"{value:,.10g}" + ("" if verdict == "pass" else f" ({verdict})")


def _turned(one: CheckResult | None, other: CheckResult | None) -> bool:
    """Whether the check went from pass to fail, or back."""
    return one is not None and other is not None and {one.verdict, other.verdict} == {"pass", "fail"}


def _change(one: CheckResult | None, other: CheckResult | None) -> Change:
    if one is None or other is None or "left_out" in {one.verdict, other.verdict}:
        return "none"
    if one.verdict != other.verdict:
        return "worse" if other.verdict == "fail" else "better"
    first, second = _value(one), _value(other)
    if first is None or second is None or first == second:
        return "same"
    return "better" if (second > first) == (_direction(other) == "larger") else "worse"


def _noise(name: str, before: Runs, after: Runs) -> tuple[Spread | None, bool | None]:
    """How far runs of the first run's kind lie apart, and whether the second run lies outside of that.

    A second run in other circumstances brings those of its own kind: what moved is beyond the noise where the two
    ranges do not touch.
    """
    if before.run.recipe == after.run.recipe and alike(before.run, after.run):
        both = {before.run.run_id, after.run.run_id}
        known = {run.run_id: run for run in (*before.earlier, *after.earlier) if run.run_id not in both}
        others = [known[run_id] for run_id in sorted(known, reverse=True)]
        old, new = _spread(name, before.run, others), _spread(name, after.run, ())
    else:
        old, new = _spread(name, before.run, before.earlier), _spread(name, after.run, after.earlier)
    if old is None or new is None:
        return old, None
    unknown = old.runs == new.runs == 1 and old.low == old.high and new.low == new.high
    return old, None if unknown else new.low > old.high or new.high < old.low


def _spread(name: str, run: Evidence, others: Iterable[Evidence]) -> Spread | None:
    """Of a run and of others of its kind, as far as these passed: a fault of theirs is no noise."""
    own = _checks(run).get(name)
    rest = (check for other in others if (check := _checks(other).get(name)) and check.verdict == "pass")
    pairs = [(check, value) for check in (own, *rest) if check and (value := _value(check)) is not None][:HISTORY]
    if not pairs:
        return None
    stated = [_stated(check, value) for check, value in pairs]
    return Spread(
        low=min(low for low, _ in stated),
        median=median(value for _, value in pairs),
        high=max(high for _, high in stated),
        runs=len(pairs),
    )


def _stated(check: CheckResult, value: float) -> tuple[float, float]:
    """The spread that a check tells in its detail: "± 0.3", or "spread", "interval" or "range" and "1.1 to 1.3"."""
    if match := RANGE.search(check.detail):
        low, high = (float(text.replace(",", "")) for text in match.groups())
        return min(low, value), max(high, value)
    if match := PLUS_MINUS.search(check.detail):
        half = float(match[1].replace(",", ""))
        return value - half, value + half
    return value, value
