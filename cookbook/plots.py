"""Pictures of what was measured, for the pages of a notebook.

Each picture is vector graphics inside the page, with its numbers in a table under it. The same numbers give the same
bytes, so a notebook that is executed again differs only where a measurement does. Text and axes take the colour of the
page, light or dark; a curve is told from another by colour, marker and dash.

matplotlib is imported when a picture is drawn, as that takes half a second.
"""

from __future__ import annotations

import hashlib
import html
import io
import logging
import math
import re
import statistics
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from cookbook.evidence import Series

if TYPE_CHECKING:
    from IPython.display import HTML
    from matplotlib.axes import Axes

__all__ = ["PALETTE", "ClaimLine", "bars", "curves", "number", "over_time", "percentiles", "timeline"]

# Each has a contrast of 3 or more to white and to the dark theme's #1e2129.
PALETTE = ("#2f7fd6", "#d9641e", "#2a9a63", "#d1457f", "#8a7a1f", "#9a63d0")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 2)), (0, (8, 2, 2, 2)))
CLAIM_DASH = (0, (4, 3))
# What matplotlib draws in this colour gets the colour of the page. Not black, which matplotlib leaves out.
INK = "#010203"
# Units of the view box. A phone shows the 480 on about 360 pixels, and 12 is then still a letter of 9 pixels.
WIDTH, FONT, LINE, EDGE = 480, 12, 18, 8
MAX_WIDTH = "36rem"
# Of a letter, in units: more than most fonts have, as the reader's font is not known.
LETTER = 7.0
PLOT_HEIGHT = 200
POINTS = 900
STYLE: Mapping[Any, Any] = {
    "font.size": FONT,
    "svg.fonttype": "none",
    "svg.hashsalt": "cookbook",
    "text.parse_math": False,  # a dollar sign of a label is no formula
    "text.color": INK,
}
SVG = "{http://www.w3.org/2000/svg}"
XLINK = "{http://www.w3.org/1999/xlink}href"
LONG_NUMBER = re.compile(r"-?\d+\.\d{2,}")
REFERENCE = re.compile(r"#([\w-]+)")


@dataclass(frozen=True, kw_only=True)
class ClaimLine:
    """What a source claims of a curve.

    Attributes:
        label: For a reader, for example "Claimed".
        value: In the unit of the curve.
        high: End of a band that begins at `value`; None for a line.
        x: Where along the curve the claim was made; None where it is said of the whole curve.
    """

    label: str
    value: float
    high: float | None = None
    x: float | None = None


