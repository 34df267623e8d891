"""vllm-router's own argument parser, for the one process of a deployment that is not vLLM's."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Iterator
from typing import Any, NoReturn

from cookbook.deployment import Process
from cookbook.parser.problem import Problem, nearest

__all__ = ["PROGRAM", "check_router", "load_router"]

PROGRAM = "vllm-router"


class _Parser(argparse.ArgumentParser):
    """Raises where argparse would end the process."""

    def error(self, message: str) -> NoReturn:
        raise argparse.ArgumentTypeError(message)


def load_router() -> argparse.ArgumentParser | None:
    """The parser of the vllm-router that is installed; None where there is none."""
    if importlib.util.find_spec("vllm_router") is None:
        return None
    from vllm_router.router_args import RouterArgs  # noqa: PLC0415

    parser: Any = _Parser(prog=PROGRAM, allow_abbrev=False)
    RouterArgs.add_cli_args(parser, use_router_prefix=False)
    return parser  # type: ignore[no-any-return]


def check_router(process: Process, parser: argparse.ArgumentParser) -> Iterator[Problem]:
    """All that is wrong with the flags of a router's command."""
    known = parser._option_string_actions  # argparse shows its flags nowhere else
    for flag in dict.fromkeys(argument.flag for argument in process.arguments):
        if flag not in known:
            yield Problem(process.name, flag, f"{PROGRAM} has no such flag.", nearest(flag, known))
    for argument in process.arguments:
        if argument.flag in known:
            try:
                parser.parse_args(list(argument.words()))
            except (argparse.ArgumentTypeError, argparse.ArgumentError) as error:
                text = str(error).removeprefix(f"argument {argument.flag}: ")
                yield Problem(process.name, argument.flag, f"{text[:1].upper()}{text[1:].rstrip('.')}.")
