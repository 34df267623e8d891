"""What vLLM's log says of the start: phases for people, and the figures that checks need. Pure functions on text."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Phase", "PhaseReader", "kv_cache_tokens"]

KV_CACHE = re.compile(r"(?:GPU|CPU) KV cache size: ([\d,]+) tokens")

# In the order in which a start passes them: a name, what a line has to contain, the title. Group 1 is the detail.
MARKS: tuple[tuple[str, re.Pattern[str], str], ...] = (
    ("engine", re.compile(r"Initializing a V1 LLM engine \((v[^)]+)\)"), "Engine process is up"),
    ("loading", re.compile(r"Starting to load model"), "Loading weights"),
    ("progress", re.compile(r"Loading .*:\s+(\d+)% Completed"), "Loading weights"),
    ("loaded", re.compile(r"Loading weights took ([\d.]+) seconds"), "Weights loaded"),
    ("memory", re.compile(r"Model loading took ([\d.]+ GiB)"), "Memory for weights"),
    ("compile", re.compile(r"torch\.compile took ([\d.]+ s)"), "Compiled"),
    ("kv_cache", KV_CACHE, "KV cache allocated"),
    ("graphs_progress", re.compile(r"Capturing .*?graphs?.*?:\s+(\d+)%"), "Capturing graphs"),
    ("graphs", re.compile(r"Graph capturing finished in ([\d.]+ secs?)"), "Graphs captured"),
    ("init", re.compile(r"init engine \(.*?\) took ([\d.]+ s)"), "Engine initialised"),
    ("server", re.compile(r"Starting vLLM (?:API )?server"), "HTTP server is starting"),
)
UNITS = {"loaded": "{} s", "progress": "{} %", "graphs_progress": "{} %", "kv_cache": "{} tokens"}
STEP_PERCENT = 10


@dataclass(frozen=True)
class Phase:
    """A step of the start.

    Attributes:
        name: For programs, for example "kv_cache".
        title: For people.
        detail: A figure out of the log, or empty.
        seconds: Since the start of the process.
    """

    name: str
    title: str
    detail: str
    seconds: float


class PhaseReader:
    """Turns log lines into phases, each told once however many workers log it; percentages in steps of ten."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._percent: dict[str, int] = {}

    def read(self, line: str, seconds: float) -> Phase | None:
        """The phase that begins with this line, or None.

        Args:
            line: One line of the log.
            seconds: Since the start of the process.
        """
        for name, pattern, title in MARKS:
            match = pattern.search(line)
            if match is None:
                continue
            figure = match[1] if pattern.groups else ""
            if name in {"progress", "graphs_progress"}:
                step = int(figure) // STEP_PERCENT
                if step <= self._percent.get(name, 0):
                    return None
                self._percent[name] = step
            elif name in self._seen:
                return None
            self._seen.add(name)
            return Phase(name, title, UNITS.get(name, "{}").format(figure) if figure else "", seconds)
        return None


def kv_cache_tokens(log: str) -> list[int]:
    """Tokens that the KV cache holds, one figure for each engine, as the log gives them."""
    return [int(match[1].replace(",", "")) for match in KV_CACHE.finditer(log)]
