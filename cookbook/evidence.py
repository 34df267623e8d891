"""The record of one run: what ran where, with which versions, and what the checks found.

One JSON file a run. It is written at the end whatever happened, so a failed run leaves its evidence too.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from cookbook.errors import InputError

SCHEMA_VERSION: Literal[1] = 1

Verdict = Literal["pass", "fail", "left_out"]
Mode = Literal["hardware", "rehearsal", "attached"]
Status = Literal["passed", "failed", "server_failed", "timed_out", "interrupted", "error"]


class Record(BaseModel):
    """Base of everything that is written: unknown keys are an error, so a reader never guesses."""

    model_config = ConfigDict(frozen=True, extra="forbid")


R = TypeVar("R", bound=Record)


class CheckResult(Record):
    """What one check found.

    Attributes:
        name: Unique within a run, for example "prefix_cache_hits".
        title: For a reader.
        expected: What has to hold, in words or as a figure.
        measured: What was seen; empty where the check was left out.
        unit: Of expected and measured; empty for text.
        verdict: "left_out" is neither pass nor fail, and carries its reason in `detail`.
        detail: Why it failed or was left out; more on what was seen.
        source: Title of the source of the expectation.
        source_url: Its address, or None.
    """

    name: str
    title: str
    expected: str
    measured: str
    unit: str = ""
    verdict: Verdict
    detail: str = ""
    source: str
    source_url: str | None = None


class Substitution(Record):
    """What a rehearsal replaced or left out.

    Attributes:
        what: The thing, for example "--tensor-parallel-size".
        original: What the recipe says on its hardware.
        replacement: What the rehearsal runs instead; None where it was left out.
        reason: Why, as a sentence.
    """

    what: str
    original: str
    replacement: str | None
    reason: str


class Accelerator(Record):
    """One device that was seen. Memory in bytes; None where the tool does not say."""

    name: str
    memory_bytes: int | None = None
    driver: str = ""


class Machine(Record):
    """What the run saw of its machine. No host name, address or user: those are not the reader's business."""

    system: str
    processor: str
    cores: int
    memory_bytes: int
    accelerators: tuple[Accelerator, ...] = ()


class CommandRecord(Record):
    """A command as it was run."""

    name: str
    role: str
    node: int
    argv: tuple[str, ...]
    environment: dict[str, str]


class Timing(Record):
    """How long a part took. Seconds."""

    name: str
    seconds: float


class Point(Record):
    """What was measured at one place of a curve: each repetition, in the order in which they were made."""

    x: float
    values: tuple[float, ...]


class Series(Record):
    """A measured curve.

    Attributes:
        name: Unique within a run, for example "decode_step".
        title: For a reader, for example "Decode step".
        unit: Of the values, for example "ms".
        x: What the points lie along, for a reader, with its unit, for example "Prompt (tokens)".
        points: In the order in which they were measured.
    """

    name: str
    title: str
    unit: str
    x: str
    points: tuple[Point, ...]


class NotebookRecord(Record):
    """The executed notebook, and what really happened in it.

    Attributes:
        file: Its name beside the evidence.
        sha256: Digest of the executed notebook as it lies on disk.
        source_sha256: Digest of the recipe that it was made from.
        code_cells: How many cells have code.
        executed_cells: How many of those were executed.
        error: The first error output, as "Name: message"; empty when there was none.
    """

    file: str
    sha256: str
    source_sha256: str
    code_cells: int
    executed_cells: int
    error: str = ""


class RunRecord(Record):
    """What the run knows while it is going on. The notebook writes it after each step; the end adds the rest.

    Attributes:
        run_id: Time of the start in UTC and a random part; sorts by time.
        mode: "hardware", "rehearsal" or "attached" (to a server that was already running).
        hardware: Key of the hardware that the recipe is for, whatever it ran on.
        machine: What it really ran on.
        image: The image's tag as the recipe names it; None in a rehearsal.
        image_digest: Its digest, where the run could learn it.
        environment: Allow-listed variables only, never the whole environment.
        series: Curves that were measured.
        answers: Token ids of answers at temperature 0, by the name of the prompt, for another run to compare with.
        server_error: Why the server died while the notebook used it; empty when it did not.
    """

    run_id: str
    recipe: str
    title: str
    mode: Mode
    started_at: datetime
    hardware: str
    hardware_title: str
    machine: Machine
    versions: dict[str, str]
    model: str
    served_model_name: str
    image: str | None = None
    image_digest: str | None = None
    commands: tuple[CommandRecord, ...] = ()
    environment: dict[str, str] = Field(default_factory=dict)
    parameters: dict[str, JsonValue] = Field(default_factory=dict)
    substitutions: tuple[Substitution, ...] = ()
    checks: tuple[CheckResult, ...] = ()
    timings: tuple[Timing, ...] = ()
    series: tuple[Series, ...] = ()
    answers: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    server_error: str = ""


class Evidence(RunRecord):
    """One finished run. Times are UTC.

    Attributes:
        status: What became of it; "error" is a broken notebook or machine, neither pass nor fail.
        exit_code: What the command ended with.
        error: One paragraph; empty when it passed.
        notebook: None when no notebook was left.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    status: Status
    exit_code: int
    error: str = ""
    ended_at: datetime
    notebook: NotebookRecord | None = None


def write(path: Path, record: Record) -> None:
    """Write `record` as JSON, whole or not at all.

    Raises:
        InputError: The folder is read-only or full. Whatever stood at `path` before is untouched.
    """
    write_bytes(path, (record.model_dump_json(indent=2) + "\n").encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file through a temporary neighbour, so that a reader sees the old or the new one and nothing between.

    Raises:
        InputError: The folder is read-only or full. Whatever stood at `path` before is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror}.",
            "Free some space or name another folder with --output.",
        ) from error


def read(path: Path) -> Evidence:
    """Read evidence.

    Raises:
        InputError: The file is missing, is not evidence, or has another schema version.
    """
    return _read(path, Evidence)


def read_record(path: Path) -> RunRecord:
    """Read the record that a run keeps while it is going on.

    Raises:
        InputError: The file is missing or is not such a record.
    """
    return _read(path, RunRecord)


def _read(path: Path, kind: type[R]) -> R:
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror}.", "Name a folder that a run left behind."
        ) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise InputError(
            f"{path} is not evidence of schema version {SCHEMA_VERSION}: {key}: {first['msg']}.",
            "It may come from another version of the cookbook.",
        ) from error


def latest(runs: Path, recipe: str) -> Path | None:
    """The folder of the newest finished run of `recipe`, or None. Run ids sort by time."""
    folders = sorted(path.parent for path in (runs / recipe).glob("*/evidence.json"))
    return folders[-1] if folders else None
