"""Pictures: equal bytes for equal numbers, readable on a light and a dark page, with a table of the numbers."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Callable
from xml.etree import ElementTree as ET

import matplotlib as mpl
import pytest
from bs4 import BeautifulSoup
from hypothesis import given
from hypothesis import strategies as st

from cookbook import plots
from cookbook.evidence import Point, Series
from cookbook.plots import ClaimLine, number

WHITE, SLATE = "#ffffff", "#1e2129"
NASTY = '<script>alert("1")</script> & $x_1$ \x1b[31m漢字\n_'
COLOR = re.compile(r"#[0-9a-fA-F]{3,8}\b|rgb|black|white")


def series(name: str = "decode_step", *, factor: float = 1.0, unit: str = "ms", title: str = "Decode step") -> Series:
    points = tuple(
        Point(x=x, values=(factor * (8 + x), factor * (9 + x), factor * (12 + x))) for x in (1, 2, 4, 8, 16, 32)
    )
    return Series(name=name, title=title, unit=unit, x="Batch (requests)", points=points)


def curves(title: str = "Decode step", label: str = "Off", note: str = "") -> str:
    claim = ClaimLine(label="Claimed", value=11.5, high=14.25)
    pair = [series(), series(factor=0.7)]
    return str(plots.curves(pair, title=title, labels=[label, "On"], claim=claim, log_x=True, note=note).data)


def curves_at_one_place(title: str = "Decode step", label: str = "Off", note: str = "") -> str:
    claim = ClaimLine(label="Claimed", value=11.5, x=8)
    return str(plots.curves([series()], title=title, labels=[label], claim=claim, note=note).data)


def bars(title: str = "KV capacity", label: str = "TP 8", note: str = "") -> str:
    values = {label: 2_700_000, "DP 8": 21_345_678.0, "None": 0}
    return str(plots.bars(values, title=title, unit="tokens", claim={label: 2_600_000}, note=note).data)


def percentiles(title: str = "Latency", label: str = "Time to first token", note: str = "") -> str:
    rows = {label: {"p50": 120, "p90": 310.25, "p99": 1234}, "Step": {"p50": 12.3, "p99": 44}}
    return str(plots.percentiles(rows, title=title, unit="ms", note=note).data)


def over_time(title: str = "Memory", label: str = "Server", note: str = "") -> str:
    seconds = [i / 10 for i in range(20_000)]
    values = {label: [40 + 9 * math.sin(i * i) for i in range(20_000)], "Notebook": [1.5] * 20_000}
    marks = {"Ready": 300, "Weights loaded": 290}
    return str(plots.over_time(seconds, values, title=title, unit="GiB", marks=marks, note=note).data)


def timeline(title: str = "Start-up", label: str = "prefill", note: str = "") -> str:
    phases = [(label, "Loading", 2.5), (label, "Compiling", 42), (label, "Ready", 61.25)]
    phases += [("router", "Waiting", 0), ("router", "Ready", 66)]
    return str(plots.timeline(phases, title=title, note=note).data)


PICTURES: dict[str, Callable[..., str]] = {
    "curves": curves,
    "curves, claim at one place": curves_at_one_place,
    "bars": bars,
    "percentiles": percentiles,
    "over time": over_time,
    "timeline": timeline,
}
# What the table under each has to hold: numbers, unit, claim.
NUMBERS = {
    "curves": {
        "Batch (requests)",
        "Median (ms)",
        "Low (ms)",
        "High (ms)",
        "32",
        "41",
        "28.7",
        "Claimed",
        "11.5",
        "14.25",
    },
    "curves, claim at one place": {"Claimed", "11.5", "8"},
    "bars": {"Measured (tokens)", "2,700,000", "21,345,678", "Claimed (tokens)", "2,600,000", "104%", "–"},
    "percentiles": {"p50 (ms)", "p90 (ms)", "p99 (ms)", "310.2", "1,234", "12.3", "–"},
    "over time": {"Median (GiB)", "Low (GiB)", "High (GiB)", "31", "49", "20000", "1.5", "2 Ready", "300"},
    "timeline": {"Phase", "Lasts (s)", "2.5", "39.5", "61.25", "66"},
}
# What is written in the drawing itself.
DRAWN = {
    "curves": {"Decode step (ms)", "Batch (requests)", "Claimed: 11.5–14.2 ms", "Off", "On", "32"},
    "curves, claim at one place": {"Claimed: 11.5 ms at 8"},
    "bars": {"2,700,000", "21,345,678", "claimed 2,600,000", "Claimed (tokens)"},
    "percentiles": {"p50 120 · p90 310 · p99 1,234", "p50 12.3 · p99 44", "ms, logarithmic"},
    "over time": {"GiB", "Time (s)", "1", "2", "Weights loaded (290 s)", "Ready (300 s)"},
    "timeline": {"1 Loading", "2 Compiling", "Ready at 61.2 s", "Ready at 66 s", "3 Waiting", "prefill"},
}

every_picture = pytest.mark.parametrize("name", PICTURES)


def svg(page: str) -> str:
    found = re.search(r"<svg.*</svg>", page, re.DOTALL)
    assert found
    return found[0]


def ids(page: str) -> set[str]:
    return set(re.findall(r'\bid="([^"]+)"', page))


def luminance(color: str) -> float:
    parts = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@every_picture
def test_the_same_numbers_give_the_same_bytes(name: str) -> None:
    first = PICTURES[name]()
    with mpl.rc_context({"font.size": 30, "lines.linewidth": 9, "svg.fonttype": "path", "text.color": "red"}):
        assert PICTURES[name]() == first


@every_picture
def test_drawing_leaves_the_readers_settings_alone(name: str) -> None:
    with mpl.rc_context({"font.size": 30, "svg.hashsalt": "theirs"}):
        before = dict(mpl.rcParams)
        PICTURES[name]()
        assert dict(mpl.rcParams) == before


@every_picture
def test_no_colour_is_fixed_but_those_of_the_palette(name: str) -> None:
    drawing = svg(PICTURES[name]())
    styles = " ".join(re.findall(r'(?:style|fill|stroke)="([^"]*)"', drawing))
    assert set(COLOR.findall(styles)) <= set(plots.PALETTE)
    assert "currentColor" in styles
    texts = ET.fromstring(drawing).iter("{http://www.w3.org/2000/svg}text")
    assert not [
        text.attrib for text in texts if {"fill", "stroke"} & text.attrib.keys() or "fill" in text.get("style", "")
    ]


@pytest.mark.parametrize("color", plots.PALETTE)
@pytest.mark.parametrize("page", [WHITE, SLATE])
def test_the_palette_is_seen_on_a_light_and_on_a_dark_page(color: str, page: str) -> None:
    low, high = sorted((luminance(color), luminance(page)))
    assert (high + 0.05) / (low + 0.05) >= 3


@every_picture
def test_the_drawing_is_small_and_a_part_of_a_page(name: str) -> None:
    drawing = svg(PICTURES[name]())
    root = ET.fromstring(drawing)
    assert len(drawing.encode()) < 40_000
    assert (root.get("width"), root.get("height")) == ("100%", None)
    assert root.get("viewBox", "").startswith("0 0 480 ")
    assert not [e.tag for e in root.iter() if e.tag.rpartition("}")[2] in {"style", "metadata", "script", "image"}]
    assert not re.search(r"<\?xml|<!DOCTYPE|matplotlib|xlink|font-family:(?!inherit)|nan|\d{4}-\d\d-\d\d", drawing)


@every_picture
def test_every_mark_lies_within_the_drawing(name: str) -> None:
    root = ET.fromstring(svg(PICTURES[name]()))
    _, _, width, height = map(float, root.get("viewBox", "").split())
    places = [(float(e.get("x", "")), float(e.get("y", ""))) for e in root.iter() if e.get("x")]
    for path in root.iter("{http://www.w3.org/2000/svg}path"):
        if not path.get("id"):
            parts = [float(part) for part in re.findall(r"-?[\d.]+", path.get("d", ""))]
            places += zip(parts[::2], parts[1::2], strict=True)
    assert places
    assert all(-1 <= x <= width + 1 and -1 <= y <= height + 1 for x, y in places)


@every_picture
def test_the_numbers_are_in_the_table(name: str) -> None:
    page = BeautifulSoup(PICTURES[name](), "html.parser")
    assert {cell.get_text() for cell in page.select("details table :is(th, td)")} >= NUMBERS[name]
    assert page.select_one("summary").get_text() == "The numbers"  # type: ignore[union-attr]


@every_picture
def test_the_drawing_has_its_texts_as_text(name: str) -> None:
    texts = {e.text for e in ET.fromstring(svg(PICTURES[name]())).iter("{http://www.w3.org/2000/svg}text")}
    assert texts >= DRAWN[name]


@every_picture
def test_one_who_does_not_see_it_is_told_what_it_shows(name: str) -> None:
    page = BeautifulSoup(PICTURES[name](note="One run."), "html.parser")
    figure = page.select_one('figure.cookbook-plot[role="img"]')
    assert figure
    label = str(figure["aria-label"])
    assert label.endswith("One run.")
    assert re.search(r"\d", label)
    assert figure.select_one("svg[aria-hidden=true]")
    assert not figure.select("table")


@every_picture
def test_text_from_outside_stays_text(name: str) -> None:
    page = PICTURES[name](title=NASTY, label=NASTY, note=NASTY)
    parsed = BeautifulSoup(page, "html.parser")
    assert not parsed.select("script")
    assert "\x1b" not in page
    assert ET.fromstring(svg(page)) is not None
    clean = '<script>alert("1")</script> & $x_1$ [31m漢字 _'
    assert clean in parsed.figcaption.get_text()  # type: ignore[union-attr]
    assert any(clean in cell.get_text() for cell in parsed.select("table th"))
    assert clean in str(parsed.figure["aria-label"])  # type: ignore[index]


def test_two_pictures_share_no_id() -> None:
    pages = [draw() for draw in PICTURES.values()] + [curves(label="Other")]
    found = [name for page in pages for name in ids(page)]
    assert found
    assert len(found) == len(set(found))


@every_picture
def test_every_reference_has_its_aim(name: str) -> None:
    page = PICTURES[name]()
    assert set(re.findall(r'href="#([^"]+)"', page)) == ids(page)


def test_curves_are_told_apart_without_colour() -> None:
    many = [series(factor=1 + i / 10) for i in range(6)]
    drawing = svg(str(plots.curves(many, title="Many", labels=[f"No. {i}" for i in range(6)]).data))
    shapes = set(re.findall(r'<path id="[^"]+" d="([^"]+)"', drawing))
    assert len(shapes) == 2 * 6  # in the legend, and on the line
    assert len(set(re.findall(r"stroke-dasharray:([^;]+)", drawing))) == 3


def test_a_number_does_not_stand_in_the_tick_of_a_claim() -> None:
    drawing = svg(str(plots.bars({"A": 100}, title="A", unit="s", claim={"A": 104}).data))
    tick = max(float(x) for x in re.findall(r'd="M ([\d.]+) [\d.]+ L \1 ', drawing))
    text = re.search(r'<text x="([\d.]+)"[^>]*>100<', drawing)
    assert text
    assert float(text[1]) > tick


def test_without_a_claim_none_is_spoken_of() -> None:
    assert "laim" not in str(plots.bars({"A": 1}, title="A", unit="s").data)
    assert "laim" not in str(plots.curves([series()], title="A", labels=["Off"]).data)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: plots.curves([series(title="A"), series(title="B")], title="One place", labels=["A", "B"]),
        lambda: plots.curves(
            [Series(name="one", title="One", unit="s", x="x", points=(Point(x=4, values=(0,)),))],
            title="One",
            labels=["A"],
            log_x=True,
        ),
        lambda: plots.bars({"A": 0}, title="Nothing", unit="s"),
        lambda: plots.percentiles({"A": {"p50": 0}}, title="Nothing", unit="s"),
        lambda: plots.over_time([0], {"A": [0]}, title="A moment", unit="s", marks={"At once": 0}),
        lambda: plots.timeline([("A", "Ready", 0)], title="At once"),
        lambda: plots.timeline([("A", f"Phase {i}", i) for i in range(9)] + [("B", "Up", 3)], title="Many"),
    ],
)
def test_a_single_value_can_be_drawn(draw: Callable[[], object]) -> None:
    ET.fromstring(svg(str(getattr(draw(), "data"))))  # noqa: B009 - mypy knows no HTML


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda: plots.curves([], title="A", labels=[]), "no series"),
        (lambda: plots.curves([series()], title="A", labels=[]), "1 series have 0 labels"),
        (lambda: plots.curves([series(), series(unit="s")], title="A", labels=["A", "B"]), "different units"),
        (
            lambda: plots.curves(
                [Series(name="empty", title="A", unit="s", x="x", points=())], title="A", labels=["A"]
            ),
            "series empty has no points",
        ),
        (
            lambda: plots.curves(
                [Series(name="zero", title="A", unit="s", x="x", points=(Point(x=0, values=(1,)),))],
                title="A",
                labels=["A"],
                log_x=True,
            ),
            "x = 0 has no place",
        ),
        (
            lambda: plots.curves([series()], title="A", labels=["A"], claim=ClaimLine(label="Claimed", value=math.nan)),
            "nan cannot be drawn",
        ),
        (lambda: plots.bars({}, title="A", unit="s"), "no value"),
        (lambda: plots.bars({"A": -1}, title="A", unit="s"), "A is negative"),
        (lambda: plots.bars({"A": 1}, title="A", unit="s", claim={"B": 1}), "claim for B has no measured"),
        (lambda: plots.percentiles({}, title="A", unit="s"), "no measure"),
        (lambda: plots.percentiles({"A": {}}, title="A", unit="s"), "without percentiles"),
        (lambda: plots.over_time([], {}, title="A", unit="s"), "no samples"),
        (lambda: plots.over_time([1, 2], {"A": [1]}, title="A", unit="s"), "2 moments"),
        (lambda: plots.over_time([2, 1], {"A": [1, 1]}, title="A", unit="s"), "goes back"),
        (lambda: plots.over_time([1], {"A": [math.inf]}, title="A", unit="s"), "inf cannot be drawn"),
        (lambda: plots.timeline([], title="A"), "no phase"),
        (lambda: plots.timeline([("A", "B", -1)], title="A"), "before the start"),
    ],
)
def test_what_cannot_be_drawn_is_said(draw: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        draw()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-0.0, "0"),
        (0.012345, "0.0123"),
        (12.345, "12.3"),
        (12, "12"),
        (99.96, "100"),
        (999.6, "1,000"),
        (123.4, "123"),
        (2_700_000, "2,700,000"),
        (-1234.5, "-1,234"),
        (math.nan, "–"),
        (math.inf, "–"),
    ],
)
def test_a_number_has_as_many_digits_as_say_something(value: float, text: str) -> None:
    assert number(value) == text


@given(st.floats(min_value=1e-3, max_value=1e12))
def test_a_number_that_is_read_back_is_right_to_its_digits(value: float) -> None:
    assert float(number(value, digits=4).replace(",", "")) == pytest.approx(value, rel=6e-4)


def test_matplotlib_is_loaded_when_a_picture_is_drawn() -> None:
    code = "import sys, cookbook.plots; print('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
