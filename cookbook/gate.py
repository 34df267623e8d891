"""What stands between a run's files and the site: a secret stops a page, and traces of the machine are taken out.

It reads decoded strings and not the raw JSON of a notebook, because JSON's escapes hide tokens from a scanner; for the
same reason a terminal's colours and HTML's entities are taken out of the text before it is read.
"""

from __future__ import annotations

import html
import ipaddress
import re
from collections.abc import Iterator, Mapping
from typing import Any

from cookbook.errors import InputError
from cookbook.redact import Redactor

__all__ = ["ADDRESS", "HOST", "Gate"]

# In square brackets, as [redacted] is: angle brackets would be markup in Markdown and in HTML, and vanish.
ADDRESS = "[address]"
HOST = "[host]"

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
REDACTED = re.compile(r"\[redacted(?::(\w+))?\]")
# Signed addresses of object stores; a run has no reason to look for them, a page has.
SIGNED = re.compile(r"[?&](?:key|sig|signature|token|X-Amz-Signature)=[^\s&\"'<>$\[\]]{6,}", re.IGNORECASE)
QUAD = re.compile(r"(?<!\d)(?<!\d\.)\d{1,3}(?:\.\d{1,3}){3}(?!\d)(?!\.\d)")
CLOUD_HOST = re.compile(r"\bip(?:-\d{1,3}){4}(?:\.[\w-]+)*")
HOME = re.compile(r"(?<![\w.])(?:/(?:home|Users)/[^/\s\"'<>`\x1b,;:)\]]+|/root(?![\w.-]))")
PICTURE = re.compile(r"image/(?!svg)|application/pdf|audio/|video/")


class Gate:
    """Reads everything that is to be published.

    Args:
        host: Name of this machine; one of fewer than four letters is part of other words and identifies nobody.
        redactor: Knows secrets by their value, by their form and by their place.
    """

    def __init__(self, host: str, redactor: Redactor) -> None:
        self._redactor = redactor
        self._host = None
        if len(host) > 3 and host != "localhost":
            self._host = re.compile(rf"(?<![\w-]){re.escape(host)}(?:\.[\w-]+)*(?![\w-])", re.IGNORECASE)

    def secret(self, value: Any) -> str | None:
        """The kind of the first secret in text or in data as JSON knows it, never its value; None without one."""
        readable = _readable(value)
        clean = self._redactor.value(readable)
        if clean != readable:
            known = {match[1] for match in REDACTED.finditer(str(clean))}
            known -= {match[1] for match in REDACTED.finditer(str(readable))}
            names = sorted(filter(None, known))
            return f"the value of {names[0]}" if names else "a token or a password"
        return "a signed address" if any(SIGNED.search(text) for text in _strings(readable)) else None

    def check(self, value: Any, place: str) -> None:
        """Refuse a value that holds a secret.

        Args:
            value: A string, or data as JSON knows it.
            place: Where it stands, for the error, for example "b300_tp8: cell 3, stdout".

        Raises:
            InputError: It holds one. The text names the place and the kind, never the value.
        """
        kind = self.secret(value)
        if kind:
            raise InputError(
                f"{place} holds what looks like a secret: {kind}.",
                "Take it out of what printed it and run the recipe again; if it was real, revoke it.",
            )

    def scrub(self, text: str) -> str:
        """`text` without private IPv4 addresses, names of the host, and folders of users."""
        text = QUAD.sub(_address, text)
        text = CLOUD_HOST.sub(HOST, text)
        text = HOME.sub("~", text)
        return self._host.sub(HOST, text) if self._host else text

    def clean(self, value: Any) -> Any:
        """The same for data as JSON knows it, encoded pictures excepted."""
        if isinstance(value, str):
            return self.scrub(value)
        if isinstance(value, Mapping):
            return {self.scrub(k): child if PICTURE.match(k) else self.clean(child) for k, child in value.items()}
        if isinstance(value, list | tuple):
            return [self.clean(child) for child in value]
        return value


def _readable(value: Any) -> Any:
    """The same data as a reader sees it: without colours, entities and encoded pictures."""
    if isinstance(value, str):
        return html.unescape(ANSI.sub("", value))
    if isinstance(value, Mapping):
        return {_readable(k): _readable(child) for k, child in value.items() if not PICTURE.match(k)}
    if isinstance(value, list | tuple):
        return [_readable(child) for child in value]
    return value


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, child in value.items():
            yield str(key)
            yield from _strings(child)
    elif isinstance(value, list):
        for child in value:
            yield from _strings(child)


def _address(match: re.Match[str]) -> str:
    parts = [int(part) for part in match[0].split(".")]
    if max(parts) > 255:
        return match[0]
    address = ipaddress.IPv4Address(".".join(map(str, parts)))
    public = address.is_global or address.is_loopback or address.is_unspecified
    return match[0] if public else ADDRESS
