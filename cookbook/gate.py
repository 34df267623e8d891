"""What stands between a run's files and the site: secrets stop a page, and traces of the machine are taken out.

It reads decoded strings, not the raw JSON of a notebook: JSON's escapes hide tokens from a scanner.
"""

from __future__ import annotations

import html
import ipaddress
import re
from collections.abc import Iterator, Mapping
from typing import Any

from cookbook.errors import InputError
from cookbook.redact import FIELDS, PATTERNS, SHORTEST

__all__ = ["ADDRESS", "HOST", "PATH", "check", "clean", "scrub", "secret_kinds"]

ADDRESS = "[address]"
HOST = "[host]"
PATH = "[path]"

QUOTES = " =:[\"'"
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# Beside what a run already takes out of its own files.
MORE = {
    "a private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    "a JSON web token": re.compile(r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}"),
    "a signed address": re.compile(r"[?&](?:key|sig|signature|token)=[^\s&\"'<>$\[]{6,}", re.IGNORECASE),
}
QUAD = re.compile(r"(?<!\d)(?<!\d\.)\d{1,3}(?:\.\d{1,3}){3}(?!\d)(?!\.\d)")
CLOUD_HOST = re.compile(r"\bip(?:-\d{1,3}){4}(?:\.[\w.-]*\w)?")
# A folder of a user, and what follows it up to a character that ends a path in a traceback, in HTML or in a sentence.
HOME = re.compile(
    r"(?<![\w.])(?:/home/[^/\s\"'<>`\x1b]+|/Users/[^/\s\"'<>`\x1b]+|/root(?![\w.-]))"
    r"(/[^\s\"'<>:,;)\]`\x1b]*)?"
)
BINARY = re.compile(r"(image/(?!svg)|application/pdf|audio/|video/)")


def secret_kinds(text: str, *, code: bool = False) -> Iterator[str]:
    """Kinds of the secrets in `text`, never their values.

    Args:
        text: A decoded string; escapes of a terminal and entities of HTML may be in it.
        code: Whether it is Python: there only a quoted value is a secret, `api_key=read_key()` is none.
    """
    plain = html.unescape(ANSI.sub("", text))
    for pattern in PATTERNS:
        for match in pattern.finditer(plain):
            yield f'a token that starts with "{match[0][:3]}"'
    for pattern in FIELDS:
        for match in pattern.finditer(plain):
            quoted = match[1].endswith(("'", '"'))
            if len(match[2]) >= SHORTEST and (quoted or not code):
                # Of an address with a password in it only the scheme is told, not the user.
                yield f'what follows "{match[1].partition("//")[0].rstrip(QUOTES)}"'
    for kind, pattern in MORE.items():
        if pattern.search(plain):
            yield kind


def check(value: Any, place: str, *, code: bool = False) -> None:
    """Refuse a value with a secret in any of its strings, keys of mappings included.

    Args:
        value: A string, or data as JSON knows it.
        place: Where it stands, for the error, for example "Cell 3, stream".
        code: Whether strings are Python.

    Raises:
        InputError: There is one. The text names the place and the kind, never the value.
    """
    for text in _strings(value):
        for kind in secret_kinds(text, code=code):
            raise InputError(
                f"{place} holds {kind}, which looks like a secret.",
                "Take it out at its origin and run the recipe again; if it was real, revoke it.",
            )


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, child in value.items():
            # Key and value together, so that "api_key": "…" is seen for what it is.
            if isinstance(child, str):
                yield f'"{key}": "{child}"' if child else str(key)
            else:
                yield str(key)
                yield from _strings(child)
    elif isinstance(value, list | tuple):
        for child in value:
            yield from _strings(child)


def scrub(text: str, host: str) -> str:
    """`text` without private IPv4 addresses, folders of users and the name of the host.

    Args:
        text: A decoded string.
        host: The name of the machine; a name that says nothing, such as "localhost", stays.
    """
    text = QUAD.sub(_address, text)
    text = CLOUD_HOST.sub(HOST, text)
    text = HOME.sub(_path, text)
    if len(host) > 2 and host != "localhost":
        text = re.sub(rf"(?<![\w-]){re.escape(host)}(?:\.[\w-]+)*(?![\w-])", HOST, text, flags=re.IGNORECASE)
    return text


def _address(match: re.Match[str]) -> str:
    parts = [int(part) for part in match[0].split(".")]
    if any(part > 255 for part in parts):
        return match[0]
    address = ipaddress.IPv4Address(".".join(map(str, parts)))
    public = address.is_global or address.is_loopback or address.is_unspecified
    return match[0] if public else ADDRESS


def _path(match: re.Match[str]) -> str:
    # The file's name helps a reader of a traceback; the folders on the way to it say who ran this and where.
    name = (match[1] or "").rpartition("/")[2]
    return f"{PATH}/{name}" if name and name not in (".", "..") else PATH


def clean(value: Any, host: str) -> Any:
    """The same data with every string scrubbed, except encoded pictures."""
    if isinstance(value, str):
        return scrub(value, host)
    if isinstance(value, Mapping):
        return {scrub(key, host): child if BINARY.match(key) else clean(child, host) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [clean(child, host) for child in value]
    return value
