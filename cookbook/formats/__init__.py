"""A deployment as text for people and schedulers, one module a format. No format starts anything."""

from __future__ import annotations

import importlib
from typing import Any

from cookbook.catalog import Catalog
from cookbook.deployment import Deployment

__all__ = ["FORMATS", "render"]

FORMATS = ("bash", "docker", "compose", "slurm", "kubernetes")


def render(catalog: Catalog, deployment: Deployment, name: str, node: int | None = None) -> str:
    """A deployment in one of `FORMATS`.

    Args:
        catalog: For what a format needs to know of hardware and vendor.
        deployment: What to render.
        name: One of `FORMATS`.
        node: Only what runs on this node, for bash and docker; None for all.

    Raises:
        InputError: The format makes no sense for this deployment; the message says why, and what to take.
    """
    # Each is imported when it is asked for: `cookbook show` must not pay for all.
    module: Any = importlib.import_module(f"cookbook.formats.{name}")
    match name:
        case "bash":
            return str(module.render(deployment, node))
        case "docker":
            return str(module.render(catalog, deployment, node))
        case _:
            return str(module.render(catalog, deployment))
