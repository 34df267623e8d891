"""What the cookbook costs, measured in one run on one machine. See scripts/bench."""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent
SAMPLE_EVERY_S = 0.1
COMMAND = [sys.executable, "-m", "cookbook"]


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(prog="scripts/bench")
    options.add_argument("--pairs", type=int, default=3, help="how often to run both sides (default 3)")
    options.add_argument("--fresh", action="store_true", help="also time scripts/run in a new clone, twice")
    chosen = options.parse_args()

    print("CPU time of commands that start no server (limit 0.4 s)")
    for words in (["list"], ["show", "b300_tp8"]):
        print(f"  cookbook {' '.join(words):14} {cpu_seconds([*COMMAND, *words]):.2f} s")

    print("Wall time of a rehearsal, the cookbook against a hand-written script (limit 1.25, aim 1.10)")
    ratios, peaks = [], []
    for pair in range(chosen.pairs):
        by_hand = hand_written()
        began = time.monotonic()
        peak = cookbook_run()
        wall = time.monotonic() - began
        ratios.append(wall / by_hand)
        peaks.append(peak)
        print(f"  pair {pair + 1}: {wall:.1f} s / {by_hand:.1f} s = {ratios[-1]:.3f}")
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
    print(f"  median {statistics.median(ratios):.3f}, {spread}")
    print("Peak memory of everything but the server (limit 400 MB)")
    print(f"  {max(peaks) / 1e6:.0f} MB (proportional set size: shared pages are divided among their users)")

    if chosen.fresh:
        print("scripts/run in a new clone with an empty cache (limit 360 s), and again (limit 90 s)")
        for name, seconds in fresh():
            print(f"  {name}: {seconds:.0f} s")


def cpu_seconds(command: list[str]) -> float:
    """User and system time of a command, the median of five."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return statistics.median(times)


def hand_written() -> float:
    """Wall time of the hand-written script, in seconds."""
    began = time.monotonic()
    subprocess.run([sys.executable, str(ROOT / "scripts" / "by_hand.py")], stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - began


def cookbook_run() -> int:
    """Run the recipe. Returns the peak memory of everything but the server, in bytes."""
    with tempfile.TemporaryDirectory() as runs:
        command = [*COMMAND, "run", "b300_tp8", "--on", "cpu", "--output", runs]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        peak = 0
        while process.poll() is None:
            peak = max(peak, memory(process.pid))
            time.sleep(SAMPLE_EVERY_S)
        if process.returncode != 0:
            sys.exit(f"the run ended with {process.returncode}")
    return peak


def memory(pid: int) -> int:
    """Proportional set size of a process and its descendants, without `vllm serve` and its own descendants."""
    total = 0
    waiting = [psutil.Process(pid)]
    while waiting:
        process = waiting.pop()
        with suppress(psutil.Error):
            if "serve" in process.cmdline()[2:3]:
                continue
            total += process.memory_full_info().pss
            waiting += process.children()
    return total


def fresh() -> list[tuple[str, float]]:
    """Time scripts/run in a new clone with an empty cache, twice."""
    times = []
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        environment = {**os.environ, "COOKBOOK_CACHE": str(Path(folder) / "cache")}
        for name in ("first", "second"):
            began = time.monotonic()
            subprocess.run([str(clone / "scripts" / "run")], env=environment, check=True)
            times.append((name, time.monotonic() - began))
    return times


if __name__ == "__main__":
    main()
