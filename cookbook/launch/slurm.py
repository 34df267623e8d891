"""A job of Slurm: submitted, looked at, and cancelled. Slurm's own commands do it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cookbook.errors import InputError, ServerError

__all__ = ["ENDED", "Job", "JobState", "submit"]

COMMAND_LIMIT_S = 60.0
GONE_LIMIT_S = 120.0
LOOK_EVERY_S = 0.5
# The controller of a busy cluster does not answer each time.
SILENT_LIMIT_S = 120.0
ENDED = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
        *("REVOKED", "TIMEOUT"),
    }
)
"""States out of which a job does not come back."""
FIELDS = ("JobState", "Reason", "NodeList", "StartTime")
UNKNOWN = frozenset({"(null)", "Unknown", "N/A"})


@dataclass(frozen=True)
class JobState:
    """What Slurm says of a job.

    Attributes:
        name: For example "PENDING", "RUNNING" or "NODE_FAIL".
        reason: Why it waits, or why it ended; "None" where there is nothing to say.
        nodes: Names of its nodes in Slurm's short form; empty before it has some.
        starts: When Slurm expects it to start, or when it did; empty where it does not know.
    """

    name: str
    reason: str = "None"
    nodes: str = ""
    starts: str = ""

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self.name in ENDED

    @classmethod
    def of(cls, text: str) -> JobState:
        """Out of `scontrol show job --oneliner`."""
        fields = dict(re.findall(r"(\w+)=(\S*)", text))
        known = {name: "" if fields.get(name) in UNKNOWN else fields.get(name, "") for name in FIELDS}
        return cls(known["JobState"], known["Reason"] or "None", known["NodeList"], known["StartTime"])


class Job:
    """A submitted job.

    Attributes:
        id: Its number, as Slurm prints it.
    """

    def __init__(self, job_id: str) -> None:
        self.id = job_id
        self._last = JobState("PENDING")
        self._heard = time.monotonic()

    def state(self) -> JobState:
        """What Slurm says of it now; what it said last, where it does not answer for a while.

        Raises:
            ServerError: Slurm has not answered for two minutes, or does not know the job any more.
        """
        done = _slurm("scontrol", "show", "job", "--oneliner", self.id)
        if done.returncode == 0:
            self._last = JobState.of(done.stdout)
            self._heard = time.monotonic()
        elif "Invalid job id" in done.stderr:
            self._last = JobState("COMPLETED")  # so long ago that Slurm has forgotten it
        elif time.monotonic() - self._heard > SILENT_LIMIT_S:
            raise ServerError(
                f"Slurm says nothing of job {self.id} any more: {done.stderr.strip()}.",
                f"Look whether it runs, and end it: squeue --job {self.id}, scancel {self.id}",
            )
        return self._last

    def ahead(self) -> int | None:
        """How many pending jobs of the same partitions have a higher priority; None where Slurm does not say."""
        own = _slurm("squeue", "--noheader", "--job", self.id, "--format", "%P %Q")
        if own.returncode != 0 or len(own.stdout.split()) != 2:
            return None
        partition, priority = own.stdout.split()
        others = _slurm(
            *("squeue", "--noheader", "--states", "PENDING", "--partition", partition, "--format", "%A %Q"),
        )
        pending = [line.split() for line in others.stdout.splitlines()]
        return sum(int(line[1]) > int(priority) for line in pending if line[0] != self.id)

    def addresses(self) -> tuple[tuple[str, str], ...]:
        """Name and address of each node, in the job's order, as the sbatch file has them."""
        names = _checked("scontrol", "show", "hostnames", self.state().nodes).split()
        return tuple((name, self._address(name)) for name in names)

    def _address(self, node: str) -> str:
        found = re.search(r"\bNodeAddr=(\S+)", _checked("scontrol", "show", "node", "--oneliner", node))
        return found[1] if found else node

    def step(self, node: str, name: str) -> tuple[str, ...]:
        """The words before a command that is to run beside the job's other steps.

        Args:
            node: Name of the node.
            name: Of the step.
        """
        options = (f"--jobid={self.id}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}")
        return ("srun", *options, "--gres=none", f"--job-name={name}", "--quiet")

    def cancel(self) -> bool:
        """Cancel it and wait until it has left the queue.

        Returns:
            Whether it has.
        """
        deadline = time.monotonic() + GONE_LIMIT_S
        while time.monotonic() < deadline:
            _slurm("scancel", self.id)
            left = _slurm("squeue", "--noheader", "--job", self.id)
            # An id that has been forgotten is an error, and an empty answer.
            if not left.stdout.strip() and (left.returncode == 0 or "Invalid job id" in left.stderr):
                return True
            time.sleep(LOOK_EVERY_S)
        return False


def submit(script: str, *, options: Sequence[str], environ: Mapping[str, str], output: Path) -> Job:
    """Submit a batch file.

    Args:
        script: Its text.
        options: Further ones of sbatch.
        environ: Of the job.
        output: Where its own output goes; its folder is the job's.

    Raises:
        InputError: There is no Slurm here, or it refuses the job.
    """
    if shutil.which("sbatch", path=environ.get("PATH", os.defpath)) is None:
        raise InputError(
            "There is no sbatch command here.",
            "Run this on a login node of the cluster, or start the commands of `cookbook show` by hand.",
        )
    # Inside of another job its variables would be taken as options.
    foreign = {name for name in environ if name.startswith(("SLURM_", "SBATCH_", "SRUN_")) and name != "SLURM_CONF"}
    own = {name: value for name, value in environ.items() if name not in foreign}
    words = ["sbatch", "--parsable", f"--output={output}", f"--chdir={output.parent}", *options]
    done = subprocess.run(
        words, input=script, env=own, capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=False
    )
    if done.returncode != 0:
        said = re.sub(r"sbatch: error: ", "", done.stderr).strip().rstrip(".")
        raise InputError(
            f"Slurm refuses the job: {said}.", "Choose with --partition and --sbatch; `sinfo` shows what there is."
        )
    return Job(done.stdout.strip().split(";")[0])


def _slurm(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(words, 1, "", str(error))


def _checked(*words: str) -> str:
    done = _slurm(*words)
    if done.returncode != 0:
        raise ServerError(f"`{' '.join(words)}` failed: {done.stderr.strip()}.", "Look whether Slurm answers: sinfo")
    return done.stdout
