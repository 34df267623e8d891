"""Addresses filled into commands, once it is known where they run."""

from __future__ import annotations

from collections.abc import Mapping

from cookbook.deployment import Argument, EnvVar, Process
from cookbook.errors import InputError
from cookbook.formats.words import filled

__all__ = ["LOOPBACK", "filled_in"]

LOOPBACK = "127.0.0.1"


def filled_in(process: Process, addresses: Mapping[str, str]) -> Process:
    """The process with every "${NAME}" replaced.

    Args:
        process: Its arguments, variables and host may name addresses.
        addresses: By name.

    Raises:
        InputError: One is missing or empty.
    """
    missing = [name for name in process.variables if not addresses.get(name)]
    if missing:
        raise InputError(
            f"{process.name} needs {', '.join(missing)}, which the environment does not set.",
            "Set it to the node's address, see the top of `cookbook show`.",
        )

    def spell(name: str) -> str:
        return addresses[name]

    arguments = tuple(
        Argument(
            flag=argument.flag,
            value=filled(argument.value, argument.variables, spell)
            if isinstance(argument.value, str)
            else argument.value,
            origins=argument.origins,
        )
        for argument in process.arguments
    )
    environment = tuple(
        EnvVar(name=one.name, value=filled(one.value, one.variables, spell), origin=one.origin)
        for one in process.environment
    )
    host = filled(process.host, process.variables, spell)
    return process.model_copy(update={"arguments": arguments, "environment": environment, "host": host})
