"""What a vLLM takes, written into a small file where it is installed and read where it is not.

The file holds what can be told without Python code: names, choices, kinds of values and the keys of JSON values. What
vLLM looks at with code of its own, a command passes here and may still fail there.
"""

from __future__ import annotations

import contextlib
import json
import os
from argparse import SUPPRESS, Action, ArgumentError, ArgumentParser, BooleanOptionalAction
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import GetPydanticSchema, JsonValue, TypeAdapter, ValidationError
from pydantic_core import SchemaError, SchemaValidator

from cookbook.deployment import Frozen
from cookbook.errors import InputError
from cookbook.parser.engine import Engine
from cookbook.parser.listed import ListedParser, config, optional, size, size_or_auto
from cookbook.parser.problem import split
from cookbook.parser.quiet import quiet
from cookbook.parser.shapes import choice, core_schema, shape, spelling
from cookbook.parser.tables import Tables

__all__ = ["capture", "read", "write"]

FORMAT = 1
NONSENSE = "no such value"
AGAIN = "Write it with `cookbook check --capture FILE` where that vLLM is installed, in its image."
READS: Mapping[str, Callable[[str], Any]] = {
    "any": str,
    "int": int,
    "float": float,
    "json": json.loads,
    "size": size,
    "size_or_auto": size_or_auto,
}
# A text that only this kind and those before it take.
SAMPLES = (
    (NONSENSE, "any"),
    ("{}", "json"),
    ("1.5", "float"),
    ("auto", "size_or_auto"),
    ("1k", "size"),
    ("1", "int"),
)


class Value(Frozen):
    """What a flag or a variable takes.

    Attributes:
        kind: "any" for any text; "config" for the JSON of one of vLLM's configurations.
        config: Name of that configuration.
        optional: Whether "None" and an empty text stand for none.
        choices: What there is to choose from; empty for no such list.
        case: Whether upper and lower case are the same in a choice.
        dash: Whether a dash and an underscore are the same in a choice.
        several: Whether several choices may stand in it, commas between them.
    """

    kind: Literal["any", "int", "float", "json", "size", "size_or_auto", "config"] = "any"
    config: str = ""
    optional: bool = False
    choices: tuple[str | int | None, ...] = ()
    case: bool = False
    dash: bool = False
    several: bool = False


class Flag(Frozen):
    """One flag, as argparse describes it; "bool" is a pair such as --x and --no-x, "true" takes no value."""

    flags: tuple[str, ...]
    dest: str
    action: Literal["store", "append", "bool", "true"] = "store"
    nargs: int | str | None = None
    value: Value = Value()
    default: JsonValue = None


class Listed(Frozen):
    """The names of the tables."""

    attention_backends: frozenset[str]
    load_formats: frozenset[str]
    quantizations: frozenset[str]
    tokenizer_modes: frozenset[str]
    tool_parsers: frozenset[str]
    reasoning_parsers: frozenset[str]
    connectors: frozenset[str]
    speculative_methods: frozenset[str]
    drafting_methods: frozenset[str]
    architectures: frozenset[str]


class Capture(Frozen):
    """The whole file."""

    format: Literal[1]
    vllm: str
    flags: tuple[Flag, ...]
    names: Listed
    speculative: dict[str, dict[str, Any]]
    configs: dict[str, dict[str, Any]]
    variables: dict[str, Value]


