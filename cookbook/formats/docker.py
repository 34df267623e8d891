"""A deployment as `docker run`: one a process, with the devices, shared memory and network that it needs.

One node alone has a network of its own, of which the host publishes one port on loopback. Nodes that talk to each other
share the host's network.
"""

from __future__ import annotations

from collections.abc import Iterator

from cookbook.catalog import Catalog
from cookbook.deployment import Argument, Deployment, Process
from cookbook.errors import InputError, RuleError
from cookbook.formats.bash import addresses, command_lines
from cookbook.formats.words import argument_words, comment, header, quote, unsure
from cookbook.rules import Violation

__all__ = ["CACHE", "image_of", "in_container", "render"]

CACHE = "/root/.cache/huggingface"
ANY_ADDRESS = "0.0.0.0"  # noqa: S104  # of the container's own network


def render(catalog: Catalog, deployment: Deployment, node: int | None = None) -> str:
    """Text that bash runs as it is.

    Args:
        catalog: How the vendor's devices are given to a container.
        deployment: What to render.
        node: Only what runs on this node; None for all.

    Raises:
        InputError: There is no such node.
        RuleError: No source names an image.
    """
    image = image_of(catalog, deployment)
    processes = [process for process in deployment.processes if node is None or process.node == node]
    if not processes:
        raise InputError(f"There is no node {node}.", f"The nodes are 0 to {deployment.nodes - 1}.")
    lines = [*header(deployment), *addresses(deployment, processes)]
    for process in processes:
        head = " (head)" if process.node == 0 and deployment.nodes > 1 else ""
        lines += ["", comment(f"{process.name}, role {process.role}, node {process.node}{head}"), *unsure(process)]
        if process.role == "router":
            lines += [comment("The image holds no router: pip install vllm-router==0.1.17"), *command_lines(process)]
        else:
            lines += _continued(_run(catalog, deployment, process, image))
    return "\n".join(lines) + "\n"


def image_of(catalog: Catalog, deployment: Deployment) -> str:
    """The image's tag.

    Raises:
        RuleError: No source names one.
    """
    if deployment.image is None:
        entry = catalog.hardware[deployment.hardware].image
        lacking = Violation("image_is_named", entry.why, entry.basis, entry.source)
        raise RuleError(
            (lacking.rule,),
            f"{deployment.hardware_title} has no image to put into this format: {lacking.sentence(catalog.sources)}",
            "Name yours with --image REGISTRY/NAME:TAG, or take --format bash or slurm.",
        )
    return deployment.image.tag


def in_container(process: Process) -> Process:
    """The process as it runs in a network of its own: a loopback address would be nobody else's."""
    arguments = tuple(
        Argument(flag=argument.flag, value=ANY_ADDRESS, origins=argument.origins)
        if argument.flag == "--host"
        else argument
        for argument in process.arguments
    )
    return process.model_copy(update={"arguments": arguments, "host": ANY_ADDRESS})


def _run(catalog: Catalog, deployment: Deployment, process: Process, image: str) -> Iterator[str]:
    alone = deployment.nodes == 1
    yield f"docker run --rm --name {quote(f'kimi-k31-{process.name}')}"
    container = catalog.vendors[catalog.hardware[deployment.hardware].vendor].container
    yield from _options(container.docker if container else ())
    yield "  --ipc=host"
    yield f"  --publish 127.0.0.1:{process.port}:{process.port}" if alone else "  --network host"
    if "NixlConnector" in " ".join(process.argv):
        yield "  --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1"
    yield f'  --volume "${{HF_HOME:-$HOME/.cache/huggingface}}:{CACHE}"'
    if deployment.model.startswith("/"):
        yield f"  --volume {quote(f'{deployment.model}:{deployment.model}:ro')}"
    # By name only: the value comes out of the environment and stands nowhere.
    yield "  --env HF_TOKEN"
    inside = in_container(process) if alone else process
    for variable in inside.environment:
        yield f"  --env {quote(f'{variable.name}={variable.value}', variable.variables)}"
    yield f"  --entrypoint {quote(process.program[0])}"
    yield f"  {quote(image)} {' '.join(map(quote, process.program[1:]))}"
    for argument in inside.arguments:
        yield "  " + " ".join(quote(word, variables) for word, variables in argument_words(argument))


def _options(words: tuple[str, ...]) -> Iterator[str]:
    """An option and its value on one line."""
    line = ""
    for word in words:
        if word.startswith("-") and line:
            yield line
            line = ""
        line = f"{line} {quote(word)}" if line else f"  {quote(word)}"
    if line:
        yield line


def _continued(lines: Iterator[str]) -> list[str]:
    all_lines = list(lines)
    return [*(f"{line} \\" for line in all_lines[:-1]), all_lines[-1]]
