"""The vLLM that is installed, as something to hold one command against."""

from __future__ import annotations

import os
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from pydantic import ValidationError

from cookbook.deployment import Argument, EnvVar, Process
from cookbook.parser.problem import Problem, nearest, reasons
from cookbook.parser.quiet import quiet
from cookbook.parser.tables import Tables

__all__ = ["Engine"]

MODEL = "model"
# The flags that stand for one key of --speculative-config.
SPECULATIVE_FLAGS = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}


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
        """An engine whose `parser` raises where it would end the process."""
        parser.error = _reject  # type: ignore[method-assign]
        return cls(version, parser, validate, tables)

    def check(self, process: Process) -> list[Problem]:
        """All that is wrong with one command: its flags, what they name, its variables."""
        with quiet():
            return [*self._command(process), *self._environment(process)]

    def _command(self, process: Process) -> Iterator[Problem]:
        yield from self._model(process)
        problems, arguments = self._flags(process)
        yield from problems
        # The whole command first: one call in the usual case that all is well. Else each flag alone, to name all.
        parsed = self._parse(arguments)
        if isinstance(parsed, Exception):
            alone = [(argument, self._parse([argument])) for argument in arguments]
            for argument, error in alone:
                if isinstance(error, Exception):
                    # A key that stands in the flag (--json.key) comes back in the path too.
                    yield from self._refused(process, argument.flag.partition(".")[0], error, _text(argument))
            arguments = [argument for argument, outcome in alone if not isinstance(outcome, Exception)]
            parsed = self._parse(arguments)
        if isinstance(parsed, Exception):
            yield from self._refused(process, "vllm serve", parsed)
            return
        named = {self._action(argument.flag).dest: argument.flag for argument in arguments}
        yield from self._tables(process, parsed, named)
        yield from self._rules(process, parsed)

    def _model(self, process: Process) -> Iterator[Problem]:
        words = process.program[2:]
        parsed = self._parse_words(words)
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
            if key in seen and type(action).__name__ != "_AppendAction":
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
        actions = self.parser._option_string_actions  # argparse shows its flags nowhere else
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

    def _parse(self, arguments: Sequence[Argument]) -> Namespace | Exception:
        return self._parse_words([MODEL, *(word for argument in arguments for word in argument.words())])

    def _parse_words(self, words: Sequence[str]) -> Namespace | Exception:
        try:
            return self.parser.parse_args(list(words))
        except SystemExit:  # --help
            return _Rejected("It prints its help and serves nothing")
        except _Rejected as error:
            return error
        except Exception as error:  # noqa: BLE001  # vLLM's validators raise what they like: a KeyError for an enum
            failed = _Rejected(f"vLLM fails on it with {type(error).__name__}: {error}")
            failed.__cause__ = error
            return failed

    def _refused(self, process: Process, subject: str, error: Exception, value: str = "") -> Iterator[Problem]:
        for reason in reasons(error, value, self.tables.configs):
            yield Problem(process.name, ".".join((subject, *reason.path)), reason.what, reason.nearest)

    def _tables(self, process: Process, parsed: Namespace, named: Mapping[str, str]) -> Iterator[Problem]:
        tables = self.tables
        backends = tables.attention_backends | {"AUTO"}
        looked_up = (
            ("attention_backend", "attention backend", backends, str.upper),
            ("mm_encoder_attn_backend", "attention backend", backends, str.upper),
            ("load_format", "load format", tables.load_formats, str.lower),
            ("quantization", "quantization", tables.quantizations, str),
            ("tokenizer_mode", "tokenizer mode", tables.tokenizer_modes, str.lower),
            # A plugin registers names that are known only where its file is.
            ("tool_call_parser", "tool-call parser", None if parsed.tool_parser_plugin else tables.tool_parsers, str),
            (
                "reasoning_parser",
                "reasoning parser",
                None if parsed.reasoning_parser_plugin else tables.reasoning_parsers,
                str,
            ),
        )
        for dest, kind, names, spelt in looked_up:
            value = getattr(parsed, dest)
            if dest in named and value and names is not None and spelt(value) not in names:
                yield self._not_known(process, named[dest], kind, value, names)
        yield from self._speculative(process, parsed, named)
        transfer = parsed.kv_transfer_config
        if transfer is not None:
            config = {
                "kv_connector": transfer.kv_connector,
                "kv_connector_module_path": transfer.kv_connector_module_path,
                "kv_connector_extra_config": transfer.kv_connector_extra_config,
            }
            yield from self._connector(process, named["kv_transfer_config"], config)

    def _speculative(self, process: Process, parsed: Namespace, named: Mapping[str, str]) -> Iterator[Problem]:
        flag = named.get("speculative_config", "--speculative-config")
        given = {} if parsed.speculative_config is None else parsed.speculative_config
        if not isinstance(given, dict):
            yield Problem(process.name, flag, "It has to be a JSON object.")
            return
        config = {key.replace("-", "_"): value for key, value in given.items()}
        for dest, key in SPECULATIVE_FLAGS.items():
            value = getattr(parsed, dest)
            if value is not None and key in config:
                yield Problem(process.name, named[dest], f"The key {key} of {flag} says the same; vLLM refuses both.")
            elif value is not None:
                config[key] = value
        if not config and parsed.speculative_config is None:
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
        parsed = self._parse([Argument(flag="--kv-transfer-config", value=_json(child), origins=())])
        if isinstance(parsed, Exception):
            yield from self._refused(process, path, parsed)
        if isinstance(child, Mapping):
            yield from self._connector(process, path, child)

    def _rules(self, process: Process, parsed: Namespace) -> Iterator[Problem]:
        if parsed.attention_backend is not None and parsed.attention_config.backend is not None:
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

    def _environment(self, process: Process) -> Iterator[Problem]:
        for variable in process.environment:
            if not variable.name.startswith("VLLM_"):
                continue
            read = self.tables.variables.get(variable.name)
            if read is None:
                names = self.tables.variables
                yield self._not_known(process, variable.name, "variable", variable.name, frozenset(names))
                continue
            error = _reading(read, variable)
            if error is not None:
                yield from self._refused(process, variable.name, error, variable.value)

    def _not_known(self, process: Process, subject: str, kind: str, name: str, names: frozenset[str]) -> Problem:
        shown = " ".join(name.split())
        return Problem(process.name, subject, f'vLLM {self.version} knows no {kind} "{shown}".', nearest(name, names))


def _reading(read: Callable[[], object], variable: EnvVar) -> Exception | None:
    """What vLLM says when it reads the variable; it reads nothing but this process's environment."""
    before = os.environ.get(variable.name)
    os.environ[variable.name] = variable.value
    try:
        read()
    except Exception as error:  # noqa: BLE001  # each variable is read by code of its own
        return error
    finally:
        if before is None:
            del os.environ[variable.name]
        else:
            os.environ[variable.name] = before
    return None


def _text(argument: Argument) -> str:
    return argument.value if isinstance(argument.value, str) else ""


def _json(value: Any) -> Any:
    return value if isinstance(value, Mapping) else [value]  # a bare text would pass for JSON that it is not


def _reject(message: str) -> NoReturn:
    raise _Rejected(message)
