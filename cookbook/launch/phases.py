"""What vLLM's log says of the start: phases for people, and the figures that checks need. Pure functions on text.

The lines were seen in logs of 0.32.0 on CPUs, and read in its source for GPUs (graph capture, kernel warm-up, memory).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Phase", "PhaseReader", "attention_backend", "kv_cache_tokens"]

# "GPU", "CPU", or "GPU + host" where the cache has two pools.
KV_CACHE = re.compile(r" KV cache size: ([\d,]+) tokens")
BACKEND = re.compile(
    r"Using (?:AttentionBackendEnum\.)?(\w[\w ]*?)(?: attention)? backend(?:\.| out of| \(selected via --attention)"
)

# A name, what a line has to contain, the title, and the detail with the figures in it.
MARKS: tuple[tuple[str, re.Pattern[str], str, str], ...] = (
    ("engine", re.compile(r"Initializing a V\d LLM engine \(v?([^)]+)\)"), "Engine is initialising", "vLLM {}"),
    ("loading", re.compile(r"Starting to load model"), "Loading weights", ""),
    ("loaded", re.compile(r"Loading weights took ([\d.]+) seconds"), "Weights loaded", "{} s"),
    ("memory", re.compile(r"Model loading took ([\d.]+) (?:GiB|GB)"), "Memory for weights", "{} GiB"),
    ("compile", re.compile(r"torch\.compile took ([\d.]+) s"), "Compiled", "{} s"),
    ("kv_memory", re.compile(r"Available KV cache memory: ([\d.]+) GiB"), "Memory for the KV cache", "{} GiB"),
    ("kv_cache", KV_CACHE, "KV cache allocated", "{} tokens"),
    (
        "graphs",
        re.compile(r"(?<!Encoder )(?i:graph capturing finished) in ([\d.]+) secs?(?:, took ([\d.]+) GiB)?"),
        "Graphs captured",
        "{} s, {} GiB",
    ),
    ("init", re.compile(r"init engine \(.*?\) took ([\d.]+) s"), "Engine initialised", "{} s"),
    ("server", re.compile(r"Starting vLLM (?:API )?server"), "HTTP server is starting", ""),
)
# Progress bars: a name, the bar with its percentage, the title.
BARS: tuple[tuple[str, re.Pattern[str], str], ...] = (
    ("loading", re.compile(r"[Ll]oading ([^:]*):\s+(\d+)% Completed"), "Loading weights"),
    ("compiling", re.compile(r"(Compiling [^:|]*):\s+(\d+)%"), "Compiling"),
    ("warmup", re.compile(r"(\w+ (?:kernel )?warmup[^:|]*):\s+(\d+)%"), "Warming up kernels"),
    ("capturing", re.compile(r"Capturing (?:[\w -]*?)graphs?([^:|]*):\s+(\d+)%"), "Capturing graphs"),
)
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
        for name, pattern, title in BARS:
            bar = pattern.search(line)
            if bar:
                return self._bar(name, bar, title, seconds)
        for name, pattern, title, detail in MARKS:
            match = pattern.search(line)
            if match is None:
                continue
            if name in self._seen:
                return None
            self._seen.add(name)
            return Phase(name, title, detail.format(*match.groups("?")), seconds)
        return None

    def _bar(self, name: str, bar: re.Match[str], title: str, seconds: float) -> Phase | None:
        """A step of a progress bar; of several bars (kinds of graphs, shards of several workers) each has its own."""
        step = int(bar[2]) // STEP_PERCENT
        if step <= self._percent.get(bar[1], 0):
            return None
        self._percent[bar[1]] = step
        return Phase(name, title, f"{bar[2]} %", seconds)


def kv_cache_tokens(log: str) -> list[int]:
    """Tokens that the KV cache holds, one figure for each engine, as the log gives them."""
    return [int(match[1].replace(",", "")) for match in KV_CACHE.finditer(log)]


def attention_backend(log: str) -> str | None:
    """Name of the attention backend as the log gives it, for example "FLASHMLA"; None where it does not say.

    The backend of a vision encoder is another one and is not meant, nor is the one of MLA's prefill.
    """
    for line in log.splitlines():
        match = BACKEND.search(line)
        if match and not match[1].endswith("prefill"):
            return match[1]
    return None
