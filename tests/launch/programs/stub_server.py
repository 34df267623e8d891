"""A stub of `vllm serve`: a few processes, a log, and the two addresses that tell whether it is ready.

It is for tests about processes and readiness, which a real vLLM would make slow. It starts a child in its session and a
grandchild in a session of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SLEEP = "import signal, sys, time; {0}; {1}; time.sleep(600)"
IGNORE = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def start_workers(*, ignore_term: bool) -> None:
    """Start both, and wait until the deepest is there."""
    first = IGNORE if ignore_term else "pass"
    own_session = [sys.executable, "-S", "-c", SLEEP.format(first, "print('up', flush=True)")]
    begin = f"import subprocess; subprocess.Popen({own_session!r}, start_new_session=True)"
    worker = subprocess.Popen([sys.executable, "-S", "-c", SLEEP.format(first, begin)], stdout=subprocess.PIPE)
    assert worker.stdout
    worker.stdout.readline()


def serve(port: int, model: str, key: str | None) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            refused = key is not None and self.headers["Authorization"] != f"Bearer {key}" and self.path != "/health"
            body = b"" if self.path == "/health" else json.dumps({"data": [{"id": model}]}).encode()
            self.send_response(401 if refused else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="*")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", default="kimi")
    parser.add_argument("--replay", type=Path)
    parser.add_argument("--key")
    parser.add_argument("--exit", type=int)
    parser.add_argument("--signal", type=int)
    parser.add_argument("--never-ready", action="store_true")
    parser.add_argument("--ignore-term", action="store_true")
    options = parser.parse_args()
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    start_workers(ignore_term=options.ignore_term)
    say(json.dumps(dict(os.environ)))
    if options.replay:
        say(options.replay.read_text())
    if options.exit is not None:
        sys.exit(options.exit)
    if options.signal is not None:
        os.kill(os.getpid(), options.signal)
    if options.never_ready:
        time.sleep(600)
    serve(options.port, options.model, options.key)


if __name__ == "__main__":
    main()
