"""Takes secrets out of text before it is written: the notebook, the server's log, the evidence.

Three ways. Values of variables whose names say that they are secret are found wherever they turn up, also encoded.
Well-known tokens are found by their form. What stands behind `--api-key`, `api_key=`, `Bearer` or a URL's user name is
found by its place; that is also how a value is found that is too short to be searched for.

A text may be cleaned twice: what was redacted stays as it is. Standard library only, because the supervisor uses this
and has to stay small.
"""

from __future__ import annotations

import base64
import functools
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

__all__ = ["FIELDS", "PATTERNS", "SHORTEST", "Redactor", "secret_names"]

NAMES = re.compile(
    r"TOKEN(?!I[SZ])|SECRET|PASSW|PASSPHRASE|CREDENTIAL|API_?KEY|_KEY(?:_ID)?$|_PWD$|(?:^|_)AUTH$", re.IGNORECASE
)
# Variables whose names match and whose values are no secrets.
HARMLESS = re.compile(r"^GPG_KEY$|(?:_|^)(?:PATH|FILE|DIR|SOCK|URL|URI|ENDPOINT)$", re.IGNORECASE)
# Counts, as in VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE=163840: such a value would be cut out of every log line.
COUNT_NAMES = re.compile(r"TOKENS|THRESHOLD|LIMIT", re.IGNORECASE)

# A value shorter than this turns up by chance in any text.
SHORTEST = 6
# The same for one line of a value of several lines, such as a private key.
SHORTEST_LINE = 16

PATTERNS = (
    re.compile(r"\bhf_[A-Za-z0-9]{16,}"),
    re.compile(r"\bsk-[A-Za-z0-9_-]{16,}"),
    re.compile(r"\bnvapi-[A-Za-z0-9_-]{16,}"),
    re.compile(r"\bgh[pousr]_[A-Za-z0-9]{20,}"),
    re.compile(r"\bgithub_pat_[A-Za-z0-9_]{20,}"),
    re.compile(r"\bglpat-[A-Za-z0-9_-]{16,}"),
    re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10,}"),
    re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?-----END [A-Z ]*PRIVATE KEY-----"),
)

FIELD = (
    r"(?:api[_-]?key|(?:hf|hub|access|auth|refresh|session|bearer|github)[_-]?token|client[_-]?secret"
    r"|secret[_-]?(?:access[_-]?)?key|password|passwd|passphrase)"
)
FIELD_NAME = re.compile(rf"[\w-]*{FIELD}", re.IGNORECASE)
FLAG = r"--(?:api-key|hf-token|token|ssl-keyfile-password)"
FLAG_NAME = re.compile(FLAG)

# Nothing to hide: what was redacted, a reference to a variable, a placeholder of documentation, no value at all.
SPARED = (
    r"(?!\[?redacted\b|\$|[<{]|\.\.\.|…|\*|xxx|%|YOUR_|EMPTY\b|(?:None|null|true|false|str|string|bytes|Optional)\b"
    r"|SecretStr\b)"
)
# An expression of program text: a name such as hf_token, something dotted, a call.
EXPRESSION = (
    r"(?!(?:[a-z_]+[_.])?(?:key|token|secret|password)(?:[\s,;)\]}\[.(]|$)"
    r"|[a-z_]+\.[a-z_.]+(?:[\s,;)\]}\[(]|$)|[a-z_.]+[(\[])"
)
# Words that follow a flag in prose.
PROSE = r"(?!(?:to|or|and|is|are|does|do|in|for|with|from|as|at|on|not|can|that|if|of|has|was|must|may|protects?)\b)"

FLAG_VALUE = re.compile(rf"({FLAG}(?:=|[\"']?,?[ \t]+(?:\\\n\s*)?)[\"']?){SPARED}{PROSE}(?!-)([^\s\"',\]]+)")
# What a secret stands behind. Group 1 stays, group 2 goes.
FIELDS = (
    *(
        re.compile(rf"({FIELD}[\"']?\s*[=:]\s*\[?\s*{q}){SPARED}((?:\\.|[^{q}\\\n])+)(?={q})", re.IGNORECASE)
        for q in ('"', "'")
    ),
    # The same as a string inside of JSON.
    re.compile(rf"({FIELD}\\[\"']\s*[=:]\s*\\[\"']){SPARED}([^\"'\\\n]+)(?=\\[\"'])", re.IGNORECASE),
    re.compile(
        rf"({FIELD}[\"']?[ \t]*[=:][ \t]*)(?![\"'\[\\]){SPARED}{EXPRESSION}([^\s\"',;&)}}\]]{{{SHORTEST},}})",
        re.IGNORECASE,
    ),
    FLAG_VALUE,
    re.compile(rf"(\b[Bb]earer\s+){SPARED}(?![a-z]+\b(?![\d_~+/=-]|\.\w))([A-Za-z0-9._~+/=-]{{{SHORTEST},}})"),
    re.compile(r"(\bAuthorization[\"']?\s*[:=]\s*[\"']?Basic\s+)([A-Za-z0-9+/=_-]{6,})", re.IGNORECASE),
    re.compile(r"(://[^\s/:@\"']*:)(?![$<{]|\[redacted)([^\s/@\"']+)(?=@)"),
)
# More than one key: ['first', 'second'], and `--api-key first second`.
LIST = re.compile(rf"({FIELD}[\"']?\s*[=:]\s*)(\[(?:[^\[\]]|\[redacted[^\]]*\])*\])", re.IGNORECASE)
ELEMENT = re.compile(r"([\"'])((?:(?!\1).)+)\1")
FLAG_MORE = re.compile(rf"({FLAG}[ =](?:\[redacted(?::\w+)?\] )+)(?!-|\[|\d?[<>|&])(?=\S*\d)(\S{{{SHORTEST},}})")


