"""What an example is given, and what it hands back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from openai import AsyncOpenAI, OpenAI

from cookbook.client import http
from cookbook.evidence import CheckResult

__all__ = ["Context", "Outcome", "bounded"]

LINES = 40
LINE = 400


@dataclass(frozen=True)
class Context:
    """A server, and what is known of it.

    Attributes:
        client: Of the openai package, for that server.
        model: The name that clients use.
        base_url: Address of the server, without `/v1`.
        max_model_len: Context length in tokens; None where it is not known.
        max_tokens: Length to allow for an answer that is thought about.
        thinks: The server has a reasoning parser, and the model reasons.
        sees: The model has vision, and the server takes images.
        refuses_images: The server takes text only, so it must refuse an image.
        small: The small model of a rehearsal answers.
        request_timeout_s: Bound on one request.
        long_input_tokens: Length of the long prompt to send; None to send none, for example as a million tokens take
            too long.
        metrics_urls: Base URLs of the engines whose `/metrics` count; empty for `base_url`. A router has no counters
            of an engine.
        groups: Data-parallel groups that serve side by side.
        strict: Whether `strict` of a tool reaches the engine.
    """

    client: OpenAI
    model: str
    base_url: str
    max_model_len: int | None
    max_tokens: int
    thinks: bool
    sees: bool
    refuses_images: bool
    small: bool
    request_timeout_s: float
    long_input_tokens: int | None = None
    metrics_urls: tuple[str, ...] = ()
    groups: int = 1
    strict: bool = True

    @contextmanager
    def engines(self) -> Iterator[tuple[httpx.Client, ...]]:
        """Clients of the servers that have the counters."""
        with ExitStack() as stack:
            urls = self.metrics_urls or (self.base_url,)
            yield tuple(stack.enter_context(http(url, self.request_timeout_s)) for url in urls)

    def asynchronous(self) -> AsyncOpenAI:
        """The client for asyncio, with the same address and key."""
        return AsyncOpenAI(
            base_url=self.client.base_url,
            api_key=self.client.api_key,
            timeout=self.request_timeout_s,
            max_retries=0,
        )


@dataclass(frozen=True)
class Outcome:
    """What an example brought back.

    Attributes:
        text: For a reader, at most 40 lines.
        checks: What has to hold, and whether it does.
        data: Numbers for pictures, by name.
    """

    text: str
    checks: tuple[CheckResult, ...]
    data: Mapping[str, Any] = field(default_factory=dict)


def bounded(text: str) -> str:
    """The text, cut to what a page can show."""
    lines = [line if len(line) <= LINE else f"{line[:LINE]} …" for line in text.strip().splitlines()]
    if len(lines) > LINES:
        lines = [*lines[: LINES - 1], f"… ({len(lines) - LINES + 1} more lines)"]
    return "\n".join(lines)
