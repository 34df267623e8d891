"""What the client examples need beside the openai package: curl, and the counters of `/metrics`."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from cookbook.errors import InputError, ServerError

__all__ = ["api_key", "curl", "http", "metrics", "server_url"]

NO_KEY = "EMPTY"


def api_key(environ: Mapping[str, str] = os.environ) -> str:
    """The server's key from VLLM_API_KEY, or a placeholder: the openai package refuses an empty one."""
    return environ.get("VLLM_API_KEY") or NO_KEY


def server_url(text: str) -> str:
    """The base URL of a server, without a trailing slash or `/v1`.

    Raises:
        InputError: It is not an http(s) URL, or it carries a user name and password.
    """
    try:
        url = httpx.URL(text.strip())
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in {"http", "https"} or not url.host:
        raise InputError(f'base_url "{text}" is not an address.', "Write for example http://127.0.0.1:8000.")
    if url.userinfo:
        raise InputError("base_url carries a user name and password.", "Put the key into VLLM_API_KEY instead.")
    return str(url).rstrip("/").removesuffix("/v1")


def http(base_url: str, timeout_s: float) -> httpx.Client:
    """A client for what the openai package does not cover. Proxies from the environment are not used."""
    key = api_key()
    headers = {} if key == NO_KEY else {"Authorization": f"Bearer {key}"}
    return httpx.Client(base_url=base_url, timeout=timeout_s, headers=headers, trust_env=False)


def metrics(*servers: httpx.Client) -> dict[str, float]:
    """Counters and gauges of these servers, each summed over its labels and over the servers.

    Raises:
        ServerError: A server does not answer `/metrics`.
    """
    totals: dict[str, float] = {}
    for server in servers:
        try:
            answer = server.get("/metrics").raise_for_status()
        except httpx.HTTPError as error:
            raise ServerError(f"/metrics cannot be read: {error}.", "Look at the server's log.") from error
        for family in text_string_to_metric_families(answer.text):
            for sample in family.samples:
                totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    return totals


def curl(url: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = 600) -> str:
    """A curl command as a reader would type it, and what it answers.

    A key is shown as $VLLM_API_KEY, for the shell of whoever types it to fill in. A machine without curl gets the
    command alone.
    """
    words = ["curl", "--silent", "--show-error", url]
    if body is not None:
        words += ["--header", "Content-Type: application/json", "--data", json.dumps(body)]
    key = api_key()
    lines = _grouped(words)
    if key != NO_KEY:
        lines.append('--header "Authorization: Bearer $VLLM_API_KEY"')
    shown = "$ " + " \\\n    ".join(lines)
    if not shutil.which("curl"):
        return f"{shown}\n(curl is not installed here: shown, not run)"
    # By standard input: arguments are visible to every user of the machine.
    secret = "" if key == NO_KEY else f'header = "Authorization: Bearer {key}"\n'
    done = subprocess.run(
        ["curl", "--config", "-", "--noproxy", "*", "--max-time", str(timeout_s), *words[1:]],
        input=secret,
        capture_output=True,
        text=True,
        check=False,
    )
    return f"{shown}\n{_pretty(done.stdout) if done.returncode == 0 else done.stderr.strip()}"


def _grouped(words: list[str]) -> list[str]:
    lines = [" ".join(map(shlex.quote, words[:4]))]
    lines += [f"{words[i]} {shlex.quote(words[i + 1])}" for i in range(4, len(words), 2)]
    return lines


def _pretty(text: str) -> str:
    try:
        return json.dumps(_without_nulls(json.loads(text)), indent=2)
    except json.JSONDecodeError:
        return text


def _without_nulls(value: Any) -> Any:
    """Take out null: vLLM sends many such fields, and a page is easier to read without them."""
    if isinstance(value, dict):
        return {key: _without_nulls(child) for key, child in value.items() if child is not None}
    if isinstance(value, list):
        return [_without_nulls(child) for child in value]
    return value
