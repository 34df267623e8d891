"""What is wrong with a command, and how what Python's argparse and pydantic say becomes that."""

from __future__ import annotations

import difflib
import json
import re
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from cookbook.parser.shapes import Shape, keys

__all__ = ["Problem", "Reason", "nearest", "reasons", "split"]

NO_SUCH_KEY = {"unexpected_keyword_argument", "extra_forbidden"}
CHOICES = re.compile(r"\s*(?:\(choose from|Valid options(?: are)?:|Valid kinds are:)(.*)", re.DOTALL)


@dataclass(frozen=True)
class Problem:
    """Something that vLLM would refuse, at once or when it is too late.

    Attributes:
        process: Name of the process.
        subject: The flag or the variable, with the path of a key inside its JSON.
        what: What is wrong, as a sentence.
        nearest: Names that exist and look like the wrong one, the best first.
    """

    process: str
    subject: str
    what: str
    nearest: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reason:
    """Why a value was refused.

    Attributes:
        path: Steps from the flag to the key inside its JSON; empty for the flag itself.
        what: As a sentence.
        nearest: Names that exist and look like the wrong one.
    """

    path: tuple[str, ...]
    what: str
    nearest: tuple[str, ...] = ()


def nearest(name: str, names: Collection[str]) -> tuple[str, ...]:
    """At most three of `names` that look like `name`; upper and lower case do not matter."""
    folded = {candidate.lower(): candidate for candidate in sorted(names)}
    return tuple(folded[match] for match in difflib.get_close_matches(name.lower(), folded, n=3))


def reasons(error: BaseException, value: str, configs: Mapping[str, Shape]) -> Iterator[Reason]:
    """One reason for each mistake that `error` tells of.

    Args:
        error: What parsing raised; the errors that it came from hold the details.
        value: The text that was parsed.
        configs: What vLLM's dataclasses take, by name: their keys are those that exist.
    """
    causes = tuple(_causes(error))
    validation = next((cause for cause in causes if isinstance(cause, ValidationError)), None)
    if validation is not None:
        for detail in validation.errors(include_url=False, include_context=False):
            yield _of_key(typing.cast("Mapping[str, Any]", detail), configs.get(validation.title))
    elif decoding := next((cause for cause in causes if isinstance(cause, json.JSONDecodeError)), None):
        yield Reason((), f"It is not JSON: {_sentence(str(decoding))}")
    else:
        text, _, choices = split(str(error))
        yield Reason((), _sentence(text), nearest(value, choices))


def split(text: str) -> tuple[str, bool, Sequence[str]]:
    """A message, whether it lists what would have been right, and that list."""
    match = CHOICES.search(text)
    if match is None:
        return text, False, ()
    return text[: match.start()], True, re.findall(r"[\w.+-]+", match[1])


def _causes(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def _of_key(detail: Mapping[str, Any], config: Shape | None) -> Reason:
    path = tuple(map(str, detail["loc"]))
    if detail["type"] in NO_SUCH_KEY:
        return Reason(path, "There is no such key.", nearest(path[-1], keys(config, path[:-1])))
    text, found, choices = split(detail["msg"].removeprefix("Value error, "))
    if not found:
        choices = re.findall(r"'([^']+)'", text) if detail["type"] == "literal_error" else ()
    return Reason(path, _sentence(text), nearest(str(detail["input"]), choices))


def _sentence(text: str) -> str:
    """On one line, without the flag that argparse puts before it and without addresses of Python objects."""
    text = re.sub(r"^argument [^ ]+: ", "", " ".join(text.split()))
    text = re.sub(r"<(?:class|function) '?([\w.]+)'?(?: at 0x[0-9a-f]+)?>", r"\1", text)
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
