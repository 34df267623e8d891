"""Why a server died, out of its log: pure functions on text.

The last line of a dead vLLM's log is seldom the reason. The API server ends with "Engine core initialization failed.
See root cause above", the engine core with "See stack trace for root cause", and the reason stands in a worker,
hundreds of lines earlier. So the first exception of the deepest process counts, and lines that only point to another
are passed over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["RootCause", "root_cause", "tail"]

PREFIX = re.compile(r"^\((?P<process>[A-Za-z]+)[^)]*\)\s?(?:[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\]\s?)?")
EXCEPTION = re.compile(r"^(?P<name>[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt))(?:: (?P<message>.*))?$")
USAGE = re.compile(r"^vllm.*?: error: (?P<message>.*)$")
POINTER = re.compile(r"[Ss]ee (?:stack trace|root cause)|encountered an issue|Worker failed with error")
DEPTH = {"Worker": 0, "EngineCore": 1}
LONGEST = 400

# What is known to help, in the order in which it is looked for.
HINTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"(?:CUDA|HIP) out of memory|OutOfMemoryError|No available memory for the cache blocks"),
        "Lower the GPU memory utilisation (0.90 is known to help) or the context length; check that no other process "
        "holds device memory.",
    ),
    (re.compile(r"[Aa]ddress already in use"), "Stop what listens there, or choose another port."),
    (
        re.compile(r"architectures? .*not supported|not supported for now"),
        "This vLLM is too old for the model: use the image that the recipe names.",
    ),
    (
        re.compile(r"gated repo|401 Client Error|403 Client Error", re.IGNORECASE),
        "Accept the model's licence on its hub page and set HF_TOKEN.",
    ),
    (
        re.compile(
            r"outgoing traffic has been disabled|LocalEntryNotFound|OfflineMode|Repo id must be|RepositoryNotFound"
        ),
        "Check the model's name or folder; without a network the model has to lie on disk already.",
    ),
    (re.compile(r"unrecognized arguments|invalid choice|expected one argument"), "Check the command: cookbook check."),
    (re.compile(r"Safetensor|safetensors"), "A weights file is damaged or incomplete: fetch the model again."),
    (re.compile(r"lib(?:cuda|cudart|amdhip)\S*\.so"), "The driver's libraries are not visible in this environment."),
)
NO_WORD = "A process of the server died without a word."
KILLED = "The kernel's OOM killer may have ended it: look at dmesg and at the memory of the machine."


@dataclass(frozen=True)
class RootCause:
    """Why a server died.

    Attributes:
        process: "Worker", "EngineCore" or "APIServer", where the log tells.
        what: The reason, on one line.
        hint: What is known to help; empty where nothing is.
    """

    process: str
    what: str
    hint: str


def root_cause(log: str, exit_code: int | None = None) -> RootCause:
    """The reason out of a log.

    Args:
        log: The text.
        exit_code: Of the command; above 128 it was a signal.
    """
    best: tuple[int, str, str] | None = None
    pointed = False
    lines = log.splitlines()
    for number, line in enumerate(lines):
        prefix = PREFIX.match(line)
        process = prefix["process"] if prefix else "APIServer"
        text = line[prefix.end() :] if prefix else line
        usage = USAGE.match(text)
        if usage:
            return _with_hint("APIServer", usage["message"])
        found = EXCEPTION.match(text)
        if found is None:
            continue
        if POINTER.search(text):
            pointed = True
            continue
        depth = DEPTH.get(process, len(DEPTH))
        if best is None or depth < best[0]:
            best = (depth, process, _joined(text, lines[number + 1 : number + 2], prefix))
    if best:
        return _with_hint(best[1], best[2])
    if exit_code is not None and exit_code > 128:
        return RootCause(
            "APIServer", f"The server was ended by signal {exit_code - 128}.", KILLED if exit_code == 137 else ""
        )
    if pointed:
        return RootCause("", NO_WORD, KILLED)
    code = "" if exit_code is None else f" with exit code {exit_code}"
    return RootCause("", f"The server ended{code} and its log names no reason.", "Look at the end of the log.")


def _joined(text: str, following: list[str], prefix: re.Match[str] | None) -> str:
    """An exception and its message; pydantic puts the message on the next line."""
    if text.rstrip().endswith(("validation error for VllmConfig", "validation error for ModelConfig")) and following:
        rest = following[0][prefix.end() :] if prefix else following[0]
        text = f"{text}: {rest.strip().partition(' [type=')[0]}"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def _with_hint(process: str, what: str) -> RootCause:
    return RootCause(process, what, next((hint for pattern, hint in HINTS if pattern.search(what)), ""))


def tail(log: str, lines: int = 15) -> str:
    """The last lines of a log that say something: interpreter noise at exit is left out."""
    noise = re.compile(r"nanobind|leaked|resource_tracker|warnings\.warn|^\s*$")
    return "\n".join([line[:LONGEST] for line in log.splitlines() if not noise.search(line)][-lines:])