@dataclass(frozen=True)
class _Table:
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class _Scale:
    """From values to units of the view box."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self) -> tuple[float, ...]:
        from matplotlib.ticker import LogLocator, MaxNLocator  # noqa: PLC0415

        locator = LogLocator(subs=(1, 3)) if self.log else MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10])
        slack = (self.high - self.low) * 1e-9
        return tuple(
            float(t) for t in locator.tick_values(self.low, self.high) if self.low - slack <= t <= self.high + slack
        )


@dataclass(frozen=True)
class _Key:
    """An entry of a legend: its text, and what draws the sign left of it, at the middle of a box of 26 units."""

    label: str
    draw: Callable[[Axes, float, float], None]


@dataclass(frozen=True)
class _Picture:
    """What is drawn, in units of the view box, from its top left corner."""

    height: float
    keys: tuple[_Key, ...]
    draw: Callable[[Axes], None]
    tables: tuple[_Table, ...]
    said: tuple[str, ...] = field(default=())


def number(value: float, *, digits: int = 3) -> str:
    """A number for a reader: so many significant digits, but no digit before the point is lost.

    Args:
        value: Any.
        digits: At least 1.

    Returns:
        For example "0.0123", "12.3" and "2,700,000"; "–" where the value is not finite.
    """
    if not math.isfinite(value):
        return "–"
    rounded = float(f"{value:.{digits}g}") or 0.0  # never "-0"
    if abs(rounded) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{rounded:g}"


def curves(
    series: Sequence[Series],
    *,
    title: str,
    labels: Sequence[str],
    claim: ClaimLine | None = None,
    log_x: bool = False,
    note: str = "",
) -> HTML:
    """Curves over the same x: a line through the medians, with whiskers from the lowest to the highest repetition.

    Args:
        series: All of one unit and one x. The order of their points does not matter.
        title: Of the picture.
        labels: One for each series.
        claim: Drawn in the colour of the text, dashed.
        log_x: Whether x is logarithmic; the ticks are then the measured places.
        note: A sentence under the picture.

    Raises:
        ValueError: There is no series, one of them has no values, they do not fit together, or a value cannot be drawn.
    """
    units = {(one.unit, one.x) for one in series}
    if not series:
        raise ValueError("There is no series to draw.")
    if len(labels) != len(series):
        raise ValueError(f"{len(series)} series have {len(labels)} labels.")
    if len(units) != 1:
        raise ValueError(f"The series have different units or different x: {sorted(units)}.")
    for one in series:
        if not one.points or not all(point.values for point in one.points):
            raise ValueError(f"The series {one.name} has no points, or a point without values.")
    unit, x_title = units.pop()
    lines = [sorted((point.x, point.values) for point in one.points) for one in series]
    claims = () if claim is None else tuple(v for v in (claim.value, claim.high) if v is not None)
    xs = sorted({x for line in lines for x, _ in line} | ({claim.x} if claim and claim.x is not None else set()))
    ys = [value for line in lines for _, values in line for value in values] + list(claims)
    _finite([*xs, *ys])
    if log_x and xs[0] <= 0:
        raise ValueError(f"x = {number(xs[0])} has no place on a logarithmic axis.")
    y_title = f"{series[0].title} ({unit})" if len({one.title for one in series}) == 1 else unit
    keys = [_Key(label, _line_key(i)) for i, label in enumerate(labels)]
    if claim:
        amount = "–".join(number(value) for value in claims)
        place = "" if claim.x is None else f" at {number(claim.x)}"
        keys.append(_Key(f"{claim.label}: {amount} {unit}{place}", _claim_key(claim)))
    offset = _legend_height(keys)
    scale_x, scale_y = _scales(xs, ys, offset, log_x=log_x)
    ticks = tuple(xs) if log_x else scale_x.ticks()

    def draw(ax: Axes) -> None:
        _frame(ax, scale_x, scale_y, offset=offset, ticks=ticks, x_title=x_title, y_title=y_title)
        if claim:
            _draw_claim(ax, claim, scale_x, scale_y)
        for i, line in enumerate(lines):
            # A little apart, so that whiskers at the same x do not hide each other.
            shift = (i - (len(lines) - 1) / 2) * 3
            at = [scale_x(x) + shift for x, _ in line]
            color = PALETTE[i % len(PALETTE)]
            _segments(
                ax,
                [
                    segment
                    for x, (_, values) in zip(at, line, strict=True)
                    if len(values) > 1
                    for segment in _whisker(x, scale_y(min(values)), scale_y(max(values)))
                ],
                color=color,
                linewidth=1.2,
            )
            ax.plot(at, [scale_y(statistics.median(values)) for _, values in line], **_line_style(i), markersize=7)

    rows = [
        (
            _text(label),
            number(x, digits=4),
            number(statistics.median(values), digits=4),
            number(min(values), digits=4),
            number(max(values), digits=4),
            str(len(values)),
        )
        for label, line in zip(labels, lines, strict=True)
        for x, values in line
    ]
    said = [
        _range_said(label, [statistics.median(v) for _, v in line], unit)
        for label, line in zip(labels, lines, strict=True)
    ]
    if claim:
        place = "any" if claim.x is None else number(claim.x, digits=4)
        high = claim.value if claim.high is None else claim.high
        middle = "" if claim.high is not None else number(claim.value, digits=4)
        rows.append((_text(claim.label), place, middle, number(claim.value, digits=4), number(high, digits=4), ""))
        said.append(keys[-1].label)
    head = ("", x_title, f"Median ({unit})", f"Low ({unit})", f"High ({unit})", "Repetitions")
    return _render(
        _Picture(scale_y.start + 2.4 * LINE, tuple(keys), draw, (_Table(head, tuple(rows)),), tuple(said)),
        title=title,
        note=note,
    )


def bars(
    values: Mapping[str, float],
    *,
    title: str,
    unit: str,
    claim: Mapping[str, float] | None = None,
    kind: str = "Measured",
    note: str = "",
) -> HTML:
    """Horizontal bars, one for each label, with the number at the end and the claim as a dashed tick.

    Args:
        values: By label, in `unit`, none negative.
        title: Of the picture.
        unit: For example "tokens".
        claim: By label, in `unit`, for some of the labels or none.
        kind: What the bars are, for the legend.
        note: A sentence under the picture.

    Raises:
        ValueError: There is nothing to draw, a value cannot be drawn, or a claim has no value beside it.
    """
    claim = claim or {}
    if not values:
        raise ValueError("There is no value to draw.")
    _finite([*values.values(), *claim.values()])
    for label, value in (*values.items(), *claim.items()):
        if value < 0:
            raise ValueError(f"{label} is negative, and a bar begins at 0.")
    if unknown := [label for label in claim if label not in values]:
        raise ValueError(f"The claim for {unknown[0]} has no measured value beside it.")
    keys = [_Key(f"{kind} ({unit})", _box_key(0))]
    if claim:
        keys.append(_Key(f"Claimed ({unit})", _tick_key))
    top, row = _legend_height(keys), 42
    room = max(_width(number(value)) for value in values.values()) + 6
    scale = _Scale(0, max(*values.values(), *claim.values(), 0) or 1, EDGE, WIDTH - EDGE - room)

    def draw(ax: Axes) -> None:
        for i, (label, value) in enumerate(values.items()):
            y = top + i * row
            said = f"claimed {number(claim[label])}" if label in claim else ""
            _head_line(ax, y, label, said)
            _box(ax, scale(0), scale(value), y + 19, 14, color=PALETTE[0], alpha=0.85)
            _segments(ax, [((scale(0), y + 17), (scale(0), y + 35))], color=INK, linewidth=1.5)
            end = scale(value) + 6
            if label in claim:
                at = scale(claim[label])
                ax.plot([at, at], [y + 15, y + 37], color=INK, linewidth=2, linestyle=(0, (3, 1.5)))
                # The number moves past a tick that would stand in it.
                if end - 4 < at < end + _width(number(value)):
                    end = at + 6
            ax.text(end, y + 30, number(value), ha="left")

    head = ["", f"{kind} ({unit})"]
    rows = [[_text(label), number(value, digits=4)] for label, value in values.items()]
    if claim:
        head += [f"Claimed ({unit})", f"{kind} of claimed"]
        for cells, (label, value) in zip(rows, values.items(), strict=True):
            share = f"{number(100 * value / claim[label])}%" if claim.get(label) else "–"
            cells += [number(claim[label], digits=4) if label in claim else "–", share]
    said = [
        f"{label}: {number(value)} {unit}" + (f", claimed {number(claim[label])}" if label in claim else "")
        for label, value in values.items()
    ]
    table = _Table(tuple(head), tuple(tuple(cells) for cells in rows))
    return _render(_Picture(top + len(values) * row, tuple(keys), draw, (table,), tuple(said)), title=title, note=note)


def percentiles(rows: Mapping[str, Mapping[str, float]], *, title: str, unit: str, note: str = "") -> HTML:
    """Percentiles of several measures on one axis. It is logarithmic where the values lie far apart.

    Args:
        rows: By measure, then by percentile, for example {"Time to first token": {"p50": 80, "p99": 310}}; in `unit`.
        title: Of the picture.
        unit: For example "ms".
        note: A sentence under the picture.

    Raises:
        ValueError: There is nothing to draw, or a value cannot be drawn.
    """
    if not rows or not all(rows.values()):
        raise ValueError("There is no measure to draw, or one without percentiles.")
    values = [value for row in rows.values() for value in row.values()]
    _finite(values)
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    log = min(values) > 0 and max(values) / min(values) > 30
    keys = [_Key(name, _marker_key(i)) for i, name in enumerate(names)]
    top, pitch = _legend_height(keys), 44
    bottom = top + len(rows) * pitch
    low, high = (min(values) / 1.1, max(values) * 1.1) if log else (min(0, *values), max(*values, 0) or 1)
    scale = _Scale(low, high, EDGE + 6, WIDTH - EDGE - 6, log)

    def draw(ax: Axes) -> None:
        strips = [(top + i * pitch + 18, top + i * pitch + 38) for i in range(len(rows))]
        _x_axis(ax, scale, scale.ticks(), bottom, f"{unit}, logarithmic" if log else unit, strips=strips)
        for i, (label, row) in enumerate(rows.items()):
            y = top + i * pitch
            _head_line(ax, y, label, " · ".join(f"{name} {number(value)}" for name, value in row.items()))
            at = [scale(value) for value in row.values()]
            _segments(ax, [((min(at), y + 28), (max(at), y + 28))], color=INK, linewidth=1.5, alpha=0.5)
            for name, value in row.items():
                _marker(ax, scale(value), y + 28, names.index(name), size=8)

    table = _Table(
        ("", *(f"{name} ({unit})" for name in names)),
        tuple(
            (_text(label), *(number(row[name], digits=4) if name in row else "–" for name in names))
            for label, row in rows.items()
        ),
    )
    said = tuple(
        f"{label}: " + ", ".join(f"{name} {number(value)} {unit}" for name, value in row.items())
        for label, row in rows.items()
    )
    return _render(_Picture(bottom + 2.4 * LINE, tuple(keys), draw, (table,), said), title=title, note=note)


def over_time(
    seconds: Sequence[float],
    values: Mapping[str, Sequence[float]],
    *,
    title: str,
    unit: str,
    marks: Mapping[str, float] | None = None,
    note: str = "",
) -> HTML:
    """What was sampled over a run, with moments of it as numbered vertical lines.

    Args:
        seconds: When each sample was taken, ascending.
        values: By what was sampled, one value for each of `seconds`; in `unit`.
        title: Of the picture.
        unit: For example "GiB".
        marks: Moments, in seconds, by what happened then.
        note: A sentence under the picture.

    Raises:
        ValueError: There is nothing to draw, the lengths differ, the time goes back, or a value cannot be drawn.
    """
    marks = dict(sorted((marks or {}).items(), key=lambda item: item[1]))
    if not seconds or not values:
        raise ValueError("There are no samples to draw.")
    if lengths := {label: len(line) for label, line in values.items() if len(line) != len(seconds)}:
        raise ValueError(f"{len(seconds)} moments have other numbers of samples: {lengths}.")
    if any(later < earlier for earlier, later in pairwise(seconds)):
        raise ValueError("The time goes back.")
    everything = [value for line in values.values() for value in line]
    _finite([*seconds, *marks.values(), *everything])
    keys = [_Key(label, _line_key(i)) for i, label in enumerate(values)]
    keys += [_Key(f"{label} ({number(at)} s)", _number_key(i)) for i, (label, at) in enumerate(marks.items(), 1)]
    xs, offset = sorted([*seconds, *marks.values()]), _legend_height(keys)
    scale_x, scale_y = _scales(xs, everything, offset, log_x=False)
    if marks and scale_x(min(marks.values())) < EDGE + _width(_text(unit)) + 2 * LETTER:
        scale_x, scale_y = _scales(xs, everything, offset + LINE, log_x=False)

    def draw(ax: Axes) -> None:
        _frame(ax, scale_x, scale_y, offset=offset, ticks=scale_x.ticks(), x_title="Time (s)", y_title=unit)
        places = [scale_x(at) for at in marks.values()]
        _segments(
            ax,
            [((x, scale_y.end - 4), (x, scale_y.start)) for x in places],
            color=INK,
            linewidth=1,
            linestyle=(0, (1, 2)),
        )
        for i, x in enumerate(_apart(places, 14, WIDTH - EDGE), 1):
            ax.text(x, scale_y.end - 8, str(i), ha="center", fontweight="bold")
        for i, line in enumerate(values.values()):
            points = _thinned([(scale_x(s), scale_y(v)) for s, v in zip(seconds, line, strict=True)], len(values))
            ax.plot([x for x, _ in points], [y for _, y in points], **_line_style(i) | {"marker": ""})
            # Enough to tell the lines apart, each line at other places.
            step = max(1, len(points) // 6)
            some = points[(i * step) // max(1, len(values)) :: step]
            ax.plot([x for x, _ in some], [y for _, y in some], **_line_style(i) | {"linestyle": ""}, markersize=6)

    head = ("", *(f"{name} ({unit})" for name in ("First", "Median", "Low", "High", "Last")), "Samples")
    rows = tuple(
        (
            _text(label),
            *(number(v, digits=4) for v in (line[0], statistics.median(line), min(line), max(line), line[-1])),
            str(len(line)),
        )
        for label, line in values.items()
    )
    tables = [_Table(head, rows)]
    if marks:
        moments = tuple((f"{i} {_text(label)}", number(at, digits=4)) for i, (label, at) in enumerate(marks.items(), 1))
        tables.append(_Table(("Moment", "Time (s)"), moments))
    said = tuple(_range_said(label, line, unit) for label, line in values.items())
    return _render(_Picture(scale_y.start + 2.4 * LINE, tuple(keys), draw, tuple(tables), said), title=title, note=note)


def timeline(phases: Sequence[tuple[str, str, float]], *, title: str, note: str = "") -> HTML:
    """What one or several processes did when, a lane for each of them.

    Args:
        phases: Process, phase, and the seconds since the start at which the phase began. A phase lasts until the next
            one of its process; the last of each ends its lane, and lasts no time itself.
        title: Of the picture.
        note: A sentence under the picture.

    Raises:
        ValueError: There is no phase, or a time is negative or not finite.
    """
    if not phases:
        raise ValueError("There is no phase to draw.")
    _finite([at for _, _, at in phases])
    if min(at for _, _, at in phases) < 0:
        raise ValueError("A phase began before the start.")
    lanes: dict[str, list[tuple[str, float]]] = {}
    for process, phase, at in phases:
        lanes.setdefault(process, []).append((phase, at))
    lanes = {process: sorted(lane, key=lambda one: one[1]) for process, lane in lanes.items()}
    names = list(dict.fromkeys(phase for lane in lanes.values() for phase, _ in lane[:-1]))
    ends = list(dict.fromkeys(lane[-1][0] for lane in lanes.values()))
    keys = [_Key(f"{i} {name}", _box_key(i - 1)) for i, name in enumerate(names, 1)]
    keys.append(_Key(ends[0] if len(ends) == 1 else "End", _end))
    top, pitch = _legend_height(keys), 46
    bottom = top + len(lanes) * pitch
    scale = _Scale(0, max(at for _, _, at in phases) or 1, EDGE + 6, WIDTH - EDGE - 6)

    def draw(ax: Axes) -> None:
        strips = [(top + i * pitch + 17, top + i * pitch + 41) for i in range(len(lanes))]
        _x_axis(ax, scale, scale.ticks(), bottom, "Time since the start (s)", strips=strips)
        for i, (process, lane) in enumerate(lanes.items()):
            y = top + i * pitch
            end_name, end = lane[-1]
            _head_line(ax, y, process, f"{end_name} at {number(end)} s")
            _segments(ax, [((scale(0), y + 29), (scale(lane[0][1]), y + 29))], color=INK, linewidth=1, alpha=0.5)
            for (phase, start), (_, stop) in pairwise(lane):
                index = names.index(phase)
                left, right = scale(start), scale(stop)
                free = right - (8 if stop == end else 0)  # the sign of the end stands there
                _box(ax, left, right, y + 19, 20, color=PALETTE[index % len(PALETTE)], alpha=0.35)
                whole, short = f"{index + 1} {_text(phase)}", str(index + 1)
                shown = next((text for text in (whole, short) if _width(text) + 4 <= free - left), "")
                ax.text((left + free) / 2, y + 33, shown, ha="center")
            _end(ax, scale(end), y + 29)

    rows = tuple(
        (_text(process), _text(phase), number(start, digits=4), number(stop - start, digits=4) if stop > start else "–")
        for process, lane in lanes.items()
        for (phase, start), (_, stop) in pairwise([*lane, lane[-1]])
    )
    said = tuple(f"{process}: {lane[-1][0]} at {number(lane[-1][1])} s" for process, lane in lanes.items())
    table = _Table(("Process", "Phase", "Begins (s)", "Lasts (s)"), rows)
    return _render(_Picture(bottom + 2.4 * LINE, tuple(keys), draw, (table,), said), title=title, note=note)


def _finite(values: Iterable[float]) -> None:
    for value in values:
        if not math.isfinite(value):
            raise ValueError(f"{value} cannot be drawn.")


def _text(text: str) -> str:
    """One line without what XML forbids."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _width(text: str) -> float:
    """About how wide a text is, in units of the view box."""
    return sum(FONT if unicodedata.east_asian_width(c) in "WF" else LETTER for c in text)


