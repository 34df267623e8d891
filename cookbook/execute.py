"""`cookbook run`: a recipe's notebook under papermill, and the evidence at the end, whatever the end was.

    cookbook run ── supervisor ── papermill ── kernel ── supervisor ── vllm serve ── engine, workers
    (this)          (launch.supervisor, twice the same program: it ends what is below it when what is above it is gone)

papermill's exit code and its metadata are not believed: a run counts as executed when every code cell has an execution
count and no output is an error.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import JsonValue, TypeAdapter

from cookbook import begin, evidence
from cookbook.catalog import OVERLAY, Catalog
from cookbook.errors import ChecksFailed, CookbookError, InputError, Interrupted, ServerError, TimeLimitError
from cookbook.events import follow
from cookbook.evidence import Evidence, NotebookRecord, RunRecord, Status
from cookbook.launch.loan import LOAN
from cookbook.launch.processes import become_subreaper, end
from cookbook.launch.supervisor import LEFT_BEHIND_GRACE_S
from cookbook.notebook import source
from cookbook.onslurm import JobOfRun, Order
from cookbook.pool import Pool
from cookbook.redact import Redactor

__all__ = ["Outcome", "execute", "look_at", "settings", "verdict"]

LOOK_EVERY_S = 0.2
ORDERLY_END_S = 30.0

STATUS: dict[int, Status] = {1: "failed", 2: "error", 3: "server_failed", 4: "timed_out", 130: "interrupted"}


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        folder: Where evidence, notebook and logs lie.
        evidence: What was recorded.
    """

    folder: Path
    evidence: Evidence


def execute(
    catalog: Catalog,
    recipe: str,
    parameters: Mapping[str, JsonValue],
    defaults: Mapping[str, JsonValue],
    *,
    runs: Path,
    time_limit_s: float,
    on_event: Callable[[Mapping[str, Any]], None],
    pool: Pool,
    order: Order | None = None,
) -> Outcome:
    """Run a recipe's notebook and leave evidence.

    Args:
        catalog: The catalog.
        recipe: Name of the recipe.
        parameters: Values to inject into the notebook, already checked.
        defaults: What the notebook sets where nothing is injected.
        runs: Folder in which the run's folder is made.
        time_limit_s: Bound on the whole run, in seconds.
        on_event: Told what happens while it goes on.
        pool: Lends servers to recipes that share some.
        order: Of the Slurm job that runs it; None runs it on this machine.

    Returns:
        The outcome; a check that fell short or a server that died is an outcome, not an exception.

    Raises:
        InputError: Something is wrong before anything was started, or the evidence cannot be written.
    """
    notebook = source(catalog, recipe)
    chosen = settings(parameters, defaults)
    folder = begin.run_folder(runs, recipe).absolute()
    plan = begin.plan(
        catalog,
        recipe,
        chosen,
        on_step=lambda text: on_event({"kind": "step", "title": text}),
        storage=folder / begin.SECOND_TIER,
        in_job=order is not None,
    )
    if order and chosen.base_url:
        raise InputError(
            "base_url and --on slurm exclude each other: the job starts a server.", "Leave one of them out."
        )
    begin.make_run_folder(folder)
    on_event({"kind": "step", "title": f"Run folder: {folder}"})
    record = begin.record(plan, folder)

    words = [sys.executable, "-m", "cookbook.notebook_process"]
    words.append(json.dumps({"source": str(notebook), "folder": str(folder), "parameters": parameters}))
    papermill = _Papermill(words, _environment(catalog, folder), folder, time_limit_s, on_event)
    if order:
        with JobOfRun(catalog, plan, folder, order, on_event) as job:
            failure = _started(job.start) or papermill.in_job(job)
    else:
        failure = _started(lambda: pool.lend(recipe, plan, folder, on_event))
        failure = failure or papermill.run(pool.sessions)
        pool.take_back(recipe, folder)
    # A kernel that was killed could not do it.
    shutil.rmtree(folder / begin.SECOND_TIER, ignore_errors=True)
    executed = look_at(folder / "notebook.ipynb", notebook)
    with suppress(InputError):  # the kernel may never have come so far
        record = evidence.read_record(folder / "record.json")
    failure = failure or verdict(executed, record)
    finished = _finish(record, executed, failure)
    evidence.write(folder / "evidence.json", finished)
    for temporary in ("record.json", "events.jsonl", LOAN):
        (folder / temporary).unlink(missing_ok=True)
    return Outcome(folder, finished)