def capture(engine: Engine) -> dict[str, Any]:
    """What `engine` takes, as JSON; the same vLLM gives the same."""
    tables = engine.tables
    with quiet():
        flags = [
            _flag(engine, action)
            for action in engine.parser._actions
            if action.option_strings and action.dest != "help"
        ]
        variables = {name: _variable(take) for name, take in tables.variables.items()}
    named = {flag.value.config for flag in flags}
    whole = Capture(
        format=1,
        vllm=engine.version,
        flags=tuple(sorted(flags, key=lambda flag: flag.flags)),
        names=Listed(**{name: getattr(tables, name) for name in Listed.model_fields}),
        speculative={key: dict(shape(adapter.core_schema)) for key, adapter in tables.speculative.items()},
        configs={name: dict(given) for name, given in tables.configs.items() if name in named},
        variables=variables,
    )
    content = whole.model_dump(exclude_defaults=True)
    content["names"] = {name: sorted(names) for name, names in content["names"].items()}
    plain: dict[str, Any] = json.loads(json.dumps(content, sort_keys=True))
    return plain


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a capture, whole or not at all.

    Raises:
        InputError: The file cannot be written.
    """
    lines = [f"{json.dumps(key)}: {_lines(value)}" for key, value in sorted(content.items())]
    temporary = path.parent / f".{path.name}.{os.getpid()}"
    try:
        temporary.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise InputError(
            f"{path} cannot be written: {error.strerror}.", "Name a file in a folder that exists and has room."
        ) from error


def read(path: Path) -> Engine:
    """The vLLM that a capture was made of. Imports no vLLM.

    Raises:
        InputError: There is no such file, or it holds no capture that this cookbook reads.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.", AGAIN) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no capture of a vLLM: it is not JSON ({error}).", AGAIN) from error
    found = content.get("format") if isinstance(content, dict) else None
    if found is None:
        raise InputError(f"{path} is no capture of a vLLM: it names no format.", AGAIN)
    if found != FORMAT:
        raise InputError(f"{path} is a capture of format {found}; this cookbook reads format {FORMAT}.", AGAIN)
    try:
        return _engine(Capture.model_validate(content))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"{path} is a broken capture: {where}: {first['msg']}.", AGAIN) from error
    except LookupError as error:
        raise InputError(f"{path} is a broken capture: it lacks {error}.", AGAIN) from error
    except (ArgumentError, SchemaError, RecursionError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path} is a broken capture: {reason.rstrip('.')}.", AGAIN) from error


def _lines(value: Any) -> str:
    """JSON with one entry on a line, so that two captures can be compared."""
    if isinstance(value, dict):
        return "{\n" + ",\n".join(f"{json.dumps(key)}: {_line(inner)}" for key, inner in sorted(value.items())) + "\n}"
    if isinstance(value, list):
        return "[\n" + ",\n".join(map(_line, value)) + "\n]"
    return _line(value)


