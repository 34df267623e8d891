"""Events of a run: nothing is lost, and a half-written line waits for its end."""

from __future__ import annotations

from pathlib import Path

from cookbook.events import FILE, Events, follow


def test_what_is_said_is_heard_once(tmp_path: Path) -> None:
    events, heard = Events(tmp_path), follow(tmp_path)
    assert next(heard) == []
    events.emit("cell", index=1)
    events.emit("cell", index=2)
    assert next(heard) == [{"kind": "cell", "index": 1}, {"kind": "cell", "index": 2}]
    assert next(heard) == []


def test_a_half_written_line_waits(tmp_path: Path) -> None:
    heard = follow(tmp_path)
    path = tmp_path / FILE
    path.write_text('{"kind": "a"}\n{"ki')
    assert next(heard) == [{"kind": "a"}]
    with path.open("a") as file:
        file.write('nd": "b"}\n')
    assert next(heard) == [{"kind": "b"}]


def test_without_a_folder_events_go_nowhere() -> None:
    Events(None).emit("cell", index=1)
