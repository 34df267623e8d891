"""Why a server died, out of its log: pure functions on text.

The last line of a dead vLLM's log is seldom the reason. The API server ends with "Engine core initialization failed.
See root cause above", the engine core with "See stack trace for root cause", and the reason stands in a worker,
hundreds of lines earlier. So the first exception of the deepest process counts, and lines that only point to another
are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cookbook.launch.hints import KILLED, hint

__all__ = ["RootCause", "root_cause", "tail"]

PREFIX = re.compile(
    r"^(?:\((?P<process>[A-Za-z]+)[^)]*\)\s?)?"
    r"(?:(?P<level>[A-Z]+) (?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)? \[[^\]]*\]\s?)?"
)
EXCEPTION = re.compile(
    r"^(?P<name>[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Failure)(?:\([\w.]+\))?|Fatal Python error)"
    r"(?:: ?(?P<message>.*))?$"
)
USAGE = re.compile(r"^vllm.*?: error: (?P<message>.*)$")
OF_PROCESS = re.compile(r"^Process (?P<process>[A-Za-z]+)[^:\s]*:$")
CHAINED = re.compile(r"^(?:The above exception was the direct cause|During handling of the above exception)")
POINTER = re.compile(
    r"[Ss]ee (?:stack trace|root cause)|encountered an issue|Worker failed with error|EngineDeadError|SystemExit"
    r"|KeyboardInterrupt|CancelledError|BrokenPipeError"
)
DIED = re.compile(
    r"(?:Worker proc (?P<worker>\S+) died unexpectedly \(exit code: |'(?P<core>EngineCore\w*)': )-(?P<signal>\d+)"
)
VALIDATION = re.compile(r"validation errors? for \w+$")
SAYS_LITTLE = re.compile(rf"{VALIDATION.pattern}|\d{{3}} Client Error|:$")
MODULE = re.compile(r"^(?:\w+\.)+(?=\w)")
FRAME = re.compile(r'^File "(?P<file>[^"]+)", line (?P<line>\d+)')
CARETS = re.compile(r"^[\s~^]*$")
ERROR_LEVELS = (None, "ERROR", "CRITICAL")

# Deepest first. A worker that was killed leaves no exception; it counts before what the engine core makes of it.
DEPTHS = (("Worker", 0), ("EngineCore", 2))
DEPTH_OF_SIGNAL = 1
SHALLOWEST = 3
LONGEST = 400
CONTEXT_LINES = 8
NOISE = re.compile(
    r"nanobind|leaked (?:instance|type|function)|skipped remainder|resource_tracker|warnings\.warn|^\s*$"
)


@dataclass(frozen=True)
class RootCause:
    """Why a server died.

    Attributes:
        process: "Worker", "EngineCore" or "APIServer", where the log tells.
        what: The reason, on one line.
        hint: What is known to help; empty where nothing is.
        context: The lines of the log that lead to it, without their prefixes; empty where there are none.
    """

    process: str
    what: str
    hint: str
    context: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Line:
    process: str
    level: str | None
    text: str


def root_cause(log: str, exit_code: int | None = None) -> RootCause:
    """The reason out of a log.

    Args:
        log: The text.
        exit_code: Of the command; above 128 it was a signal.
    """
    lines = list(_lines(log))
    deepest: tuple[int, int] | None = None
    pointed = False
    for number, line in enumerate(lines):
        depth = _depth(line)
        if depth is not None and (deepest is None or depth < deepest[0]):
            deepest = depth, number
        pointed = pointed or _points_elsewhere(line)
    if deepest:
        return _reason(lines, deepest[1])
    if exit_code is not None and exit_code > 128:
        number = exit_code - 128
        return RootCause("APIServer", f"The server was ended by signal {number}.", KILLED if number == 9 else "")
    if pointed:
        return RootCause("", "A process of the server died without a word.", KILLED)
    code = "" if exit_code is None else f" with exit code {exit_code}"
    return RootCause("", f"The server ended{code} and its log names no reason.", "Look at the end of the log.")


def _depth(line: _Line) -> int | None:
    """How deep the process is whose end this line explains, 0 for a worker; None where it explains nothing."""
    if DIED.search(line.text):
        return DEPTH_OF_SIGNAL
    if USAGE.match(line.text):
        return 0
    if line.level not in ERROR_LEVELS or not EXCEPTION.match(line.text) or POINTER.search(line.text):
        return None
    return next((depth for name, depth in DEPTHS if name in line.process), SHALLOWEST)


def _points_elsewhere(line: _Line) -> bool:
    return bool(EXCEPTION.match(line.text) and POINTER.search(line.text))


def _reason(lines: Sequence[_Line], number: int) -> RootCause:
    text = lines[number].text
    died = DIED.search(text)
    if died:
        who = f"The worker {died['worker']}" if died["worker"] else died["core"]
        process = "Worker" if died["worker"] else "EngineCore"
        return RootCause(
            process, f"{who} was ended by signal {died['signal']}.", KILLED if died["signal"] == "9" else ""
        )
    usage = USAGE.match(text)
    if usage:
        return RootCause("APIServer", usage["message"], hint(usage["message"]))
    return _exception(lines, number)


def _exception(lines: Sequence[_Line], number: int) -> RootCause:
    """An exception with its message, what was made of it by those who caught it, and the frames that it came from."""
    process = lines[number].process
    own = [(at, line.text) for at, line in enumerate(lines) if line.process == process]
    texts = [text for _, text in own]
    here = [at for at, _ in own].index(number)
    what = _message(texts, here)
    # "direct cause" and "during handling": what was raised in the end says more; the first says where it began.
    first = what
    end = _next_of_chain(texts, here)
    while end is not None:
        here, what = end, _message(texts, end)
        end = _next_of_chain(texts, here)
    if what != first:
        what = f"{what.rstrip('.')} (it began with {first.rstrip('.')})"
    before = [text.strip() for text in texts[max(0, here - 4 * CONTEXT_LINES) : here] if not CARETS.match(text)]
    context = (*before[-CONTEXT_LINES:], texts[here][:LONGEST])
    name = next((known for known, _ in DEPTHS if known in process), "APIServer")
    return RootCause(name, what, hint(what), context)


def _next_of_chain(texts: Sequence[str], here: int) -> int | None:
    after = range(here + 1, min(here + 6, len(texts)))
    joint = next((at for at in after if CHAINED.match(texts[at].strip())), None)
    if joint is None:
        return None
    following = (at for at in range(joint, len(texts)) if EXCEPTION.match(texts[at]))
    found = next(following, None)
    return None if found is None or POINTER.search(texts[found]) else found


def _message(texts: Sequence[str], here: int) -> str:
    """An exception and its message on one line."""
    text = MODULE.sub("", texts[here].strip())
    if SAYS_LITTLE.search(text):
        # pydantic and the hub's client put what matters on the lines that follow.
        rest = [line.strip().partition(" [type=")[0] for line in texts[here + 1 : here + 5]]
        kept = [line.removeprefix("Value error, ") for line in rest if line and "errors.pydantic" not in line]
        text = " ".join([text.partition(": ")[0] + ":" if VALIDATION.search(text) else text, *kept])
    elif ":" not in text:
        frames = [match for line in texts[max(0, here - 8) : here] if (match := FRAME.match(line.strip()))]
        code = next((line.strip() for line in reversed(texts[:here]) if not CARETS.match(line)), "")
        where = f"{frames[-1]['file']}, line {frames[-1]['line']}" if frames else ""
        text = f"{text} at {where}: {code}" if where else text
    text = text.partition(" Supported architectures: ")[0]
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def _lines(log: str) -> Iterator[_Line]:
    """The lines with the process that they come from. A bare traceback belongs to the process named before it."""
    owner = "APIServer"
    for raw in log.splitlines():
        prefix = PREFIX.match(raw)
        assert prefix  # it can match nothing
        text = raw[prefix.end() :]
        named = OF_PROCESS.match(text)
        if named:
            owner = named["process"]
        yield _Line(prefix["process"] or owner, prefix["level"], text)
        if not prefix["process"] and EXCEPTION.match(text):
            owner = "APIServer"


def tail(log: str, lines: int = 15) -> str:
    """The last lines of a log that say something: interpreter noise at exit is left out."""
    return "\n".join([line[:LONGEST] for line in log.splitlines() if not NOISE.search(line)][-lines:])
