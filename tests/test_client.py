"""Client helpers, against a small real HTTP server (a stub of vLLM's paths: they need no model)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from cookbook import client
from cookbook.errors import InputError, ServerError

METRICS = """# HELP vllm:prefix_cache_hits Hits.
# TYPE vllm:prefix_cache_hits counter
vllm:prefix_cache_hits_total{engine="0"} 5.0
vllm:prefix_cache_hits_total{engine="1"} 7.0
"""


class Stub(BaseHTTPRequestHandler):
    keys: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        type(self).keys.append(self.headers.get("Authorization"))
        body = METRICS if self.path == "/metrics" else '{"id": "m", "empty": null, "list": [{"a": null}]}'
        status = 404 if self.path == "/missing/metrics" else 200
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def stub() -> Iterator[str]:
    Stub.keys.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Stub) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_counters_are_summed_over_their_labels(stub: str) -> None:
    with client.http(stub, 5) as http:
        assert client.metrics(http)["vllm:prefix_cache_hits_total"] == 12.0


def test_a_server_without_metrics_is_a_clear_error(stub: str) -> None:
    with client.http(f"{stub}/missing", 5) as http, pytest.raises(ServerError, match="/metrics cannot be read"):
        client.metrics(http)


def test_curl_is_shown_as_it_is_typed_and_run(stub: str) -> None:
    text = client.curl(f"{stub}/v1/models")
    assert text.startswith(f"$ curl --silent --show-error {stub}/v1/models\n")
    assert '"id": "m"' in text
    assert "null" not in text
    assert Stub.keys == [None]


def test_the_key_is_sent_but_never_shown(stub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "a-planted-key")
    text = client.curl(f"{stub}/v1/models")
    assert "a-planted-key" not in text
    assert '--header "Authorization: Bearer $VLLM_API_KEY"' in text
    with client.http(stub, 5) as http:
        http.get("/")
    assert Stub.keys == ["Bearer a-planted-key"] * 2


def test_without_curl_the_command_is_shown_alone(stub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert client.curl(f"{stub}/v1/models").endswith("(curl is not installed here: shown, not run)")


def test_a_body_is_quoted_for_the_shell(stub: str) -> None:
    text = client.curl(f"{stub}/x", {"content": 'It\'s "quoted"'}, timeout_s=5)
    assert "'\"'\"'" in text


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000"),
        (" https://gateway/team ", "https://gateway/team"),
    ],
)
def test_the_address_of_a_server(given: str, url: str) -> None:
    assert client.server_url(given) == url


@pytest.mark.parametrize("given", ["", "127.0.0.1:8000", "ftp://x", "http://", "http://host:port"])
def test_what_is_no_address_is_an_error(given: str) -> None:
    with pytest.raises(InputError, match="is not an address"):
        client.server_url(given)


def test_an_address_with_a_password_is_an_error() -> None:
    with pytest.raises(InputError, match="VLLM_API_KEY"):
        client.server_url("http://me:secret@host")
