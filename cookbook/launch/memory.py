"""Memory of this machine over a run, sampled beside it."""

from __future__ import annotations

import threading
import time

from cookbook import machine
from cookbook.evidence import Point, Series

__all__ = ["MemoryWatch"]

EVERY_S = 1.0
# More samples than a picture has room for say nothing more.
KEPT = 240


class MemoryWatch:
    """Samples the memory in use, of the host and of the devices where a tool tells it, until it is stopped.

    Attributes:
        marks: Events, in seconds since the first start.
    """

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._began: float | None = None
        self._samples: list[tuple[float, float, float | None]] = []
        self._thread: threading.Thread | None = None
        self._end = threading.Event()
        self.marks: dict[str, float] = {}

    def start(self) -> None:
        """Begin, or go on."""
        if self._thread:
            return
        self._began = self._began or time.monotonic()
        self._end.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling. Doing so again does nothing."""
        if self._thread:
            self._end.set()
            self._thread.join()
            self._thread = None

    def mark(self, name: str) -> None:
        """Note when something happened; of the same name the first counts."""
        if self._began is not None:
            self.marks.setdefault(name, time.monotonic() - self._began)

    def _run(self) -> None:
        assert self._began is not None
        while True:
            self._samples.append((time.monotonic() - self._began, machine.used_memory(), machine.used_device_memory()))
            if self._end.wait(self._every_s):
                return

    def series(self) -> tuple[Series, ...]:
        """Memory in GiB over the seconds of the run: of the host, and of all devices together where it is known."""
        step = max(1, len(self._samples) // KEPT)
        samples = self._samples[::step]
        host = [(seconds, used) for seconds, used, _ in samples]
        devices = [(seconds, used) for seconds, _, used in samples if used is not None]
        return tuple(
            Series(
                name=name,
                title=title,
                unit="GiB",
                x="Run (s)",
                points=tuple(Point(x=round(x, 1), values=(round(used / 2**30, 3),)) for x, used in points),
            )
            for name, title, points in (("host_memory", "Host", host), ("device_memory", "Devices", devices))
            if points
        )
