"""What a run is measured against: an earlier run of another recipe, made in the same circumstances.

DCP against plain tensor parallel, NVFP4 against FP8: such a figure is only worth something where nothing else differs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from cookbook import evidence
from cookbook.errors import InputError
from cookbook.evidence import CheckResult, Evidence, RunRecord

__all__ = ["alike", "baseline", "names", "newest_first", "no_baseline", "number", "value"]

# A check of the server's start says "HTTP 200 after 25.0".
NUMBER = re.compile(r"(?:HTTP \d+ after )?(-?\d[\d,]*(?:\.\d+)?)")


def number(measured: str) -> float | None:
    """The number that a measurement begins with, or None: "18,500,000" is 18500000."""
    match = NUMBER.match(measured)
    return float(match[1].replace(",", "")) if match else None


def value(found: Evidence, check: str) -> float | None:
    """What a run measured in the check of this name; None where it did not, or not as a number."""
    return next((number(result.measured) for result in found.checks if result.name == check), None)


def alike(one: RunRecord, other: RunRecord) -> bool:
    """Whether two runs had the same mode, hardware, image (tag and digest), vLLM, model and revision of it."""
    return _circumstances(one) == _circumstances(other)


def _circumstances(run: RunRecord) -> tuple[object, ...]:
    return (
        *(run.mode, run.hardware, run.image, run.image_digest, run.versions.get("vllm")),
        *(run.model, run.parameters.get("revision") or ""),
    )


def newest_first(runs: Path, recipe: str) -> Iterator[Evidence]:
    """The finished runs of a recipe that can be read. What another version of the cookbook left is passed over."""
    for path in sorted((runs / recipe).glob("*/evidence.json"), reverse=True):
        try:
            yield evidence.read(path)
        except InputError:
            continue


def baseline(runs: Path, recipe: str, like: RunRecord) -> Evidence | None:
    """The newest run of `recipe` that passed in the circumstances of `like`, or None.

    Args:
        runs: Where runs lie.
        recipe: The one to measure against, for example "b300_tp8" for b300_dcp8.
        like: The run that needs a baseline.
    """
    return next((run for run in newest_first(runs, recipe) if run.status == "passed" and alike(run, like)), None)


def no_baseline(name: str, title: str, expected: str, recipe: str) -> CheckResult:
    """A check that was not made, as there is nothing to measure against.

    Args:
        name: Of the check.
        title: Of the check.
        expected: Of the check.
        recipe: The one whose run is missing.
    """
    return CheckResult(
        name=name,
        title=title,
        expected=expected,
        measured="",
        verdict="left_out",
        detail=(
            f"no baseline: no run of {recipe} passed with this mode, hardware, image, vLLM and model revision."
            f" Make one on this machine: cookbook run {recipe}. Then run this recipe again."
        ),
        source=f"Evidence of {recipe}",
    )


def names(found: Evidence) -> str:
    """A run for a reader: "run 20261201T050000Z-abcd of 2026-12-01"."""
    return f"run {found.run_id} of {found.started_at:%Y-%m-%d}"
