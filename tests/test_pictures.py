"""Which numbers go into a picture: a published figure stands beside a measurement of the hardware and no other."""

from __future__ import annotations

import pytest

from cookbook import pictures
from cookbook.catalog import Catalog
from cookbook.deployment import Claim
from cookbook.evidence import Point, Series
from cookbook.launch.phases import Phase


def curve(*values: float) -> Series:
    points = tuple(Point(x=x, values=(value,)) for x, value in enumerate(values, 1))
    return Series(name="s", title="Decode step", unit="ms", x="Batch", points=points)


def claim(value: float, unit: str) -> Claim:
    return Claim(name="c", statement="As claimed.", value=value, unit=unit, tolerance=0, basis="stated", source="spec")


def drawn(figure: Claim | None, *, rehearsal: bool) -> str:
    measured = {"Ours": curve(10, 20), "Theirs": curve(16, 30)}
    found = pictures.curves("Steps", measured, claim=figure, at=1, log_x=False, rehearsal=rehearsal)
    return str(found.data)


@pytest.mark.parametrize(
    ("figure", "shown"),
    [
        (claim(1.6, "times faster"), "Published: 10 ms at 1"),
        (claim(1.25, "times TP8's decode step"), "Published: 20 ms at 1"),
        (claim(12, "ms"), "Published: 12 ms at 1"),
    ],
)
def test_a_claim_is_drawn_in_the_unit_of_the_curve(figure: Claim, shown: str) -> None:
    assert shown in drawn(figure, rehearsal=False)


def test_a_cpu_has_no_claim_beside_it() -> None:
    text = drawn(claim(12, "ms"), rehearsal=True)
    assert "Published:" not in text
    assert pictures.NOT_DRAWN in text


def test_capacity_tells_what_is_computed_and_what_was_measured(catalog: Catalog) -> None:
    computed = str(pictures.capacity(catalog, ["b300_tp8", "mi355x_tp8", "vr200_tp8"], measured=None).data)
    assert "Computed (tokens)" in computed
    assert "MI355X: tensor parallel 8 (upper bound)" in computed
    assert "2,600,000" in computed
    assert "This run" not in computed
    assert "This run, as its log says" in str(pictures.capacity(catalog, ["b300_tp8"], measured=2_610_000).data)


def test_a_phase_told_in_steps_is_one_phase() -> None:
    phases = [
        Phase("loading", "Loading weights", "10 %", 1.0),
        Phase("loading", "Loading weights", "20 %", 2.0),
        Phase("ready", "Ready", "", 3.0),
    ]
    text = str(pictures.timeline({"engine-0": phases}).data)
    assert "2 Loading weights" in text
    assert "3 Loading weights" not in text


def test_memory_of_devices_that_was_not_always_known_is_left_out() -> None:
    host = Series(name="host_memory", title="Host", unit="GiB", x="s", points=curve(1, 2, 3).points)
    devices = Series(name="device_memory", title="Devices", unit="GiB", x="s", points=curve(5).points)
    text = str(pictures.memory((host, devices), {"ready": 2.0}).data)
    assert "Host" in text
    assert "Devices" not in text
