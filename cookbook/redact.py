"""Takes secrets out of text before it is written: the notebook, the server's log, the evidence.

Two ways: the values of variables whose names say that they are secret, wherever they turn up, and patterns of
well-known tokens. Standard library only, because the supervisor uses it and has to stay small.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

__all__ = ["Redactor", "secret_names"]

NAMES = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|API_?KEY|ACCESS_KEY|PRIVATE_KEY|AUTH)(_|$)|_KEY$",
    re.IGNORECASE,
)
# Variables whose names match and whose values are no secrets.
HARMLESS = re.compile(r"^(GPG_KEY|SSH_AUTH_SOCK|TOKENIZERS_.*|.*_(PATH|FILE|DIR|SOCK))$")

# A value shorter than this turns up by chance in any text; it is found by the flag or field in front of it instead.
SHORTEST = 6

PATTERNS = (
    re.compile(r"\bhf_[A-Za-z0-9]{16,}"),
    re.compile(r"\bsk-[A-Za-z0-9_-]{16,}"),
    re.compile(r"\bnvapi-[A-Za-z0-9_-]{16,}"),
    re.compile(r"\bgh[pousr]_[A-Za-z0-9]{20,}"),
    re.compile(r"\bgithub_pat_[A-Za-z0-9_]{20,}"),
    re.compile(r"\bglpat-[A-Za-z0-9_-]{16,}"),
    re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10,}"),
    re.compile(r"\bAKIA[0-9A-Z]{16}\b"),
)
# Group 1 stays, group 2 goes. A `$NAME`, a call in code (`api_key=read()`) and a placeholder are no secrets.
FIELD = r"\b(?:api[_-]?key|hf[_-]?token|access[_-]?token|auth[_-]?token|password|passwd|secret)"
HARMLESS_VALUE = r"(?!redacted\b|EMPTY\b|None\b|null\b)"
FIELDS = (
    re.compile(rf"(\b[Bb]earer\s+){HARMLESS_VALUE}([A-Za-z0-9._~+/=-]{{6,}})"),
    re.compile(rf"(--(?:api-key|hf-token|ssl-keyfile-password)[\s=]+[\"'\[]*){HARMLESS_VALUE}([^\s\"'$\[\],]+)"),
    re.compile(rf"({FIELD}[\"']?\s*[=:]\s*\[?[\"']){HARMLESS_VALUE}([^\"'$\[\]]+)(?=[\"'])", re.IGNORECASE),
    re.compile(rf"({FIELD}=){HARMLESS_VALUE}((?=[\w-]*\d)[\w-]{{8,}})(?![\w.(])", re.IGNORECASE),
    re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s/:@]+:)(?!\[redacted)([^\s/@$]+)(?=@)"),
)


def secret_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the variables that hold secrets, by their names."""
    return tuple(name for name in environ if NAMES.search(name) and not HARMLESS.match(name))


class Redactor:
    """Takes the secrets of an environment, and whatever looks like a token, out of text.

    Args:
        secrets: Pairs of a variable's name and its value.
    """

    def __init__(self, secrets: Iterable[tuple[str, str]]) -> None:
        forms: dict[str, str] = {}
        for name, value in secrets:
            if len(value) >= SHORTEST:
                forms |= dict.fromkeys(_forms(value), name)
        self._names = forms
        longest_first = sorted(forms, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Redactor:
        """A redactor for the secrets of `environ`, found by their names."""
        return cls((name, environ[name]) for name in secret_names(environ))

    def text(self, text: str) -> str:
        """`text` without secrets: each becomes [redacted], with the variable's name where one is known."""
        if self._known:
            text = self._known.sub(lambda match: f"[redacted:{self._names[match[0]]}]", text)
        for pattern in PATTERNS:
            text = pattern.sub("[redacted]", text)
        for pattern in FIELDS:
            text = pattern.sub(lambda match: f"{match[1]}[redacted]", text)
        return text

    def value(self, value: Any) -> Any:
        """The same for data as JSON knows it: strings, lists, and the keys and values of mappings."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.value(key): self.value(child) for key, child in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(child) for child in value]
        return value


def _forms(value: str) -> set[str]:
    """How a value may turn up: as it is, escaped for JSON, in a URL, or in base64 (alone or as a password)."""
    encoded = base64.b64encode(value.encode()).decode().rstrip("=")
    return {value, json.dumps(value)[1:-1], quote(value, safe=""), repr(value)[1:-1], encoded}
