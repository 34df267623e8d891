"""`cookbook run --on slurm`: the job around the notebook of a recipe.

The job is the file of `cookbook show --format slurm`. The notebook is one more step of it, on its first node, so it
reaches servers that listen on loopback; logs, notebook and evidence are in the run's folder, which all nodes have to
see. Only the job that was submitted here is cancelled.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from cookbook.begin import Plan
from cookbook.catalog import Catalog
from cookbook.errors import CookbookError, ServerError, TimeLimitError
from cookbook.evidence import write_bytes
from cookbook.formats import slurm as sbatch_file
from cookbook.launch.loan import LentServer, Loan
from cookbook.launch.local import LOG_END_BYTES, Tail, death, reachable, read_log
from cookbook.launch.slurm import Job, JobState, submit
from cookbook.places import filled_in
from cookbook.redact import Redactor

__all__ = ["JobOfRun", "Order"]

LOOK_EVERY_S = 1.0
COMPLETING_LIMIT_S = 90.0
LINES_A_LOOK = 2
LONGEST_LINE = 160
STEP_ENDED = re.compile(r"^(?P<name>\S+) ended with code (?P<code>\d+); its log says why\.$", re.MULTILINE)
JOB_LOG = "job.log"

OnEvent = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Order:
    """How the job is submitted.

    Attributes:
        options: Of sbatch.
        queue_limit_s: How long it may wait for its nodes, in seconds.
    """

    options: tuple[str, ...] = ()
    queue_limit_s: float = 86400


class JobOfRun:
    """The job of one run. It is to be used in a `with` block, whose end cancels it.

    Args:
        catalog: The catalog.
        plan: What is to run; its addresses are open.
        folder: Of the run.
        order: How the job is submitted.
        on_event: Told what becomes of it.
    """

    def __init__(self, catalog: Catalog, plan: Plan, folder: Path, order: Order, on_event: OnEvent) -> None:
        self._catalog = catalog
        self._plan = plan
        self._folder = folder
        self._logs = folder / "logs"
        self._order = order
        self._on_event = on_event
        self._redactor = Redactor.from_environ(os.environ)
        self._job: Job | None = None
        self._head = ""
        self._tails = {
            process.name: Tail(self._logs / f"{process.name}.log", 0) for process in plan.deployment.processes
        }
        self._looked = 0.0

    def start(self) -> None:
        """Submit it, wait for its nodes, and leave word of its servers in the folder of the run.

        Raises:
            InputError: There is no Slurm here, or it refuses the job.
            ServerError: The job ended before it began, or Slurm does not answer.
            TimeLimitError: It waited too long.
        """
        # The command of this Python environment comes first on the nodes too.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        environ = {**os.environ, "PATH": path, "COOKBOOK_LOGS": str(self._logs)}
        text = sbatch_file.render(self._catalog, self._plan.deployment)
        self._job = submit(text, options=self._order.options, environ=environ, output=self._logs / JOB_LOG)
        nodes = self._plan.deployment.nodes
        self._say(f"Slurm job {self._job.id} is submitted: {nodes} node{'s' * (nodes != 1)}")
        self._wait(self._job)
        self._lend(self._job)

    def _wait(self, job: Job) -> None:
        deadline = time.monotonic() + self._order.queue_limit_s
        said = ""
        while True:
            state = job.state()
            if state.name == "RUNNING":
                self._say(f"Slurm job {job.id} runs on {state.nodes}")
                return
            if state.ended:
                raise self._ended(job, state)
            text = self._waits(job, state)
            if text != said:
                self._say(text)
                said = text
            if time.monotonic() > deadline:
                raise TimeLimitError(
                    f"Slurm job {job.id} was still in the queue after {self._order.queue_limit_s:g} s "
                    f"({state.name}, {state.reason}); it was cancelled.",
                    "Give it more time with --queue-limit, choose another --partition, or look at `sinfo -R`.",
                )
            time.sleep(LOOK_EVERY_S)

    def _waits(self, job: Job, state: JobState) -> str:
        ahead = job.ahead()
        place = "" if ahead is None else f", {ahead} job{'s' * (ahead != 1)} before it"
        expected = f", expected to start at {state.starts}" if state.starts else ""
        reason = f" ({state.reason.replace('_', ' ')})" if state.reason != "None" else ""
        return f"Slurm job {job.id} waits{reason}{place}{expected}"

    def _lend(self, job: Job) -> None:
        nodes = job.addresses()
        self._head = nodes[0][0]
        deployment = self._plan.deployment
        # As in the file: what is set in the environment comes before what Slurm says.
        found = {one.name: os.environ.get(one.name) or nodes[one.node][1] for one in deployment.addresses}
        for name, address in found.items():
            self._say(f"{name} is {address}")
        servers = []
        for process in (filled_in(process, found) for process in deployment.processes):
            url = f"http://{reachable(process.host)}:{process.port}"
            log = self._logs / f"{process.name}.log"
            servers.append(LentServer(process=process, base_url=url, called=process.name, log=log, log_start=0))
        Loan(recipes=(deployment.recipe,), servers=tuple(servers), job=job.id).write(self._folder)

    @property
    def step(self) -> tuple[str, ...]:
        """The words before the command of the notebook: it is a step of the job, on its first node."""
        assert self._job
        return self._job.step(self._head, "notebook")

    def look(self) -> CookbookError | None:
        """Show what the servers wrote, and see whether the job still runs; once a second at most.

        Returns:
            Why it does not, or None.
        """
        if time.monotonic() - self._looked < LOOK_EVERY_S:
            return None
        self._show_logs()
        found = self.ended()
        self._looked = time.monotonic()
        return found

    def ended(self) -> CookbookError | None:
        """Why the job does not run any more, or None."""
        assert self._job
        deadline = time.monotonic() + COMPLETING_LIMIT_S
        try:
            # While its steps are ended, Slurm does not say yet why.
            while (state := self._job.state()).name == "COMPLETING" and time.monotonic() < deadline:
                time.sleep(LOOK_EVERY_S)
        except ServerError as error:
            return error
        return self._ended(self._job, state) if state.ended else None

    def _show_logs(self) -> None:
        for name, tail in self._tails.items():
            lines = [line for line in tail.new() if line.strip()]
            for line in lines[-LINES_A_LOOK:]:
                text = self._redactor.text(line)[:LONGEST_LINE]
                self._on_event({"kind": "log", "title": f"{name}: {text}"})

    def _ended(self, job: Job, state: JobState) -> CookbookError:
        what = f"Slurm job {job.id}"
        match state.name:
            case "CANCELLED":
                return ServerError(
                    f"{what} was cancelled from outside, by scancel or an administrator.", "Ask who did, and run again."
                )
            case "TIMEOUT" | "DEADLINE":
                return TimeLimitError(f"{what} reached its time limit.", "Give it more: --sbatch time=HH:MM:SS")
            case "NODE_FAIL" | "BOOT_FAIL":
                return ServerError(
                    f"{what} lost a node: one of {state.nodes} went down ({state.name}).",
                    "See `sinfo -R`, and run again: Slurm takes other nodes.",
                )
            case "OUT_OF_MEMORY" | "PREEMPTED":
                return ServerError(
                    f"{what} was ended by Slurm: {state.name}.", "Run again with other --sbatch options."
                )
        ended = STEP_ENDED.search(read_log(self._logs / JOB_LOG, 0))
        if ended is None:
            return ServerError(f"{what} ended ({state.name}, {state.reason}).", f"See {self._logs / JOB_LOG}.")
        log = self._logs / f"{ended['name']}.log"
        text = self._redactor.text(read_log(log, 0, LOG_END_BYTES))
        return death(f"{ended['name']} of {what}", log, text, int(ended["code"]))

    def _say(self, title: str) -> None:
        self._on_event({"kind": "step", "title": title})

    def __enter__(self) -> JobOfRun:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._job:
            self._say(f"Slurm job {self._job.id} is cancelled")
            if not self._job.cancel():
                self._say(f"Slurm still has job {self._job.id}: look at squeue --job {self._job.id}")
        # Slurm wrote them, and not our supervisor, so nothing has taken the secrets out so far.
        for log in self._logs.glob("*.log"):
            write_bytes(log, self._redactor.text(log.read_text(errors="replace")).encode())