def _shortened(text: str, room: float) -> str:
    """As much of a text as there is room for. The table has all of it."""
    text = _text(text)
    if _width(text) <= room:
        return text
    while text and _width(text) + LETTER > room:
        text = text[:-1]
    return text.rstrip() + "…"


def _range_said(label: str, values: Sequence[float], unit: str) -> str:
    return f"{label}: {number(min(values))} to {number(max(values))} {unit}"


def _apart(places: Sequence[float], gap: float, limit: float) -> list[float]:
    """Ascending places, moved as little to the right as keeps them apart, then back from the limit."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + gap) if moved else place)
    for i in range(len(moved) - 1, -1, -1):
        moved[i] = min(moved[i], limit - (len(moved) - 1 - i) * gap)
    return moved


def _thinned(points: Sequence[tuple[float, float]], lines: int) -> list[tuple[float, float]]:
    """So few points that the picture stays small: of each stretch of time its lowest and its highest, in order."""
    limit = max(20, POINTS // lines)
    if len(points) <= limit:
        return list(points)
    size = math.ceil(len(points) / (limit // 2))
    kept: set[int] = {0, len(points) - 1}
    for start in range(0, len(points), size):
        stretch = range(start, min(start + size, len(points)))
        kept |= {min(stretch, key=lambda i: points[i][1]), max(stretch, key=lambda i: points[i][1])}
    return [points[i] for i in sorted(kept)]


def _flow(keys: Sequence[_Key]) -> list[tuple[float, int]]:
    """Left edge and row of each entry of a legend."""
    places: list[tuple[float, int]] = []
    x, row = float(EDGE), 0
    for key in keys:
        wide = 32 + _width(_shortened(key.label, WIDTH - 2 * EDGE - 32)) + 14
        if x > EDGE and x + wide - 14 > WIDTH - EDGE:
            x, row = float(EDGE), row + 1
        places.append((x, row))
        x += wide
    return places


def _legend_height(keys: Sequence[_Key]) -> float:
    return (_flow(keys)[-1][1] + 1) * LINE + 8


def _draw_legend(ax: Axes, keys: Sequence[_Key]) -> None:
    for key, (x, row) in zip(keys, _flow(keys), strict=True):
        key.draw(ax, x + 13, row * LINE + 11)
        ax.text(x + 32, row * LINE + 15, _shortened(key.label, WIDTH - 2 * EDGE - 32))


def _scales(xs: Sequence[float], ys: Sequence[float], offset: float, *, log_x: bool) -> tuple[_Scale, _Scale]:
    """Scales of a picture with two axes. y begins at 0, so that a small difference looks small.

    Args:
        xs: Ascending.
        ys: In any order.
        offset: Where the picture begins, under its legend.
        log_x: Whether x is logarithmic.
    """
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    low, high = min(0, *ys), max(0, *ys)
    steps = MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high if high > low else 1)
    top = offset + LINE + 10
    scale_y = _Scale(float(steps[0]), float(steps[-1]), top + PLOT_HEIGHT, top)
    left = EDGE + max(_width(number(float(tick), digits=4)) for tick in steps) + 14
    low_x = xs[0] if log_x else min(0, xs[0])
    return _Scale(low_x, xs[-1] if xs[-1] > low_x or log_x else low_x + 1, left, WIDTH - EDGE - 12, log_x), scale_y


def _frame(
    ax: Axes, scale_x: _Scale, scale_y: _Scale, *, offset: float, ticks: Sequence[float], x_title: str, y_title: str
) -> None:
    """Both axes, the grid and their titles. That of y stands above it, where a phone has room for it."""
    _x_axis(ax, scale_x, ticks, scale_y.start, x_title)
    steps = scale_y.ticks()
    left = scale_x.start - 8
    _segments(ax, [((left, scale_y(t)), (WIDTH - EDGE, scale_y(t))) for t in steps], color=INK, linewidth=1, alpha=0.15)
    for tick in steps:
        ax.text(left - 6, scale_y(tick) + 4, number(tick, digits=4), ha="right")
    ax.text(EDGE, offset + 11, _shortened(y_title, WIDTH - 2 * EDGE))


def _x_axis(
    ax: Axes,
    scale: _Scale,
    ticks: Sequence[float],
    y: float,
    title: str,
    *,
    strips: Sequence[tuple[float, float]] = (),
) -> None:
    """An axis with its ticks at the height `y`, and grid lines in strips, as lines through text are hard to read."""
    _segments(ax, [((scale.start - 8, y), (WIDTH - EDGE, y))], color=INK, linewidth=1, alpha=0.7)
    _segments(ax, [((scale(t), y), (scale(t), y + 4)) for t in ticks], color=INK, linewidth=1, alpha=0.7)
    lines = [((scale(t), upper), (scale(t), lower)) for t in ticks for upper, lower in strips]
    _segments(ax, lines, color=INK, linewidth=1, alpha=0.15)
    right = -math.inf
    for tick in ticks:
        text = number(tick, digits=4)
        half = _width(text) / 2
        middle = min(max(scale(tick), half), WIDTH - half)
        if middle - half >= right:
            ax.text(middle, y + LINE, text, ha="center")
            right = middle + half + 6
    ax.text((scale.start + scale.end) / 2, y + 2 * LINE, _shortened(title, WIDTH - 2 * EDGE), ha="center")


def _head_line(ax: Axes, y: float, label: str, said: str) -> None:
    """The text above a row: its label on the left, its numbers on the right."""
    said = _shortened(said, 0.7 * WIDTH)
    ax.text(EDGE, y + 12, _shortened(label, WIDTH - 2 * EDGE - _width(said) - 10), fontweight="bold")
    ax.text(WIDTH - EDGE, y + 12, said, ha="right")


def _segments(ax: Axes, segments: Iterable[tuple[tuple[float, float], tuple[float, float]]], **style: Any) -> None:
    """Straight lines as one path, which is a tenth of the bytes of one path each."""
    xs: list[float] = []
    ys: list[float] = []
    for (x0, y0), (x1, y1) in segments:
        xs += [x0, x1, math.nan]
        ys += [y0, y1, math.nan]
    if xs:
        ax.plot(xs, ys, solid_capstyle="butt", **style)


def _whisker(x: float, low: float, high: float) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    return [((x, low), (x, high)), ((x - 3, low), (x + 3, low)), ((x - 3, high), (x + 3, high))]


def _box(ax: Axes, left: float, right: float, y: float, height: float, *, color: str, alpha: float) -> None:
    """A filled box with a solid edge, so that its colour is seen however light its filling is."""
    xs, ys = [left, right, right, left], [y, y, y + height, y + height]
    ax.fill(xs, ys, facecolor=color, alpha=alpha, linewidth=0)
    ax.plot([*xs, left], [*ys, y], color=color, linewidth=1.2)


def _line_style(index: int) -> dict[str, Any]:
    color = PALETTE[index % len(PALETTE)]
    return {
        "color": color,
        "linestyle": DASHES[index % len(DASHES)],
        "linewidth": 2,
        "marker": MARKERS[index % len(MARKERS)],
        "markeredgewidth": 0,
    }


def _line_key(index: int) -> Callable[[Axes, float, float], None]:
    def draw(ax: Axes, x: float, y: float) -> None:
        ax.plot([x - 13, x + 13], [y, y], **_line_style(index) | {"marker": ""})
        _marker(ax, x, y, index, size=6)

    return draw


def _marker(ax: Axes, x: float, y: float, index: int, *, size: float) -> None:
    ax.plot([x], [y], **_line_style(index) | {"linestyle": ""}, markersize=size)


def _marker_key(index: int) -> Callable[[Axes, float, float], None]:
    def draw(ax: Axes, x: float, y: float) -> None:
        _marker(ax, x, y, index, size=8)

    return draw


def _box_key(index: int) -> Callable[[Axes, float, float], None]:
    def draw(ax: Axes, x: float, y: float) -> None:
        _box(ax, x - 10, x + 10, y - 6, 12, color=PALETTE[index % len(PALETTE)], alpha=0.5)

    return draw


def _number_key(index: int) -> Callable[[Axes, float, float], None]:
    def draw(ax: Axes, x: float, y: float) -> None:
        ax.text(x, y + 4, str(index), ha="center", fontweight="bold")

    return draw


def _tick_key(ax: Axes, x: float, y: float) -> None:
    ax.plot([x, x], [y - 8, y + 8], color=INK, linewidth=2, linestyle=(0, (3, 1.5)))


def _end(ax: Axes, x: float, y: float) -> None:
    ax.plot([x], [y], color=INK, marker="D", markersize=7, markeredgewidth=0)


def _claim_key(claim: ClaimLine) -> Callable[[Axes, float, float], None]:
    def draw(ax: Axes, x: float, y: float) -> None:
        edges = [y] if claim.high is None else [y + 5, y - 5]
        _claimed(ax, (x - 13, x + 13), edges, x=None if claim.x is None else x)

    return draw


def _draw_claim(ax: Axes, claim: ClaimLine, scale_x: _Scale, scale_y: _Scale) -> None:
    left, right = scale_x.start - 8, float(WIDTH - EDGE)
    if claim.x is not None:
        left, right = scale_x(claim.x) - 26, scale_x(claim.x) + 26
    edges = [scale_y(value) for value in (claim.value, claim.high) if value is not None]
    _claimed(ax, (left, right), edges, x=None if claim.x is None else scale_x(claim.x))


def _claimed(ax: Axes, between: tuple[float, float], edges: Sequence[float], *, x: float | None) -> None:
    """A dashed line, or a band between two; with a sign in its middle where it holds at one x alone."""
    left, right = between
    for y in edges:
        ax.plot([left, right], [y, y], color=INK, linewidth=1.5, linestyle=CLAIM_DASH)
    if len(edges) == 2:
        ax.fill([left, right, right, left], [edges[0]] * 2 + [edges[1]] * 2, color=INK, alpha=0.12, linewidth=0)
    if x is not None:
        ax.plot([x], [statistics.mean(edges)], color=INK, marker="D", markersize=7, markerfacecolor="none")


@contextmanager
def _own_style() -> Iterator[None]:
    """Draw with matplotlib as it comes and our settings, whatever the reader's are; silent on fonts."""
    import matplotlib as mpl  # noqa: PLC0415

    fonts = logging.getLogger("matplotlib.font_manager")
    level = fonts.level
    fonts.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), mpl.rc_context():
            warnings.simplefilter("ignore")
            mpl.rcdefaults()
            mpl.rcParams.update(STYLE)
            yield
    finally:
        fonts.setLevel(level)


