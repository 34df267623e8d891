"""What vLLM's own recipe for the model says otherwise than the catalog: read, compare, apply."""

from __future__ import annotations

from cookbook.drift.apply import apply
from cookbook.drift.compare import Difference, compare
from cookbook.drift.read import UPSTREAM, Upstream, fetch, parse

__all__ = ["UPSTREAM", "Difference", "Upstream", "apply", "compare", "fetch", "parse"]
