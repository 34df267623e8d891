"""A real Slurm of two nodes on this machine: munged, slurmctld and two slurmd, in a folder of their own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
NODES = ("n0", "n1")
LIMIT_S = 60.0

CONF = """\
ClusterName=cookbook
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={controller}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdTimeout=10
KillWait=10
SchedulerParameters=bf_interval=2,sched_interval=2
PartitionName=debug Nodes={nodes} Default=YES MaxTime=INFINITE State=UP OverSubscribe=EXCLUSIVE
"""
NODE = "NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1 State=UNKNOWN\n"


class Slurm:
    """The cluster.

    Attributes:
        folder: Of its configuration, state and logs.
        environ: With which Slurm's commands find it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, *words: str) -> str:
        """Output of one of Slurm's commands."""
        done = subprocess.run(words, env=self.environ, capture_output=True, text=True, timeout=LIMIT_S, check=True)
        return done.stdout.strip()

    def start(self) -> None:
        (self.folder / "state").mkdir()
        host = socket.gethostname()
        controller, *ports = free_ports(1 + len(NODES))
        text = CONF.format(host=host, folder=self.folder, nodes=",".join(NODES), controller=controller)
        text += "".join(NODE.format(node=node, host=host, port=port) for node, port in zip(NODES, ports, strict=True))
        (self.folder / "slurm.conf").write_text(text)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        munge = [f"--key-file={key}", f"--socket={self.folder}/munge.socket", f"--pid-file={self.folder}/munged.pid"]
        munge += [f"--log-file={self.folder}/munged.log", f"--seed-file={self.folder}/munged.seed", "--force"]
        self._start("munged", "--foreground", *munge)
        until((self.folder / "munge.socket").exists, "munged listens")
        self._start("slurmctld", "-D")
        for node in NODES:
            self.start_node(node)
        until(lambda: self.states() == dict.fromkeys(NODES, "idle"), "both nodes are idle")

    def start_node(self, node: str) -> None:
        """Have a node come up."""
        self._start("slurmd", "-D", "-N", node, name=node)

    def kill_node(self, node: str) -> None:
        """Have a node go down: its daemon, and every process of a step on it with the one that minds it, at once."""
        daemon = self._daemons.pop(node)
        daemon.kill()
        daemon.wait()
        tasks = [process for process in psutil.process_iter() if _node_of(process) == node]
        minders = {parent.pid: parent for task in tasks if (parent := _parent(task)) and parent not in tasks}
        for process in [*minders.values(), *tasks]:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def states(self) -> dict[str, str]:
        """State of each node, for example "idle"."""
        try:
            lines = self.run("sinfo", "--noheader", "--Node", "--format", "%N %T").splitlines()
        except subprocess.CalledProcessError:
            return {}
        return dict(line.split() for line in lines)

    def queue(self) -> list[str]:
        """Ids of the jobs in the queue."""
        return self.run("squeue", "--noheader", "--format", "%A").split()

    def _start(self, program: str, *words: str, name: str = "") -> None:
        with (self.folder / f"{name or program}.out").open("wb") as output:
            path = shutil.which(program)
            assert path
            self._daemons[name or program] = subprocess.Popen(
                [path, *words], env=self.environ, stdout=output, stderr=output, start_new_session=True
            )

    def stop(self) -> None:
        """End the jobs and the daemons, the controller before munged."""
        for job in self.queue():
            self.run("scancel", job)
        until(lambda: not self.queue(), "the queue is empty")
        for name in reversed(list(self._daemons)):
            daemon = self._daemons[name]
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _node_of(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return str(process.environ().get("SLURMD_NODENAME", ""))
    return ""


def _parent(process: psutil.Process) -> psutil.Process | None:
    """The slurmstepd above a task."""
    with suppress(psutil.Error):
        parent = process.parent()
        return parent if parent and parent.name().startswith("slurmstepd") else None
    return None


@contextmanager
def slurm(folder: Path) -> Iterator[Slurm]:
    """The cluster, for as long as the block lasts."""
    cluster = Slurm(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def until(condition: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"after {limit_s:g} s it is not so that {what}"
        time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
