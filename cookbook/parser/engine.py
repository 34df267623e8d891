"""The vLLM that is installed, as something to hold one command against."""

from __future__ import annotations

import functools
import json
from argparse import Action, ArgumentError, ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from pydantic import ValidationError

from cookbook.deployment import Argument, Process
from cookbook.parser.names import ENVIRONMENT, plain
from cookbook.parser.problem import Problem, nearest, reasons
from cookbook.parser.quiet import quiet
from cookbook.parser.tables import Tables

__all__ = ["Engine", "Pairs"]

T = TypeVar("T")
# A flag and its value, or "environment" and the name of a variable.
Pairs = frozenset[tuple[str, str]]

MODEL = "model"
REMEMBERED = 256
# The flags that stand for one key of --speculative-config.
SPECULATIVE_FLAGS = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}
CONNECTOR_KEYS = ("kv_connector", "kv_connector_module_path", "kv_connector_extra_config")


class _Rejected(Exception):
    """What argparse says, in place of ending the process."""


@dataclass(frozen=True)
class Engine:
    """vLLM's parser and tables. Nothing in here touches a device, the network or a model's configuration.

    Attributes:
        version: Of vLLM.
        parser: Of `vllm serve`.
        validate: vLLM's own look at the parsed flags together.
        tables: What the parser does not look into.
    """

    version: str
    parser: ArgumentParser
    validate: Callable[[Namespace], None]
    tables: Tables

    @classmethod
    def of(cls, version: str, parser: ArgumentParser, validate: Callable[[Namespace], None], tables: Tables) -> Engine:
        """An engine whose `parser` raises where it would end the process, and reads no value twice."""
        parser.error = _reject  # type: ignore[method-assign]
        for action in parser._actions:  # argparse shows its flags nowhere else
            if action.type is not None and not isinstance(action.type, type | str):
                # Read-only from here on: several commands share one parsed value. What raises is not remembered.
                action.type = functools.lru_cache(maxsize=REMEMBERED)(action.type)
        return cls(version, parser, validate, tables)

    @property
    def architectures(self) -> frozenset[str]:
        """Names of the models that it holds the code of."""
        return self.tables.architectures

    def check(self, process: Process, foreign: Pairs = frozenset()) -> list[Problem]:
        """All that is wrong with one command: its flags, what they name, its variables.

        Args:
            process: It has to be one of `vllm serve`.
            foreign: Pairs of a flag and its value, or of "environment" and a variable's name, that are right although
                vLLM does not know them.
        """
        return self.check_all([process], foreign)

    def check_all(self, processes: Iterable[Process], foreign: Pairs = frozenset()) -> list[Problem]:
        """As `check`, for several: what keeps vLLM quiet costs a fifth of a check, and is done once."""
        with quiet():
            return [
                problem
                for process in processes
                for problem in (*self._command(process, foreign), *self._environment(process, foreign))
            ]

    def _command(self, process: Process, foreign: Pairs) -> Iterator[Problem]:
        problems, arguments = self._flags(process)
        # Left out only where the parser itself refuses it: another flag may need it.
        listed = {id(argument) for argument in arguments if (plain(argument.flag), str(argument.value)) in foreign}
        arguments = [
            argument
            for argument in arguments
            if id(argument) not in listed or not isinstance(self._parse([argument]), Exception)
        ]
        # The whole command first: one call in the usual case that all is well. Else its parts, to name all mistakes.
        parsed = self._parse(arguments, process.program[2:] or (MODEL,))
        yield from self._model(process, parsed)
        yield from problems
        if isinstance(parsed, Exception):
            wrong = list(self._wrong(arguments))
            for argument, error in wrong:
                # A key that stands in the flag (--json.key) comes back in the path too.
                yield from self._refused(process, argument.flag.partition(".")[0], error, _text(argument))
            refused = {id(argument) for argument, _ in wrong}
            arguments = [argument for argument in arguments if id(argument) not in refused]
            parsed = self._parse(arguments)
        if isinstance(parsed, Exception):
            yield from self._refused(process, "vllm serve", parsed)
            return
        named = {self._action(argument.flag).dest: argument.flag for argument in arguments}
        taken = {self._action(argument.flag).dest for argument in arguments if id(argument) in listed}
        yield from self._tables(process, parsed, {dest: flag for dest, flag in named.items() if dest not in taken})
        yield from self._speculative(process, parsed, named)
        yield from self._transfer(process, parsed, named)
        yield from self._rules(process, parsed)

    def _wrong(self, arguments: Sequence[Argument]) -> Iterator[tuple[Argument, Exception]]:
        """The flags that are refused on their own and why, found by halves: a half that passes is looked at once."""
        parsed = self._parse(arguments)
        if not isinstance(parsed, Exception):
            return
        if len(arguments) < 2:
            yield from ((argument, parsed) for argument in arguments)
            return
        middle = len(arguments) // 2
        yield from self._wrong(arguments[:middle])
        yield from self._wrong(arguments[middle:])

    def _model(self, process: Process, whole: Namespace | Exception) -> Iterator[Problem]:
        words = process.program[2:]
        parsed = self._parse([], words) if isinstance(whole, Exception) else whole
        if isinstance(parsed, Exception):
            yield from self._refused(process, "vllm serve", parsed)
        elif not words and process.value("--model") is None:
            default = self.parser.get_default("model")
            yield Problem(process.name, "vllm serve", f"It names no model; vLLM would serve {default}.")

    def _flags(self, process: Process) -> tuple[list[Problem], list[Argument]]:
        """What is wrong with the names of the flags, and the flags that have a right one, each once."""
        problems, known, seen = [], [], dict[str, str]()
        for argument in process.arguments:
            flag = argument.flag
            if flag == "--config":
                what = "The file is not read here: put its flags into the command."
                problems.append(Problem(process.name, flag, what))
                continue
            try:
                action = self._action(flag)
            except KeyError:
                problems.append(self._unknown(process, flag))
                continue
            key = flag if "." in flag else action.dest
            adds = type(action).__name__ == "_AppendAction" or key.endswith("+")  # to a list
            if key in seen and not adds:
                how = "stands twice" if seen[key] == flag else f"sets what {seen[key]} has set"
                problems.append(Problem(process.name, flag, f"The flag {how}; vLLM takes the last."))
            seen[key] = flag
            known.append(argument)
        return problems, known

    def _action(self, flag: str) -> Action:
        """Of a flag as vLLM reads it: underscores for dashes, `--json.key`, `-O3`.

        Raises:
            KeyError: vLLM does not know the flag, or only as the beginning of another.
        """
        actions = self.parser._option_string_actions
        if flag in actions:
            return actions[flag]
        if flag.startswith("-O"):
            return actions["--optimization-level"]
        if not flag.startswith("--"):
            raise KeyError(flag)
        return actions[f"--{flag[2:].partition('.')[0].replace('_', '-')}"]

    def _unknown(self, process: Process, flag: str) -> Problem:
        flags = self.parser._option_string_actions
        longer = [name for name in flags if flag.startswith("--") and name.startswith(flag)]
        if len({flags[name].dest for name in longer}) == 1:  # argparse takes it, until vLLM adds a flag like it
            return Problem(process.name, flag, f"It is short for {longer[0]}: write it out.", (longer[0],))
        return Problem(process.name, flag, f"vLLM {self.version} has no such flag.", nearest(flag, flags))

    def _parse(self, arguments: Sequence[Argument], model: Sequence[str] = (MODEL,)) -> Namespace | Exception:
        words = [*model, *(word for argument in arguments for word in argument.words())]
        return _attempt(self.parser.parse_args, words)

    def _refused(self, process: Process, subject: str, error: Exception, value: str = "") -> Iterator[Problem]:
        for reason in reasons(error, value, self.tables.configs):
            yield Problem(process.name, ".".join((subject, *reason.path)), reason.what, reason.nearest)

    def _tables(self, process: Process, parsed: Namespace, named: Mapping[str, str]) -> Iterator[Problem]:
        tables = self.tables
        backends = tables.attention_backends | {"AUTO"}
        # Another version of vLLM may have dropped any of the flags.
        tool_plugin = getattr(parsed, "tool_parser_plugin", None)
        reasoning_plugin = getattr(parsed, "reasoning_parser_plugin", None)
        looked_up = (
            ("attention_backend", "attention backend", backends, str.upper),
            ("mm_encoder_attn_backend", "attention backend", backends, str.upper),
            ("load_format", "load format", tables.load_formats, str.lower),
            ("quantization", "quantization", tables.quantizations, str),
            ("tokenizer_mode", "tokenizer mode", tables.tokenizer_modes, str.lower),
            # A plugin registers names that are known only where its file is.
            ("tool_call_parser", "tool-call parser", None if tool_plugin else tables.tool_parsers, str),
            ("reasoning_parser", "reasoning parser", None if reasoning_plugin else tables.reasoning_parsers, str),
        )
        for dest, kind, names, spelt in looked_up:
            value = getattr(parsed, dest, None)
            if dest in named and value and names is not None and spelt(value) not in names:
                yield self._not_known(process, named[dest], kind, value, names)

    def _transfer(self, process: Process, parsed: Namespace, named: Mapping[str, str]) -> Iterator[Problem]:
        transfer = getattr(parsed, "kv_transfer_config", None)
        if transfer is not None:
            config = {key: getattr(transfer, key, None) for key in CONNECTOR_KEYS}
            yield from self._connector(process, named["kv_transfer_config"], config)

    def _speculative(self, process: Process, parsed: Namespace, named: Mapping[str, str]) -> Iterator[Problem]:
        flag = named.get("speculative_config", "--speculative-config")
        whole = getattr(parsed, "speculative_config", None)
        given = {} if whole is None else whole
        if not isinstance(given, dict):
            yield Problem(process.name, flag, "It has to be a JSON object.")
            return
        config = {key.replace("-", "_"): value for key, value in given.items()}
        for dest, key in SPECULATIVE_FLAGS.items():
            value = getattr(parsed, dest, None)
            if value is not None and key in config:
                yield Problem(process.name, named[dest], f"The key {key} of {flag} says the same; vLLM refuses both.")
            elif value is not None:
                config[key] = value
        if not config and whole is None:
            return
        for key, value in config.items():
            adapter = self.tables.speculative.get(key)
            if adapter is None:
                yield Problem(
                    process.name, f"{flag}.{key}", "There is no such key.", nearest(key, self.tables.speculative)
                )
                continue
            if key == "method":
                continue
            try:
                adapter.validate_python(value)
            except ValidationError as error:
                yield from self._refused(process, f"{flag}.{key}", error, str(value))
        yield from self._method(process, flag, config)

    def _method(self, process: Process, flag: str, config: Mapping[str, Any]) -> Iterator[Problem]:
        method = config.get("method")
        if method is not None and not (isinstance(method, str) and method in self.tables.speculative_methods):
            methods = self.tables.speculative_methods
            yield self._not_known(process, f"{flag}.method", "speculative method", str(method), methods)
            return
        # vLLM looks for a draft of dspark in the served checkpoint, and Kimi's holds none.
        drafting = method is None or method == "dspark" or method in self.tables.drafting_methods
        if drafting and not config.get("model"):
            what = f"The method {method} needs a draft model." if method else "It needs a method or a draft model."
            yield Problem(process.name, f"{flag}.model", what)

    def _connector(self, process: Process, subject: str, config: Mapping[str, Any]) -> Iterator[Problem]:
        name = config.get("kv_connector")
        if name is None:
            yield Problem(process.name, subject, "It names no kv_connector, so vLLM transfers nothing.")
        own = bool(config.get("kv_connector_module_path"))
        if isinstance(name, str) and not own and name not in self.tables.connectors:
            yield self._not_known(process, f"{subject}.kv_connector", "KV connector", name, self.tables.connectors)
        extra = config.get("kv_connector_extra_config")
        if name != "MultiConnector":
            return
        path = f"{subject}.kv_connector_extra_config.connectors"
        children = extra.get("connectors") if isinstance(extra, Mapping) else None
        if not isinstance(children, list) or not children:
            yield Problem(process.name, path, "MultiConnector needs a list of connectors here.")
            return
        for index, child in enumerate(children):
            yield from self._child(process, f"{path}.{index}", child)

    def _child(self, process: Process, path: str, child: object) -> Iterator[Problem]:
        # A bare text would pass for JSON that it is not.
        text = json.dumps(child if isinstance(child, Mapping) else [child])
        parsed = _attempt(self.parser._get_value, self._action("--kv-transfer-config"), text)
        if isinstance(parsed, Exception):
            yield from self._refused(process, path, parsed)
        if isinstance(child, Mapping):
            yield from self._connector(process, path, child)

    def _rules(self, process: Process, parsed: Namespace) -> Iterator[Problem]:
        config = getattr(parsed, "attention_config", None)
        named_twice = [getattr(parsed, "attention_backend", None), getattr(config, "backend", None)]
        if None not in named_twice:
            what = "The key backend of --attention-config says the same; vLLM refuses both."
            yield Problem(process.name, "--attention-backend", what)
        # Neither is this machine's to judge: the template is a file of the image, and the port goes by its variables.
        elsewhere = Namespace(**(vars(parsed) | {"chat_template": None, "grpc_port": None}))
        try:
            self.validate(elsewhere)
        except (TypeError, ValueError) as error:
            text = str(error).removeprefix("Error: ")
            subject = next((word for word in text.split() if word.startswith("--")), "vllm serve")
            yield Problem(process.name, subject, f"{text.rstrip('.')}.")

    def _environment(self, process: Process, foreign: Pairs) -> Iterator[Problem]:
        for variable in process.environment:
            if not variable.name.startswith("VLLM_") or (ENVIRONMENT, variable.name) in foreign:
                continue
            read = self.tables.variables.get(variable.name)
            if read is None:
                names = self.tables.variables
                yield self._not_known(process, variable.name, "variable", variable.name, frozenset(names))
                continue
            try:
                read(variable.value)
            except Exception as error:  # noqa: BLE001  # each variable is read by code of its own
                yield from self._refused(process, variable.name, error, variable.value)

    def _not_known(self, process: Process, subject: str, kind: str, name: str, names: frozenset[str]) -> Problem:
        shown = " ".join(name.split())
        return Problem(process.name, subject, f'vLLM {self.version} knows no {kind} "{shown}".', nearest(name, names))


def _text(argument: Argument) -> str:
    return argument.value if isinstance(argument.value, str) else ""


def _reject(message: str) -> NoReturn:
    raise _Rejected(message)


def _attempt(read: Callable[..., T], *given: object) -> T | Exception:
    """What `read` gives, or the error that it raises."""
    try:
        return read(*given)
    except SystemExit:  # --help
        return _Rejected("It prints its help and serves nothing")
    except (_Rejected, ArgumentError) as error:
        return error
    except Exception as error:  # noqa: BLE001  # vLLM's validators raise what they like: a KeyError for an enum
        failed = _Rejected(f"Reading it fails with {type(error).__name__}: {error}")
        failed.__cause__ = error
        return failed
