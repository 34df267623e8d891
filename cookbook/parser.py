"""Commands held against vLLM itself: its argument parser, and the registries that the parser does not look into.

The parser of vLLM 0.32.0 takes an unknown attention backend, KV connector, tool or reasoning parser, speculative
method and key of `--speculative-config`, and any prefix of a flag; the server would die of these minutes later. They
are looked up here in the tables that vLLM itself looks them up in.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import io
import logging
import os
import typing
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from cookbook.deployment import Argument, Deployment, Process
from cookbook.errors import InputError

__all__ = ["Engine", "Problem", "check", "load_engine"]

SERVE = ("vllm", "serve")


@dataclass(frozen=True)
class Problem:
    """Something that vLLM would refuse, at once or when it is too late.

    Attributes:
        process: Name of the process.
        subject: The flag or the variable, with the path of a key inside its JSON.
        what: What is wrong, as a sentence.
        nearest: Names that exist and look like the wrong one.
    """

    process: str
    subject: str
    what: str
    nearest: tuple[str, ...] = ()


class _Rejected(Exception):
    """What argparse says, in place of ending the process."""


@dataclass(frozen=True)
class Engine:
    """The installed vLLM's parser and registries. Nothing in here touches a device or the network.

    Attributes:
        version: Of vLLM.
        parser: Of `vllm serve`.
        attention_backends: Names that `--attention-backend` may have.
        connectors: KV connectors.
        tool_parsers: Names for `--tool-call-parser`.
        reasoning_parsers: Names for `--reasoning-parser`.
        speculative_methods: Values of `method`.
        speculative_keys: Keys of `--speculative-config`.
        variables: Environment variables that vLLM reads.
    """

    version: str
    parser: argparse.ArgumentParser
    attention_backends: frozenset[str]
    connectors: frozenset[str]
    tool_parsers: frozenset[str]
    reasoning_parsers: frozenset[str]
    speculative_methods: frozenset[str]
    speculative_keys: frozenset[str]
    variables: frozenset[str]

    def check(self, process: Process) -> list[Problem]:
        """All that is wrong with one command, in its order."""
        return [*self._arguments(process), *self._registries(process), *self._environment(process)]

    def _arguments(self, process: Process) -> Iterator[Problem]:
        flags = self.parser._option_string_actions  # argparse shows its flags nowhere else
        seen: set[str] = set()
        known = []
        for argument in process.arguments:
            if argument.flag in seen:
                yield Problem(process.name, argument.flag, "The flag stands twice.")
            seen.add(argument.flag)
            if argument.flag not in flags:
                what = f"vLLM {self.version} has no such flag."
                yield Problem(process.name, argument.flag, what, _nearest(argument.flag, flags))
            else:
                known.append(argument)
        # The whole command first: one call in the usual case that all is well. Else each flag alone, to name all.
        if self._reason(known) is None:
            return
        for argument in known:
            reason = self._reason([argument])
            if reason is not None:
                yield Problem(process.name, argument.flag, reason, _nearest(_text(argument), _choices(flags, argument)))

    def _reason(self, arguments: list[Argument]) -> str | None:
        words = [word for argument in arguments for word in argument.words()]
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                self.parser.parse_args(["model", *words])
        except _Rejected as rejected:
            return _sentence(str(rejected))
        except (ValueError, TypeError, SystemExit) as error:
            return _sentence(str(error))
        return None

    def _registries(self, process: Process) -> Iterator[Problem]:
        looked_up = (
            ("--attention-backend", "attention backend", self.attention_backends),
            ("--tool-call-parser", "tool-call parser", self.tool_parsers),
            ("--reasoning-parser", "reasoning parser", self.reasoning_parsers),
        )
        for flag, kind, names in looked_up:
            value = process.value(flag)
            if isinstance(value, str):
                yield from self._known(process, flag, kind, value, names)
        attention = process.value("--attention-config")
        if isinstance(attention, Mapping) and isinstance(attention.get("backend"), str):
            name = str(attention["backend"])
            yield from self._known(
                process, "--attention-config.backend", "attention backend", name, self.attention_backends
            )
        speculative = process.value("--speculative-config")
        if isinstance(speculative, Mapping):
            yield from self._speculative(process, speculative)
        transfer = process.value("--kv-transfer-config")
        if isinstance(transfer, Mapping):
            yield from self._connector(process, "--kv-transfer-config", transfer)

    def _speculative(self, process: Process, config: Mapping[str, Any]) -> Iterator[Problem]:
        flag = "--speculative-config"
        for key in config:
            yield from self._known(process, f"{flag}.{key}", "key", key, self.speculative_keys)
        method = config.get("method")
        if isinstance(method, str):
            yield from self._known(process, f"{flag}.method", "speculative method", method, self.speculative_methods)
        if method in {"draft_model", "eagle", "eagle3", "dspark", "dflash", "medusa"} and not config.get("model"):
            yield Problem(process.name, f"{flag}.model", f"The method {method} needs a draft model.")

    def _connector(self, process: Process, subject: str, config: Mapping[str, Any]) -> Iterator[Problem]:
        name = config.get("kv_connector")
        if name is None:
            yield Problem(process.name, subject, "It names no kv_connector.")
        elif not config.get("kv_connector_module_path"):
            yield from self._known(process, f"{subject}.kv_connector", "KV connector", str(name), self.connectors)
        extra = config.get("kv_connector_extra_config") or {}
        for index, child in enumerate(extra.get("connectors", ()) if name == "MultiConnector" else ()):
            path = f"{subject}.kv_connector_extra_config.connectors.{index}"
            reason = self._reason([Argument(flag="--kv-transfer-config", value=child, origins=())])
            if reason:
                yield Problem(process.name, path, reason)
            yield from self._connector(process, path, child)

    def _environment(self, process: Process) -> Iterator[Problem]:
        for variable in process.environment:
            if variable.name.startswith("VLLM_"):
                yield from self._known(process, variable.name, "variable", variable.name, self.variables)

    def _known(self, process: Process, subject: str, kind: str, name: str, names: Collection[str]) -> Iterator[Problem]:
        if name not in names:
            what = f'vLLM {self.version} knows no {kind} "{name}".'
            yield Problem(process.name, subject, what, _nearest(name, names))


def _text(argument: Argument) -> str:
    return argument.value if isinstance(argument.value, str) else ""


def _choices(flags: Mapping[str, Any], argument: Argument) -> list[str]:
    return [str(choice) for choice in flags[argument.flag].choices or ()]


def _nearest(name: str, names: Collection[str]) -> tuple[str, ...]:
    return tuple(difflib.get_close_matches(name, sorted(names), n=3))


def _sentence(text: str) -> str:
    """The reason out of what argparse and pydantic say, on one line, without their web addresses."""
    lines = [line.strip() for line in text.splitlines() if "errors.pydantic.dev" not in line]
    joined = " ".join(line for line in lines if line).partition(" (choose from")[0].partition(" [type=")[0]
    return f"{joined.removesuffix('.')}."


def check(deployment: Deployment, engine: Engine) -> list[Problem]:
    """All that is wrong with the `vllm serve` commands of a deployment; a router is not vLLM's."""
    return [
        problem
        for process in deployment.processes
        if process.program[: len(SERVE)] == SERVE
        for problem in engine.check(process)
    ]