# Strings whose cleaned form is remembered.
REMEMBERED = 2**13


def secret_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the variables that hold secrets, by their names."""
    return tuple(name for name, value in environ.items() if _is_secret(name, value))


def _is_secret(name: str, value: str) -> bool:
    if not NAMES.search(name) or HARMLESS.search(name):
        return False
    return not (COUNT_NAMES.search(name) and value.isdigit())


class Redactor:
    """Takes the secrets of an environment, and whatever looks like a token, out of text.

    A value of fewer than six characters is not searched for: it would turn up by chance in any text. It is still
    taken out behind `--api-key`, `api_key=`, `Bearer` and the like.

    Args:
        secrets: Pairs of a variable's name and its value.
    """

    def __init__(self, secrets: Iterable[tuple[str, str]]) -> None:
        self._names: dict[str, str] = {}
        for name, value in secrets:
            for form in _forms(value):
                self._names.setdefault(form, name)
        longest_first = sorted(self._names, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        # papermill saves a whole notebook three times a cell, nearly the same each time: without this, cleaning it took
        # a second a cell, on the cores that a rehearsal's server works on.
        self._clean = functools.lru_cache(maxsize=REMEMBERED)(self._cleaned)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Redactor:
        """A redactor for the secrets of `environ`, found by their names."""
        return cls((name, environ[name]) for name in secret_names(environ))

    def text(self, text: str) -> str:
        """`text` without secrets: each becomes [redacted:NAME] where its variable is known, else [redacted]."""
        return self._clean(text)

    def _cleaned(self, text: str) -> str:
        if self._known:
            text = self._known.sub(lambda match: f"[redacted:{self._names[match[0]]}]", text)
        for pattern in PATTERNS:
            text = pattern.sub("[redacted]", text)
        text = LIST.sub(lambda match: match[1] + ELEMENT.sub(_element, match[2]), text)
        for pattern in FIELDS:
            text = pattern.sub(r"\1[redacted]", text)
        found = 1
        while found:
            text, found = FLAG_MORE.subn(r"\1[redacted]", text)
        return text

    def value(self, value: Any) -> Any:
        """The same for data as JSON knows it: strings, lists, and the keys and values of mappings.

        Here a secret's place is the key that it stands under, or the flag in front of it in a list of words.
        """
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.value(key): self._field(key, child) for key, child in value.items()}
        if isinstance(value, list | tuple):
            before: Any = None
            clean = []
            for child in value:
                flagged = isinstance(before, str) and FLAG_NAME.fullmatch(before) is not None
                clean.append(self._hidden(child) if flagged else self.value(child))
                before = child
            return clean
        return value

    def _field(self, key: Any, child: Any) -> Any:
        named = isinstance(key, str) and FIELD_NAME.fullmatch(key) is not None
        if named and isinstance(child, list | tuple):
            return [self._hidden(each) for each in child]
        return self._hidden(child) if named else self.value(child)

    def _hidden(self, value: Any) -> Any:
        """The value at a place where secrets stand."""
        if not isinstance(value, str) or not value or not re.match(SPARED, value, re.IGNORECASE):
            return self.value(value)
        clean = self.text(value)
        return clean if clean != value else "[redacted]"


def _element(match: re.Match[str]) -> str:
    return f"{match[1]}[redacted]{match[1]}" if re.match(SPARED, match[2], re.IGNORECASE) else match[0]


def _forms(value: str) -> set[str]:
    """How a value may turn up: as it is, line by line, escaped for JSON or by Python, in a URL, in base64."""
    value = value.strip()
    if len(value) < SHORTEST:
        return set()
    raw = value.encode(errors="surrogateescape")
    forms = {value, repr(value)[1:-1], *_base64(raw)}
    for ascii_only in (True, False):
        escaped = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
        forms |= {escaped, json.dumps(escaped, ensure_ascii=ascii_only)[1:-1]}
    for encoded in (quote(raw, safe=""), quote(raw), quote_plus(raw)):
        forms |= {encoded, re.sub(r"%[0-9A-F]{2}", lambda match: match[0].lower(), encoded)}
    if "\n" in value:
        forms |= {line.strip() for line in value.splitlines() if len(line.strip()) >= SHORTEST_LINE}
    return forms


def _base64(raw: bytes) -> set[str]:
    """The value in base64, whatever stands before and after it: `user:secret` begins anywhere in a group of three."""
    forms = set()
    for shift, begin in ((0, 0), (1, 2), (2, 3)):
        # The first characters depend on what stands before, the last one on what follows.
        end = None if (shift + len(raw)) % 3 == 0 else -1
        form = base64.b64encode(bytes(shift) + raw).decode().rstrip("=")[begin:end]
        forms |= {form, form.translate(str.maketrans("+/", "-_"))}
    return {form for form in forms if len(form) >= SHORTEST}
