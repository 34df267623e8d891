"""Every error that a user can cause, and the exit code that goes with it.

    CookbookError
    ├── ChecksFailed      1  a check fell short, or the notebook failed
    ├── InputError        2  the input, this machine or an installed package does not fit
    │   ├── CatalogError  2  an entry of the catalog is wrong: names the file and the key
    │   └── RuleError     2  a rule of the model or the hardware forbids the selection
    ├── ServerError       3  the server did not come up, or it died
    ├── TimeLimitError    4  a bound on time was reached
    └── Interrupted     130  SIGINT (143 for SIGTERM)

The text of an error is one paragraph: what happened, where, and what to do next.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "CatalogError",
    "ChecksFailed",
    "CookbookError",
    "InputError",
    "Interrupted",
    "RuleError",
    "ServerError",
    "TimeLimitError",
]


class CookbookError(Exception):
    """Base of all errors of the cookbook.

    Args:
        what: What happened, with the input that caused it, as one sentence.
        todo: The way out, as one sentence; empty only where there is none.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, todo: str = "") -> None:
        super().__init__(what, todo)
        self.what = what
        self.todo = todo

    def __str__(self) -> str:
        return f"{self.what} {self.todo}".strip()


class ChecksFailed(CookbookError):
    """A check fell short of what it expects, or a cell of the notebook failed."""

    exit_code = 1


class InputError(CookbookError):
    """What was asked for cannot be done here: a wrong name, a port in use, a missing package, a full disk."""

    exit_code = 2


class CatalogError(InputError):
    """An entry of the catalog is wrong.

    Args:
        file: The catalog file, as the user would name it.
        key: Path of the entry inside the file, dots between the steps.
        what: What is wrong with it.
        todo: The way out.
    """

    def __init__(self, file: str, key: str, what: str, todo: str = "") -> None:
        super().__init__(f"{file}: {key}: {what}" if key else f"{file}: {what}", todo)
        self.file = file
        self.key = key


class RuleError(InputError):
    """A selection that a rule forbids.

    Args:
        rules: Names of the rules.
        what: The selection, and each rule with its source.
        todo: The nearest selection that works.
    """

    def __init__(self, rules: tuple[str, ...], what: str, todo: str) -> None:
        super().__init__(what, todo)
        self.rules = rules


class ServerError(CookbookError):
    """The server did not come up, or it died.

    Args:
        what: What happened, with the root cause out of the server's log.
        todo: The way out.
        log_tail: The last lines of the server's log, already redacted, at most a screenful.
    """

    exit_code = 3

    def __init__(self, what: str, todo: str = "", log_tail: str = "") -> None:
        super().__init__(what, todo)
        self.log_tail = log_tail


class TimeLimitError(CookbookError):
    """A bound on time was reached: the server's start, a cell, or the whole run."""

    exit_code = 4


class Interrupted(CookbookError):
    """The user or the batch system ended the run.

    Args:
        signum: The signal's number (2 or 15).
    """

    exit_code = 130

    def __init__(self, signum: int) -> None:
        super().__init__(f"Interrupted by signal {signum}: every process that this run started was stopped.")
        self.signum = signum