def _line(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _flag(engine: Engine, action: Action) -> Flag:
    kinds: dict[str, Any] = {"_AppendAction": "append", "BooleanOptionalAction": "bool"}
    kind = kinds.get(type(action).__name__, "true" if action.nargs == 0 else "store")
    takes_none = kind in {"bool", "true"}
    return Flag(
        flags=tuple(action.option_strings),
        dest=action.dest,
        action=kind,
        nargs=None if takes_none else action.nargs,
        value=Value() if takes_none else _taken(engine, action),
        default=_default(action.default),
    )


def _default(value: object) -> JsonValue:
    try:
        plain: JsonValue = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        return None
    return plain


def _taken(engine: Engine, action: Action) -> Value:
    """What a flag takes, found by trying: its type is code."""
    parser = engine.parser

    def convert(text: str) -> Any:
        return parser._get_value(action, text)  # argparse offers no other way to have one value converted

    def take(text: str) -> bool:
        return _error(lambda: parser._check_value(action, convert(text))) is None

    def gives_none(text: str) -> bool:
        return _error(convert, text) is None and convert(text) is None

    options = tuple(action.choices or ())
    how = spelling(take, [one for one in options if isinstance(one, str)])
    kind, name = _kind(convert)
    if kind == "config" and name not in engine.tables.configs:
        kind, name = "json", ""
    return Value(
        kind=kind,
        config=name,
        optional=gives_none("None"),
        choices=options,
        **(how if options else {}),
    )


def _variable(take: Callable[[str], object]) -> Value:
    refused = _error(take, NONSENSE)
    if refused is None:
        return Value()
    options = [one for one in split(str(refused))[2] if _error(take, one) is None]
    if not options:
        return Value(kind=_kind(take)[0])
    several = len(options) > 1 and _error(take, ",".join(options)) is None
    how = spelling(lambda text: _error(take, text) is None, options)
    return Value(choices=tuple(sorted(set(options))), several=several, **how)


def _kind(take: Callable[[str], Any]) -> tuple[Any, str]:
    """The narrowest kind that takes what `take` does, and the name of the configuration that it reads, if any."""
    unknown = _error(take, json.dumps({NONSENSE: 1}))
    while unknown is not None and not isinstance(unknown, ValidationError):
        unknown = unknown.__cause__ or unknown.__context__
    if unknown is not None:
        return "config", unknown.title
    return next((kind for sample, kind in SAMPLES if _error(take, sample) is None), "any"), ""


def _error(call: Callable[..., object], *given: object) -> BaseException | None:
    try:
        call(*given)
    except Exception as error:  # noqa: BLE001  # vLLM's validators raise what they like
        return error
    return None


def _engine(whole: Capture) -> Engine:
    parser = ListedParser(prog="vllm serve")
    parser.add_argument("model_tag", nargs="?")
    validators = {name: SchemaValidator(core_schema(given), {"title": name}) for name, given in whole.configs.items()}
    for flag in whole.flags:
        _add(parser, flag, validators)
    tables = Tables(
        **whole.names.model_dump(),
        speculative={key: _adapter(given) for key, given in whole.speculative.items()},
        configs=whole.configs,
        variables={name: _variable_reader(name, value) for name, value in whole.variables.items()},
    )
    return Engine.of(whole.vllm, parser, lambda _: None, tables)


def _add(parser: ArgumentParser, flag: Flag, validators: Mapping[str, SchemaValidator]) -> None:
    if not flag.flags or not all(name.startswith("-") for name in flag.flags):
        raise ValueError(f"{flag.flags} are no flags")
    # argparse knows its own object again, not a text like it.
    known: dict[str, Any] = {"dest": flag.dest, "default": SUPPRESS if flag.default == SUPPRESS else flag.default}
    if flag.action == "bool":
        # argparse adds the second of each pair itself.
        names = [name for name in flag.flags if not (name.startswith("--no-") and f"--{name[5:]}" in flag.flags)]
        parser.add_argument(*names, action=BooleanOptionalAction, **known)
    elif flag.action == "true":
        parser.add_argument(*flag.flags, action="store_const", const=True, **known)
    else:
        known |= {"choices": flag.value.choices or None, "type": _flag_reader(flag.value, validators)}
        parser.add_argument(*flag.flags, action=flag.action, nargs=flag.nargs, **known)


def _flag_reader(value: Value, validators: Mapping[str, SchemaValidator]) -> Callable[[str], Any]:
    if value.choices and value.kind == "any":
        read: Callable[[str], Any] = _chosen(value)
    else:
        read = config(validators[value.config]) if value.kind == "config" else READS[value.kind]
    return optional(read) if value.optional else read


def _chosen(value: Value) -> Callable[[str], str]:
    """The choice itself for each of its spellings; argparse says that any other text is none."""

    def of(text: str) -> str:
        found = choice(text, value.choices, case=value.case, dash=value.dash)
        return text if found is None else found

    return of


def _variable_reader(name: str, value: Value) -> Callable[[str], object]:
    if not value.choices:
        return READS[value.kind]

    def of(text: str) -> str:
        parts = [part.strip() for part in text.split(",") if part.strip()] if value.several else [text]
        for part in parts:
            if choice(part, value.choices, case=value.case, dash=value.dash) is None:
                options = ", ".join(map(str, value.choices))
                raise ValueError(f"Invalid value {part!r} for {name}. Valid options: {options}")
        return text

    return of


def _adapter(given: Mapping[str, Any]) -> TypeAdapter[Any]:
    schema = core_schema(given)
    return TypeAdapter(Annotated[Any, GetPydanticSchema(lambda _source, _handler: schema)])