def settings(parameters: Mapping[str, JsonValue], defaults: Mapping[str, JsonValue]) -> begin.Parameters:
    """A notebook's parameters as it will see them; the arguments are those of `execute`."""
    return TypeAdapter(begin.Parameters).validate_python({**defaults, **parameters})


def _environment(catalog: Catalog, folder: Path) -> dict[str, str]:
    """Of papermill and the kernel: the run's folder, and the same catalog."""
    overlay = {OVERLAY: str(catalog.overlay)} if catalog.overlay else {}
    return {**os.environ, **overlay, "COOKBOOK_RUN_FOLDER": str(folder), "NO_MKDOCS_2_WARNING": "1"}


def _started(begin_it: Callable[[], None]) -> CookbookError | None:
    """Do what comes before the notebook, and return why it failed, or None."""
    try:
        with _ended_by_signals():
            begin_it()
    except CookbookError as error:
        return error
    return None


@dataclass(frozen=True)
class _Papermill:
    """papermill under the supervisor.

    Attributes:
        words: Its command.
        environ: Its environment, and that of the kernel.
        folder: Of the run.
        time_limit_s: Bound on it, in seconds.
        on_event: Told what happens.
    """

    words: list[str]
    environ: dict[str, str]
    folder: Path
    time_limit_s: float
    on_event: Callable[[Mapping[str, Any]], None]

    def in_job(self, job: JobOfRun) -> CookbookError | None:
        """Run it as a step of a Slurm job. Arguments and result are those of `run`."""
        # A first SIGINT makes srun print what its tasks do; SIGTERM it passes on.
        failure = replace(self, words=[*job.step, *self.words]).run((), look=job.look, polite=signal.SIGTERM)
        # When a job ends, its steps end a moment before Slurm says so.
        return failure or job.ended()

    def run(
        self,
        spare: tuple[int, ...],
        look: Callable[[], CookbookError | None] = lambda: None,
        polite: int = signal.SIGINT,
    ) -> CookbookError | None:
        """Run it, and leave nothing of it but the sessions that are spared.

        Args:
            spare: Their ids.
            look: Asked again and again whether there is a reason to end it.
            polite: The signal at which it ends in good order.

        Returns:
            Why it was ended from here, or None when it ended by itself.
        """
        command = [sys.executable, "-m", "cookbook.launch.supervisor", "--owner", str(os.getpid())]
        command += ["--log", str(self.folder / "logs" / "papermill.log"), "--", *self.words]
        events = follow(self.folder)
        deadline = time.monotonic() + self.time_limit_s
        become_subreaper()
        with (
            _signals() as received,
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env=self.environ
            ) as supervisor,
        ):
            try:
                reason: CookbookError | None = None
                while supervisor.poll() is None:
                    for event in next(events):
                        self.on_event(event)
                    reason = Interrupted(received[0]) if received else look()
                    if time.monotonic() > deadline:
                        reason = reason or TimeLimitError(
                            f"The run was not over after {self.time_limit_s:g} s.", "Give it more with --time-limit."
                        )
                    if reason:
                        _end_in_order(supervisor, polite, self.on_event)
                        break
                    with suppress(subprocess.TimeoutExpired):
                        supervisor.wait(LOOK_EVERY_S)
                for event in next(events):
                    self.on_event(event)
            finally:
                # End of file is the supervisor's sign to end all that is left.
                assert supervisor.stdin
                supervisor.stdin.close()
                supervisor.wait()
                # Nothing is left by now, unless somebody killed the supervisor.
                end((), below=os.getpid(), spare=spare, grace_s=LEFT_BEHIND_GRACE_S)
        if reason is None and supervisor.returncode == InputError.exit_code:
            # The log cannot tell: it lies on the same disk.
            return InputError(
                f"The executed notebook could not be saved in {self.folder}: the disk is full or read-only.",
                "Free some space, or name another folder with --output.",
            )
        return reason


