"""A command line tool that measures a server: run in a process of its own, bounded, gone when this one is."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from cookbook.errors import TimeLimitError
from cookbook.evidence import write_bytes
from cookbook.launch import processes
from cookbook.redact import Redactor

__all__ = ["run", "toward"]

# The kernel ends it when whoever started it is gone; that outlives exec.
CHILD = (
    "import os, sys; from cookbook.launch.processes import die_with_parent; die_with_parent(int(sys.argv[1]));"
    "os.execvp(sys.argv[2], sys.argv[2:])"
)


def toward(environ: Mapping[str, str], host: str, key: str) -> dict[str, str]:
    """The environment for a tool that asks a server: its key, no proxy before it, and no telemetry.

    Args:
        environ: What to begin with.
        host: Of the server.
        key: Of the server. The user's own OPENAI_API_KEY is for another one.
    """
    return {
        **environ,
        "OPENAI_API_KEY": key,
        "NO_PROXY": ",".join(filter(None, (environ.get("NO_PROXY"), host))),
        "no_proxy": ",".join(filter(None, (environ.get("no_proxy"), host))),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        "TQDM_DISABLE": "1",
    }


def run(words: Sequence[str], environment: Mapping[str, str], *, what: str, log: Path, time_limit_s: float) -> int:
    """Run a tool to its end, and leave its log without secrets.

    Args:
        words: The command. It gets a new folder to work in, so paths have to be absolute.
        environment: All of its environment.
        what: Is measured, for the message, for example "The accuracy".
        log: Where its output goes.
        time_limit_s: Bound on it, in seconds.

    Returns:
        Its exit code.

    Raises:
        TimeLimitError: It was not done in time.
    """
    with tempfile.TemporaryDirectory(prefix="cookbook-tool-") as work:
        raw = Path(work) / "log"
        with raw.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-c", CHILD, str(os.getpid()), *words],
                cwd=work,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                return process.wait(timeout=time_limit_s)
            except subprocess.TimeoutExpired as error:
                raise TimeLimitError(
                    f"{what} was not measured within {time_limit_s:g} s.",
                    f"Allow more time or ask for less. The log of the tool: {log}.",
                ) from error
            finally:
                processes.end([process.pid], grace_s=0)
                process.wait()
                log.parent.mkdir(parents=True, exist_ok=True)
                text = raw.read_text(encoding="utf-8", errors="replace")
                write_bytes(log, Redactor.from_environ(environment).text(text).encode())
