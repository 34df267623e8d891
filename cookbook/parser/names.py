"""Names on which the catalog knows better than vLLM's package: what plugins bring, and what is no longer to be used."""

from __future__ import annotations

from cookbook.catalog.schema import Foreign, Names, Stale

__all__ = ["ENVIRONMENT", "Foreign", "Names", "Stale", "plain"]

ENVIRONMENT = "environment"


def plain(name: str) -> str:
    """A flag or a variable as vLLM reads it: a flag with dashes, and without the path of a key (--json.key)."""
    return name.partition(".")[0].replace("_", "-") if name.startswith("-") else name