def _render(picture: _Picture, *, title: str, note: str) -> HTML:
    from IPython.display import HTML  # noqa: PLC0415

    svg = _svg(picture)
    label = ". ".join(_text(part).rstrip(".") for part in (title, *picture.said, note) if part) + "."
    caption = f"<strong>{html.escape(_text(title))}</strong>" + (f"<br>{html.escape(_text(note))}" if note else "")
    tables = "".join(_table_html(table) for table in picture.tables)
    # Not inside the figure: what an image holds is not read out.
    return HTML(
        '<div class="cookbook-picture" style="margin:1em 0 1.5em">'
        f'<figure class="cookbook-plot" role="img" aria-label="{html.escape(label)}" style="margin:0 0 0.5em">{svg}'
        f"<figcaption>{caption}</figcaption></figure>"
        f'<details><summary>The numbers</summary><div style="overflow-x:auto" tabindex="0">{tables}</div></details>'
        "</div>"
    )


def _table_html(table: _Table) -> str:
    head = "".join(f'<th scope="col">{html.escape(_text(cell))}</th>' for cell in table.head)
    rows = "".join(
        f'<tr><th scope="row">{html.escape(cells[0])}</th>'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells[1:])
        + "</tr>"
        for cells in table.rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _svg(picture: _Picture) -> str:
    from matplotlib.figure import Figure  # noqa: PLC0415

    with _own_style():
        # 72 dots an inch make matplotlib's points the units of the view box.
        figure = Figure(figsize=(WIDTH / 72, picture.height / 72), dpi=72)
        ax = figure.add_axes((0, 0, 1, 1))
        ax.set_xlim(0, WIDTH)
        ax.set_ylim(picture.height, 0)
        ax.set_autoscale_on(False)
        ax.set_axis_off()
        figure.patch.set_visible(False)
        _draw_legend(ax, picture.keys)
        picture.draw(ax)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", dpi=72)
    return _cleaned(drawn.getvalue())


