"""The process in which papermill executes one notebook: `python -m cookbook.notebook_process ORDER`.

It is a process of its own so that `cookbook run` outlives whatever becomes of papermill or the kernel, and can still
put the evidence on disk. It ends with 0 when papermill was content, 2 when the notebook could not be saved, and 1
otherwise; nobody believes the 0 alone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import jupytext
import papermill
from papermill.engines import NBClientEngine, papermill_engines
from papermill.exceptions import PapermillExecutionError
from papermill.iorw import papermill_io

from cookbook import evidence
from cookbook.errors import InputError
from cookbook.events import Events
from cookbook.redact import Redactor

ENGINE = "cookbook"
SCHEME = "redacted://"


class RedactedFile:
    """What papermill reads and writes through: secrets are out before a byte is on disk, and each save is whole."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def read(self, path: str) -> str:
        """The notebook as JSON, from jupytext's percent format."""
        text: str = jupytext.writes(jupytext.read(path.removeprefix(SCHEME)), fmt="ipynb")
        return text

    def write(self, buf: str, path: str) -> None:
        """Save the notebook without secrets, and without papermill's record of paths."""
        notebook = json.loads(buf)
        for key in ("input_path", "output_path", "parameters", "environment_variables"):
            notebook["metadata"].get("papermill", {}).pop(key, None)
        clean = self._redactor.value(notebook)
        evidence.write_bytes(Path(path.removeprefix(SCHEME)), json.dumps(clean, indent=1).encode())

    def listdir(self, path: str) -> list[str]:
        """Part of papermill's interface; a run has one notebook."""
        return [path]

    def pretty_path(self, path: str) -> str:
        """The path without the scheme."""
        return path.removeprefix(SCHEME)


def reporting_engine(events: Events) -> type[NBClientEngine]:
    """The engine of papermill itself, which also says which cell it is at."""

    class ReportingEngine(NBClientEngine):  # type: ignore[misc]
        @classmethod
        def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, **kwargs: Any) -> None:
            titles = cell_titles([(cell.cell_type, cell.source) for cell in nb_man.nb.cells])
            count = len(titles)
            start = nb_man.cell_start

            def cell_start(cell: Any, cell_index: int, **more: Any) -> None:
                if cell.cell_type == "code":
                    events.emit("cell", index=cell_index + 1, of=count, title=titles[cell_index])
                start(cell, cell_index=cell_index, **more)

            nb_man.cell_start = cell_start
            super().execute_managed_notebook(nb_man, kernel_name, **kwargs)

    return ReportingEngine


def cell_titles(cells: list[tuple[str, str]]) -> list[str]:
    """For each cell the heading that it stands under."""
    title = ""
    titles = []
    for kind, source in cells:
        if kind == "markdown":
            headings = [line.lstrip("# ").strip() for line in source.splitlines() if line.startswith("#")]
            title = headings[-1] if headings else title
        titles.append(title)
    return titles


def main(order: dict[str, Any]) -> int:
    """Execute the notebook of `order` (source, folder, parameters)."""
    # A supervisor ignores SIGINT and hands that down; here it is what ends a run in good order. So does SIGTERM, which
    # is what srun passes on.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    folder = Path(order["folder"])
    papermill_io.register(SCHEME, RedactedFile(Redactor.from_environ(os.environ)))
    papermill_engines.register(ENGINE, reporting_engine(Events(folder)))
    try:
        papermill.execute_notebook(
            f"{SCHEME}{order['source']}",
            f"{SCHEME}{folder / 'notebook.ipynb'}",
            order["parameters"],
            engine_name=ENGINE,
            kernel_name="python3",
            language="python",
            progress_bar=False,
        )
    except PapermillExecutionError as error:
        sys.stderr.write(f"{error.ename}: {error.evalue}\n")
        return 1
    except KeyboardInterrupt:
        return 1
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return InputError.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