def load_engine() -> Engine:
    """Import vLLM (about 8 s) and collect what `Engine` needs.

    Raises:
        InputError: There is no vLLM here, or it cannot be imported.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with (
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.redirect_stdout(io.StringIO()),
            warnings.catch_warnings(action="ignore"),
        ):
            return _load()
    except ImportError as error:
        raise InputError(
            f"vLLM cannot be imported here: {error}.",
            "Run this in the image that the recipe names, or install the CPU engine: scripts/install cpu.",
        ) from error
    finally:
        logging.disable(previous)


def _load() -> Engine:
    from vllm import envs  # noqa: PLC0415
    from vllm.config import SpeculativeConfig  # noqa: PLC0415
    from vllm.config.speculative import SpeculativeMethod  # noqa: PLC0415
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory  # noqa: PLC0415
    from vllm.entrypoints.launchers.cli_args import make_arg_parser  # noqa: PLC0415
    from vllm.reasoning import ReasoningParserManager  # noqa: PLC0415
    from vllm.tool_parsers import ToolParserManager  # noqa: PLC0415
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415
    from vllm.v1.attention.backends.registry import AttentionBackendEnum  # noqa: PLC0415

    parser: argparse.ArgumentParser = make_arg_parser(FlexibleArgumentParser())
    parser.error = _reject  # type: ignore[method-assign]
    return Engine(
        version=metadata.version("vllm"),
        parser=parser,
        attention_backends=frozenset(AttentionBackendEnum.__members__),
        connectors=frozenset(KVConnectorFactory._registry),  # it has no public list
        tool_parsers=frozenset(ToolParserManager.list_registered()),
        reasoning_parsers=frozenset(ReasoningParserManager.list_registered()),
        speculative_methods=frozenset(typing.get_args(SpeculativeMethod)),
        speculative_keys=frozenset(field.name for field in dataclasses.fields(SpeculativeConfig)),
        variables=frozenset(envs.environment_variables),
    )


def _reject(message: str) -> typing.NoReturn:
    raise _Rejected(message)