def _cleaned(drawn: str) -> str:
    """The SVG of matplotlib as a part of a page: no rules for the page's other elements, no names that clash."""
    root = ET.fromstring(drawn)  # noqa: S314 - matplotlib made it a moment ago
    for element in root.iter():
        element.tag = element.tag.removeprefix(SVG)
        element.text, element.tail = element.text if element.tag == "text" else None, None
    _without_wrapping(root)
    for element in root.iter():
        if XLINK in element.attrib:
            element.set("href", element.attrib.pop(XLINK))
        for key, value in list(element.attrib.items()):
            if key in {"d", "x", "y", "points", "transform", "width", "height"}:
                element.set(key, " ".join(LONG_NUMBER.sub(lambda m: f"{float(m[0]):.1f}", value).split()))
        if element.tag == "text":
            _page_font(element)
        if "style" in element.attrib:
            element.set("style", element.get("style", "").replace(INK, "currentColor").replace(": ", ":"))
    view_box = root.get("viewBox", "")
    root.attrib.clear()
    # The figure around it says what it shows, so a screen reader need not go through its texts.
    root.attrib |= {
        "xmlns": SVG.strip("{}"),
        "viewBox": view_box,
        "width": "100%",
        "style": f"max-width:{MAX_WIDTH};height:auto;font-family:inherit;font-size:{FONT}px;"
        "stroke-linejoin:round;stroke-linecap:butt",
        "fill": "currentColor",
        "aria-hidden": "true",
        "focusable": "false",
    }
    return _own_names(root)


