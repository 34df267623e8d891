"""Servers that one process launched and another may use: pages of the same rehearsal share them.

The lender writes a file, whoever borrows reads it. Only the lender ends them.
"""

from __future__ import annotations

import os
import select
import time
from pathlib import Path

from pydantic import ValidationError

from cookbook.deployment import Frozen, Process
from cookbook.errors import InputError
from cookbook.evidence import write_bytes
from cookbook.launch.local import LOG_END_BYTES, Server, death, read_log
from cookbook.launch.phases import Phase

__all__ = ["LOAN", "Borrowed", "LentServer", "Loan", "read"]

LOAN = "loan.json"
"""Name of the file in the folder of the run that may use the servers."""


class LentServer(Frozen):
    """What a borrower has to know of a server. The attributes are those of `cookbook.launch.local.Server`.

    A server on another machine has no pid: whoever lends it watches it. It may be starting still.
    """

    process: Process
    base_url: str
    called: str
    log: Path
    log_start: int
    pid: int | None = None
    phases: tuple[Phase, ...] = ()

    @classmethod
    def of(cls, server: Server) -> LentServer:
        """A server that runs."""
        return cls(
            process=server.process,
            base_url=server.base_url,
            called=server.called,
            log=server.log.absolute(),
            log_start=server.log_start,
            pid=server.pid,
            phases=tuple(server.phases),
        )


class Loan(Frozen):
    """Servers that may be used.

    Attributes:
        recipes: All whose pages use them, one after the other.
        servers: In the order in which they were started.
        job: Of Slurm, in which they run; empty where they run on this machine.
    """

    recipes: tuple[str, ...]
    servers: tuple[LentServer, ...]
    job: str = ""

    def write(self, folder: Path) -> None:
        """Leave it for the run of this folder."""
        write_bytes(folder / LOAN, self.model_dump_json().encode())


def read(folder: Path) -> Loan | None:
    """The loan for the run of this folder, or None.

    Raises:
        InputError: The file is there and no loan.
    """
    path = folder / LOAN
    if not path.exists():
        return None
    try:
        return Loan.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise InputError(f"{path} is no loan of servers: {error.errors()[0]['msg']}.", "Remove it.") from error


class Borrowed:
    """A server that another process launched, and ends: it can be asked, watched and read here.

    Attributes:
        process: What was started.
        base_url: Address for clients on this machine, without a path.
        called: What errors call it, at the beginning of a sentence.
        log: Its log file.
        log_start: Where in that file this server began, in bytes.
        phases: Of its start, as far as it is known.
        began: When it was borrowed, by the monotonic clock.
        pid: On this machine; None on another.
    """

    def __init__(self, lent: LentServer) -> None:
        self.process = lent.process
        self.base_url = lent.base_url
        self.called = lent.called
        self.log = lent.log
        self.log_start = lent.log_start
        self.phases = list(lent.phases)
        self.began = time.monotonic()
        self.pid = lent.pid
        self._descriptor: int | None = None
        self._gone = False
        if lent.pid is not None:
            try:
                self._descriptor = os.pidfd_open(lent.pid)
            except ProcessLookupError:
                self._gone = True

    def alive(self) -> bool:
        """Whether its main process lives, as far as that can be seen from here."""
        return not self._gone and not self._ended(0)

    def died_within(self, seconds: float) -> bool:
        """Wait for the end of the server, up to a bound; returns at once when it ends."""
        return self._gone or self._ended(seconds)

    def _ended(self, seconds: float) -> bool:
        watched = [] if self._descriptor is None else [self._descriptor]
        return bool(select.select(watched, [], [], seconds)[0])

    def check_alive(self) -> None:
        """Do nothing, unless the server is dead.

        Raises:
            ServerError: It is; with the root cause out of its log.
        """
        if not self.alive():
            raise death(self.called, self.log, self.read_log(LOG_END_BYTES), None)

    def read_log(self, last_bytes: int | None = None) -> str:
        """What it has written.

        Args:
            last_bytes: How much of its end to read; None for all.
        """
        return read_log(self.log, self.log_start, last_bytes)

    def ask_to_stop(self) -> None:
        """It is not ours to stop."""

    def stop(self) -> None:
        """It is not ours to stop; it is only watched no longer."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._gone = True
