"""A stand-in for vLLM's parser where only a list of its flags is at hand."""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import ValidationError
from pydantic_core import SchemaValidator

__all__ = ["ListedParser", "config", "optional", "size", "size_or_auto"]

UNITS = {letter: 1000**power for power, letter in enumerate("kmgt", start=1)}
UNITS |= {letter: 1024**power for power, letter in enumerate("KMGT", start=1)}
SIZE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
QUOTED = re.compile(r'("(?:[^"\\]|\\.)*")')


class ListedParser(ArgumentParser):
    """Takes words as vLLM's parser does: underscores for dashes, `--json.key value`, `-O3`."""

    def parse_args(self, args: Iterable[str] = (), namespace: None = None) -> Namespace:  # type: ignore[override]
        """As argparse's own."""
        return super().parse_args(_words(args), namespace)


def size(text: str) -> int:
    """A whole number such as "8192", "8k" (8,000) or "8K" (8,192).

    Raises:
        ValueError: It is none.
    """
    match = SIZE.fullmatch(text.strip())
    if match is None:
        return int(text)
    number, unit = match.groups()
    return int(float(number) * UNITS[unit]) if unit.islower() else int(number) * UNITS[unit]


def size_or_auto(text: str) -> int:
    """A size, or -1 for "auto".

    Raises:
        ValueError: It is neither.
    """
    return -1 if text.strip().lower() == "auto" else size(text)


def optional(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """`read`, but nothing for an empty text and for "None"."""

    def of(text: str) -> Any:
        try:
            return None if text in {"", "None"} else read(text)
        except ValueError as error:
            raise ArgumentTypeError(f"Value {text} cannot be converted to {read.__name__}.") from error

    return of


def config(validator: SchemaValidator) -> Callable[[str], Namespace]:
    """What reads the JSON of one of vLLM's configurations; the keys that it holds become attributes."""

    def of(text: str) -> Namespace:
        # Numbers such as 80g may stand there, as long as they do not stand in quotes.
        parts = QUOTED.split(text)
        parts[::2] = [re.sub(rf"\b{SIZE.pattern}\b", lambda match: str(size(match[0])), part) for part in parts[::2]]
        try:
            return Namespace(**validator.validate_json("".join(parts)))
        except ValidationError as error:
            raise ArgumentTypeError(repr(error)) from error

    return of


def _words(given: Iterable[str]) -> list[str]:
    words, nested = list[str](), dict[str, dict[str, Any]]()
    rest = iter(given)
    for word in rest:
        name, equals, value = word.partition("=")
        head, dot, path = name.partition(".")
        if word.startswith("-O"):
            words += ["--optimization-level", *filter(None, [word[2:].removeprefix("=")])]
        elif not word.startswith("--"):
            words.append(word)
        elif dot:
            _put(nested.setdefault(head.replace("_", "-"), {}), path, value if equals else next(rest, ""))
        else:
            words.append(name.replace("_", "-") + equals + value)
    return [*words, *(word for flag, value in nested.items() for word in (flag, json.dumps(value)))]


def _put(whole: dict[str, Any], path: str, text: str) -> None:
    """Put the value at `path` into `whole`; a plus behind the path adds to a list."""
    *parents, last = path.removesuffix("+").split(".")
    for step in parents:
        inner = whole.setdefault(step, {})
        whole = inner if isinstance(inner, dict) else whole
    if path.endswith("+"):
        whole[last] = [*whole.get(last, ()), *text.split(",")]
    else:
        whole[last] = _value(text)


def _value(text: str) -> Any:
    for read in (json.loads, size):
        try:
            return read(text)
        except ValueError:
            continue
    return text