def _without_wrapping(element: ET.Element) -> None:
    """Remove what a page has no use for: metadata, style rules, clipping, and groups that only carry a name."""
    children: list[ET.Element] = []
    for child in element:
        _without_wrapping(child)
        child.attrib.pop("clip-path", None)
        if child.tag in {"metadata", "style", "clipPath"} or (child.tag in {"defs", "g"} and not len(child)):
            continue
        if child.tag == "g" and not child.attrib.keys() - {"id"}:
            children += child
        else:
            children.append(child)
    element[:] = children


def _page_font(element: ET.Element) -> None:
    """Leave the choice of a font to the page; matplotlib names one, and turns each text by 0 degrees."""
    style = dict(part.split(":", 1) for part in element.get("style", "").split(";") if ":" in part)
    style = {key.strip(): value.strip() for key, value in style.items()}
    bold = "bold" in style.pop("font", "") or "700" in style.pop("font-weight", "")
    anchor = style.get("text-anchor", "start")
    element.attrib.pop("transform", None)
    element.set("style", "font-weight:bold" if bold else "")
    if not bold:
        del element.attrib["style"]
    if anchor != "start":
        element.set("text-anchor", anchor)


def _own_names(root: ET.Element) -> str:
    """As text, with ids that come from the content: two pictures of a page share none, unless they are the same."""
    used = list(dict.fromkeys(name for element in root.iter() for name in REFERENCE.findall(element.get("href", ""))))
    for element in root.iter():
        if element.get("id") not in used:
            element.attrib.pop("id", None)
    text = ET.tostring(root, encoding="unicode")
    prefix = "plot-" + hashlib.sha256(text.encode()).hexdigest()[:10]
    for i, name in enumerate(used):
        text = text.replace(f'"{name}"', f'"{prefix}-{i}"').replace(f'"#{name}"', f'"#{prefix}-{i}"')
    return text
