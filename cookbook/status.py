"""What may be said of a recipe, by rule and never by hand. Nothing is green by default."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from cookbook.evidence import Evidence

__all__ = ["MAX_AGE", "State", "Status", "status"]

MAX_AGE = timedelta(days=90)

State = Literal["executed", "rehearsed", "attached", "failed", "stale", "not_run", "no_notebook"]


class Status(BaseModel):
    """A state and its sentence.

    Attributes:
        state: "executed" is on the hardware that the recipe is for, and is the only one that is green.
        text: For a reader.
    """

    model_config = ConfigDict(frozen=True)

    state: State
    text: str


def status(found: Evidence | None, recipe: Path | None, now: datetime) -> Status:
    """The status of a recipe by its newest evidence.

    Args:
        found: The newest evidence, or None.
        recipe: The notebook as it is today; None where there is none yet.
        now: The time, with its zone.
    """
    if recipe is None:
        return Status(state="no_notebook", text="commands only, no notebook yet")
    if found is None:
        return Status(state="not_run", text="not run yet")
    where = {"hardware": f"on {found.hardware_title}", "rehearsal": "on a CPU", "attached": "on a running server"}[
        found.mode
    ]
    when = f"{found.ended_at:%Y-%m-%d}"
    vllm = f", vLLM {found.versions['vllm']}" if "vllm" in found.versions else ""
    if found.status != "passed":
        reason = found.status.replace("_", " ")
        return Status(state="failed", text=f"{reason} {where}, {when}{vllm}")
    word = "rehearsed" if found.mode == "rehearsal" else "executed"
    if found.notebook and found.notebook.source_sha256 != hashlib.sha256(recipe.read_bytes()).hexdigest():
        return Status(state="stale", text=f"stale: {word} {where}, {when}{vllm}; the recipe changed since")
    if found.notebook is None:
        return Status(state="not_run", text=f"{word} {where}, {when}{vllm}, but the run left no executed notebook")
    if now - found.ended_at > MAX_AGE:
        return Status(state="stale", text=f"stale: {word} {where}, {when}{vllm}; older than {MAX_AGE.days} days")
    states: dict[str, State] = {"hardware": "executed", "rehearsal": "rehearsed", "attached": "attached"}
    return Status(state=states[found.mode], text=f"{word} {where}, {when}{vllm}")