def _end_in_order(
    supervisor: subprocess.Popen[bytes], polite: int, on_event: Callable[[Mapping[str, Any]], None]
) -> None:
    """Let papermill end the kernel and save the notebook; what is not gone in time is ended by the supervisor."""
    on_event({"kind": "step", "title": "Stopping: the notebook is saved and every process ended."})
    assert supervisor.stdout
    with suppress(ValueError, KeyError, ProcessLookupError):
        os.kill(json.loads(supervisor.stdout.readline())["pid"], polite)
    with suppress(subprocess.TimeoutExpired):
        supervisor.wait(ORDERLY_END_S)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in a list in place of dying of them."""
    received: list[int] = []

    def note(signum: int, _: FrameType | None) -> None:
        received.append(signum)

    with _handled_by(note):
        yield received


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Have SIGINT and SIGTERM raise `Interrupted`, for where no loop looks at what came."""

    def end_it(signum: int, _: FrameType | None) -> None:
        raise Interrupted(signum)

    with _handled_by(end_it):
        yield


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def look_at(executed: Path, recipe: Path) -> NotebookRecord | None:
    """What really happened in an executed notebook; None where there is none.

    Args:
        executed: The notebook that papermill wrote.
        recipe: The notebook that it was made from.
    """
    if not executed.exists():
        return None
    content = executed.read_bytes()
    cells = [c for c in json.loads(content)["cells"] if c["cell_type"] == "code" and "".join(c["source"]).strip()]
    outputs = [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"]
    return NotebookRecord(
        file=executed.name,
        sha256=hashlib.sha256(content).hexdigest(),
        source_sha256=hashlib.sha256(recipe.read_bytes()).hexdigest(),
        code_cells=len(cells),
        executed_cells=sum(cell["execution_count"] is not None for cell in cells),
        error=f"{outputs[0]['ename']}: {outputs[0]['evalue']}" if outputs else "",
    )


def verdict(notebook: NotebookRecord | None, record: RunRecord) -> CookbookError | None:
    """What the executed notebook and the checks say of a run that ended by itself; None when all is well."""
    if record.server_error:
        return ServerError(record.server_error)
    if notebook is None:
        return ChecksFailed("papermill left no notebook.", "See logs/papermill.log in the run's folder.")
    if notebook.error:
        name, _, message = notebook.error.partition(": ")
        for kind in (InputError, ServerError, TimeLimitError, ChecksFailed):
            if name == kind.__name__:
                return kind(message)
        return ChecksFailed(f"A cell of the notebook failed: {notebook.error}.", "See the executed notebook.")
    if notebook.executed_cells < notebook.code_cells:
        return ChecksFailed(
            f"Only {notebook.executed_cells} of {notebook.code_cells} cells were executed: the kernel ended early.",
            "See logs/papermill.log in the run's folder.",
        )
    failed = [check.title for check in record.checks if check.verdict == "fail"]
    if failed:
        return ChecksFailed(f"These checks fell short: {', '.join(failed)}.")
    if all(check.verdict == "left_out" for check in record.checks):
        return ChecksFailed("No check was made.", "A run without checks proves nothing.")
    return None


def _finish(record: RunRecord, notebook: NotebookRecord | None, failure: CookbookError | None) -> Evidence:
    code = failure.exit_code if failure else 0
    if isinstance(failure, Interrupted):
        code = 128 + failure.signum
    broken = isinstance(failure, ChecksFailed) and not any(check.verdict == "fail" for check in record.checks)
    status: Status = "passed" if failure is None else "error" if broken else STATUS[failure.exit_code]
    finished = Evidence(
        **dict(record),
        status=status,
        exit_code=code,
        error=str(failure) if failure else "",
        ended_at=datetime.now(UTC),
        notebook=notebook,
    )
    clean = Redactor.from_environ(os.environ).value(finished.model_dump(mode="json"))
    return Evidence.model_validate(clean)
