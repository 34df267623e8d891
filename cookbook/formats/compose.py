"""A deployment on one node as a Compose file: one service for each process.

Compose replaces $NAME and ${NAME} in every value, and $$ by $. So every $ of a command or a variable is doubled, and
what a process is given is what the deployment says. The token for the checkpoint is named and never written: Compose
takes its value from the environment in which it is called.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cookbook.catalog import Catalog
from cookbook.catalog.schema import VendorEntry
from cookbook.deployment import Deployment, Process
from cookbook.errors import InputError
from cookbook.formats.docker import CACHE, image_of, in_container
from cookbook.formats.kubernetes import dump, lines_of, ready_timeout, resource_name
from cookbook.formats.words import comment, container_command, header, unsure, variable_value

__all__ = ["render"]

PROBE = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=5)"
"""For the image's Python: curl is not in every image."""


def render(catalog: Catalog, deployment: Deployment) -> str:
    """A file for `docker compose up`.

    Args:
        catalog: The catalog that the deployment was resolved from.
        deployment: Of one node.

    Returns:
        The text, as YAML. It begins with comments: the notices, and how clients reach the server.

    Raises:
        InputError: The deployment has several nodes, or no image.
    """
    if deployment.nodes > 1:
        raise InputError(
            f"Compose starts containers on one machine, and {deployment.recipe} takes {deployment.nodes} nodes.",
            "Take the format slurm or kubernetes.",
        )
    image = image_of(catalog, deployment)
    vendor = catalog.vendors[catalog.hardware[deployment.hardware].vendor]
    owners = {
        address.name: next(p for p in deployment.processes if p.node == address.node and p.role != "router").name
        for address in deployment.addresses
    }
    document = {
        "name": resource_name(deployment.recipe),
        "services": {process.name: _service(process, image, vendor, owners) for process in deployment.processes},
    }
    lines = [*header(deployment), "#", *_instructions(deployment, vendor)]
    return lines_of([*lines, dump(document).rstrip("\n")])


def _instructions(deployment: Deployment, vendor: VendorEntry) -> Iterator[str]:
    yield comment("Start with: docker compose -f FILE up. HF_TOKEN is taken from your environment, if it is set there.")
    yield comment(
        "The server is reached from this machine only, at the published port. It listens on all addresses of its "
        "container, as the container has a network of its own."
    )
    if vendor.container is None:
        yield comment(f"No source says how a container is given the devices of {vendor.title}: add them.")
    if deployment.model.startswith(("/", ".")):
        yield comment(f"Mount the folder {deployment.model} into the container, as it is no name of a hub.")
    for process in deployment.processes:
        yield comment(f"{process.name}, role {process.role}")
        yield from unsure(process)


def _service(process: Process, image: str, vendor: VendorEntry, owners: Mapping[str, str]) -> dict[str, Any]:
    # Compose gives each service its name as a name in the network that they share.
    words = [_escaped(word) for word in container_command(in_container(process), owners.__getitem__)]
    program = len(process.program)
    environment: dict[str, str | None] = {
        variable.name: _escaped(variable_value(variable, owners.__getitem__)) for variable in process.environment
    }
    service: dict[str, Any] = {
        "image": _escaped(image),
        "entrypoint": words[:program],
        "command": words[program:],
        # A key without a value is passed through.
        "environment": environment | {"HF_TOKEN": None},
        "ipc": "host",
        "volumes": [f"~/.cache/huggingface:{CACHE}"],
    }
    if process.serves:
        url = f"http://127.0.0.1:{process.port}/health"
        service["ports"] = [f"127.0.0.1:{process.port}:{process.port}"]
        service["healthcheck"] = {
            "test": ["CMD", "python3", "-c", PROBE, url],
            "interval": "10s",
            "timeout": "10s",
            "retries": 6,
            "start_period": f"{ready_timeout(process)}s",
        }
    devices = vendor.container.compose if vendor.container and process.devices else {}
    return _merged(service, devices)


def _escaped(text: str) -> str:
    return text.replace("$", "$$")


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings are merged key by key and lists are joined; of anything else, `over` wins."""
    merged = dict(base)
    for key, value in over.items():
        before = merged.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            merged[key] = _merged(before, value)
        elif isinstance(before, list) and isinstance(value, list):
            merged[key] = [*before, *value]
        else:
            merged[key] = value
    return merged
