"""What a run says while it goes on: lines of JSON in a file of the run's folder.

The notebook's kernel and papermill's process append, `cookbook run` reads and shows. A file needs no connection, so
nothing is lost or blocked when one side is slow or gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["FILE", "Events", "follow"]

FILE = "events.jsonl"


class Events:
    """Appends events to the run's file; without a folder they go nowhere."""

    def __init__(self, folder: Path | None) -> None:
        self._path = folder / FILE if folder else None

    def emit(self, kind: str, **fields: Any) -> None:
        """Append one event. A full disk loses the event, not the run."""
        if self._path is None:
            return
        line = json.dumps({"kind": kind, **fields}) + "\n"
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError:
            self._path = None


def follow(folder: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield, each time it is asked, the events that have come since; an unfinished line waits for its end."""
    position = 0
    path = folder / FILE
    while True:
        events: list[dict[str, Any]] = []
        if path.exists():
            with path.open("rb") as file:
                file.seek(position)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    position += len(line)
                    events.append(json.loads(line))
        yield events
