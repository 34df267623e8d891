"""The record of one run: what ran where, with which versions, and what the checks found.

One JSON file a run. It is written at the end whatever happened, so a failed run leaves its evidence too.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, JsonValue

SCHEMA_VERSION: Literal[1] = 1

Verdict = Literal["pass", "fail", "left_out"]
Mode = Literal["hardware", "rehearsal", "attached"]
Status = Literal["passed", "failed", "server_failed", "timed_out", "interrupted", "error"]


class Record(BaseModel):
    """Base of everything that is written: unknown keys are an error, so a reader never guesses."""

    model_config = ConfigDict(frozen=True, extra="forbid")


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


class Evidence(Record):
    """One run. Times are UTC."""

    schema_version: Literal[1] = SCHEMA_VERSION
    run_id: str
    recipe: str
    title: str
    mode: Mode
    status: Status
    exit_code: int
    error: str = ""
    started_at: datetime
    ended_at: datetime
    hardware: str
    hardware_title: str
    machine: Machine
    versions: dict[str, str]
    model: str
    served_model_name: str
    image: str | None = None
    image_digest: str | None = None
    commands: tuple[CommandRecord, ...]
    environment: dict[str, str]
    parameters: dict[str, JsonValue]
    substitutions: tuple[Substitution, ...]
    checks: tuple[CheckResult, ...]
    timings: tuple[Timing, ...]
    notebook: NotebookRecord | None = None
