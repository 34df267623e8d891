"""The client examples, against a double of the server: a small real HTTP server that answers as vLLM with Kimi would.

What a real vLLM server says is asked in tests/e2e; here are the answers that a good server never gives.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from openai import OpenAI

from cookbook.examples import EXAMPLES, Context, judged, prose, source

LIMIT = 4096
CAPITALS = judged.CITIES
Body = dict[str, Any]
Reply = tuple[int, Any]


@dataclass
class State:
    """What the double counts, and how it misbehaves: `reply` is asked first, and None leaves it to the good answer."""

    reply: Callable[[str, Body], Reply | None] = lambda _path, _body: None
    frees: bool = True
    counts: bool = True
    running: int = 0
    hits: int = 0
    seen: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)


def message(content: str | None, **more: Any) -> Reply:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content, **more}}
    return 200, {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}


def call(arguments: str, name: str = "get_weather") -> Body:
    return {"id": "call-1", "type": "function", "function": {"name": name, "arguments": arguments}}


def pieces(*deltas: Body) -> Reply:
    head = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    return 200, [{**head, "choices": [{"index": 0, "delta": delta}]} for delta in deltas]


def tool_pieces(*arguments: str) -> Reply:
    first = {"index": 0, "id": "call-1", "type": "function", "function": {"name": "get_weather", "arguments": ""}}
    rest = [{"index": 0, "function": {"arguments": one}} for one in arguments]
    return pieces(*({"tool_calls": [one]} for one in (first, *rest)))


def error(status: int, text: str) -> Reply:
    return status, {"error": {"message": text, "type": "BadRequestError", "param": None, "code": status}}


def text_of(body: Body) -> str:
    content = body["messages"][-1]["content"]
    return content if isinstance(content, str) else json.dumps(content)


def good_chat(body: Body) -> Reply:
    question, effort = text_of(body), body.get("reasoning_effort")
    if effort == "medium":
        return error(400, "Kimi K3 supports thinking_effort values: low, high, max")
    if "image_url" in question:
        return message("Red.")
    if "response_format" in body:
        return message('{"name": "Paris", "country": "France", "is_capital": true}')
    if body.get("tools") and body["messages"][-1]["role"] == "tool":
        return message("It is 21 degrees in Paris.")
    if body.get("tools") and body.get("stream"):
        return tool_pieces('{"city": "Par', 'is", "unit"', ': "celsius"}')
    if body.get("tools"):
        return message(None, tool_calls=[call('{"city": "Paris", "unit": "celsius"}')])
    if "17 * 23" in question:
        return message("No.", **({} if effort == "none" else {"reasoning": "17 * 23 = 391."}))
    capital = next((city for country, city in CAPITALS.items() if country in question), "")
    if body.get("stream"):
        return pieces({"role": "assistant", "content": ""}, {"content": f"It is {capital}"}, {"content": "."})
    return message(f"It is {capital}.")


def good_completion(body: Body, state: State) -> Reply:
    prompt = body["prompt"]
    tokens = len(prompt) if isinstance(prompt, list) else len(prompt.split())
    if tokens > LIMIT and isinstance(prompt, list):
        return error(400, f"This model's maximum context length is {LIMIT} tokens. Yours has {tokens}.")
    if str(prompt) in state.seen:
        state.hits += tokens
    state.seen.add(str(prompt))
    usage = {"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1}
    choice = {"index": 0, "text": "-", "finish_reason": "length", "logprobs": None}
    head = {"id": "1", "object": "text_completion", "created": 0, "model": "m"}
    return 200, {**head, "choices": [choice], "usage": usage}


class Double(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: State

    def do_GET(self) -> None:
        names = {"num_requests_running": self.state.running, "prefix_cache_hits_total": self.state.hits}
        self._send(200, "".join(f"vllm:{name} {value}\n" for name, value in names.items()).encode(), "text/plain")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.state.asked.append(self.path)
        reply = self.state.reply(self.path, body) or self._good(body)
        if reply is None:
            self._endless()
        elif isinstance(reply[1], list):
            lines = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in reply[1]) + "data: [DONE]\n\n"
            self._send(reply[0], lines.encode(), "text/event-stream")
        else:
            self._send(reply[0], json.dumps(reply[1]).encode(), "application/json")

    def _good(self, body: Body) -> Reply | None:
        if self.path == "/v1/completions":
            return good_completion(body, self.state)
        if self.path == "/v1/messages":
            text = {"type": "text", "text": "It is Paris."}
            return 200, {"type": "message", "content": [text], "stop_reason": "end_turn"}
        return None if body.get("ignore_eos") else good_chat(body)

    def _endless(self) -> None:
        """A stream until the client leaves."""
        self.state.running += self.state.counts
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        line = f"data: {json.dumps(pieces({'content': '1 '})[1][0])}\n\n".encode()
        try:
            for _ in range(500):
                self.wfile.write(line)
                time.sleep(0.01)
        except OSError:
            self.state.running -= self.state.counts and self.state.frees

    def _send(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def context(state: State) -> Iterator[Context]:
    handler = type("Bound", (Double,), {"state": state})
    with Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        with OpenAI(base_url=f"{url}/v1", api_key="EMPTY", max_retries=0, timeout=10) as client:
            yield Context(
                client=client,
                model="m",
                base_url=url,
                max_model_len=LIMIT,
                max_tokens=64,
                thinks=True,
                sees=True,
                refuses_images=False,
                small=False,
                request_timeout_s=10,
                long_input_tokens=LIMIT - 4,
            )
        server.shutdown()
        thread.join()


def verdicts(name: str, context: Context) -> dict[str, str]:
    return {check.name: check.verdict for check in EXAMPLES[name](context).checks}


def always(reply: Reply) -> Callable[[str, Body], Reply]:
    return lambda _path, _body: reply


def chats(reply: Reply) -> Callable[[str, Body], Reply | None]:
    return lambda path, _body: reply if path == "/v1/chat/completions" else None


def test_with_a_good_double_every_check_of_every_example_holds(context: Context) -> None:
    found = {name: verdicts(name, context) for name in EXAMPLES}
    assert found == {
        "chat": {"answer": "pass"},
        "streaming": {"streaming": "pass"},
        "reasoning": dict.fromkeys(
            ("reasoning_low", "reasoning_high", "reasoning_max", "effort_refused", "reasoning_none"), "pass"
        ),
        "tool_call": {"tool_call": "pass"},
        "tool_turns": {"tool_turns": "pass"},
        "streamed_tool_call": {"streamed_tool_call": "pass"},
        "structured_output": {"structured_output": "pass"},
        "image": {"image": "pass"},
        "long_input": {"long_input": "pass", "context_limit": "pass"},
        "many_clients": {"many_clients": "pass"},
        "cancelled": {"cancelled": "pass"},
        "prefix_cache": {"prefix_cache": "pass"},
        "anthropic_messages": {"anthropic_messages": "pass"},
    }


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_double_that_answers_500_fails_every_example_without_a_traceback(
    name: str, context: Context, state: State
) -> None:
    state.reply = always(error(500, "out of memory"))
    outcome = EXAMPLES[name](context)
    assert "fail" in {check.verdict for check in outcome.checks}
    assert "pass" not in {check.verdict for check in outcome.checks}
    assert "Traceback" not in outcome.text


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_double_that_answers_nonsense_fails_every_example(name: str, context: Context, state: State) -> None:
    state.reply = always((200, {"choices": []}))
    assert "pass" not in verdicts(name, context).values()
    assert "fail" in verdicts(name, context).values()


@pytest.mark.parametrize("name", EXAMPLES)
def test_where_nothing_listens_every_example_fails(name: str, context: Context) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    client = OpenAI(base_url=f"{url}/v1", api_key="EMPTY", max_retries=0)
    found = verdicts(name, replace(context, client=client, base_url=url))
    assert set(found.values()) == {"fail"}


def test_what_went_wrong_is_told(context: Context, state: State) -> None:
    state.reply = always(error(500, "out of memory"))
    outcome = EXAMPLES["chat"](context)
    assert "out of memory" in outcome.text
    assert "out of memory" in outcome.checks[0].detail


def test_a_double_that_never_frees_a_request_fails(
    context: Context, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judged, "FREED_WITHIN_S", 0.3)
    state.frees = False
    outcome = EXAMPLES["cancelled"](context)
    assert [(check.verdict, check.measured[:9]) for check in outcome.checks] == [("fail", "1 running")]


def test_a_double_that_never_counts_a_request_fails(
    context: Context, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judged, "FREED_WITHIN_S", 0.3)
    state.counts = False
    outcome = EXAMPLES["cancelled"](context)
    assert [(check.verdict, check.detail) for check in outcome.checks] == [("fail", "It was never seen running.")]


def test_a_double_that_accepts_a_prompt_over_the_limit_fails(context: Context) -> None:
    assert verdicts("long_input", replace(context, max_model_len=LIMIT - 8, long_input_tokens=100)) == {
        "long_input": "pass",
        "context_limit": "fail",
    }


def test_a_double_that_dies_of_a_prompt_over_the_limit_fails(context: Context, state: State) -> None:
    def reply(path: str, _body: Body) -> Reply | None:
        return error(500, "dead") if state.asked.count(path) > 2 else None

    state.reply = reply
    outcome = EXAMPLES["long_input"](context)
    assert [check.verdict for check in outcome.checks] == ["pass", "fail"]
    assert outcome.checks[1].measured.endswith("then no answer")


def test_a_double_that_counts_fewer_tokens_than_were_sent_fails(context: Context, state: State) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}

    def reply(_path: str, body: Body) -> Reply | None:
        status, content = good_completion(body, state)
        return status, content if status != 200 else {**content, "usage": usage}

    state.reply = reply
    assert verdicts("long_input", context) == {"long_input": "fail", "context_limit": "pass"}


@pytest.mark.parametrize(
    "arguments",
    [('{"city": "Par', "is"), ('{"city": "Paris"}',), ("",), ('{"city": "Paris", "unit": "kelvin"}',)],
    ids=["cut off", "a field missing", "empty", "another unit"],
)
def test_a_double_that_streams_a_broken_tool_call_fails(
    arguments: tuple[str, ...], context: Context, state: State
) -> None:
    state.reply = chats(tool_pieces(*arguments))
    assert verdicts("streamed_tool_call", context) == {"streamed_tool_call": "fail"}


def test_a_double_that_streams_no_tool_call_fails(context: Context, state: State) -> None:
    state.reply = chats(pieces({"content": "It is warm."}))
    assert verdicts("streamed_tool_call", context) == {"streamed_tool_call": "fail"}


def test_a_double_that_streams_another_text_fails(context: Context, state: State) -> None:
    state.reply = lambda _path, body: pieces({"content": "It is Rome."}) if body.get("stream") else None
    assert verdicts("streaming", context) == {"streaming": "fail"}


def test_a_double_that_calls_with_cut_arguments_fails(context: Context, state: State) -> None:
    state.reply = chats(message(None, tool_calls=[call('{"city": "Par')]))
    assert verdicts("tool_call", context) == {"tool_call": "fail"}
    assert verdicts("tool_turns", context) == {"tool_turns": "fail"}


def test_a_double_that_calls_again_and_again_fails_after_four_turns(context: Context, state: State) -> None:
    state.reply = chats(message(None, tool_calls=[call('{"city": "Paris", "unit": "celsius"}')]))
    assert verdicts("tool_turns", context) == {"tool_turns": "fail"}
    assert len(state.asked) == 4


def test_a_double_that_calls_twice_before_it_answers_passes(context: Context, state: State) -> None:
    def reply(_path: str, body: Body) -> Reply | None:
        wants = len(body["messages"]) == 3
        return message(None, tool_calls=[call('{"city": "Rome", "unit": "celsius"}')]) if wants else None

    state.reply = reply
    outcome = EXAMPLES["tool_turns"](context)
    assert outcome.checks[0].verdict == "pass"
    assert "2 calls" in outcome.checks[0].measured


def test_a_double_that_ignores_what_the_tool_said_fails(context: Context, state: State) -> None:
    state.reply = lambda _path, body: message("It is warm.") if len(body["messages"]) > 1 else None
    assert verdicts("tool_turns", context) == {"tool_turns": "fail"}


def test_a_double_that_takes_any_effort_and_thinks_where_it_should_not_fails(context: Context, state: State) -> None:
    state.reply = chats(message("No.", reasoning="17 * 23 = 391."))
    found = verdicts("reasoning", context)
    assert {name for name, verdict in found.items() if verdict == "fail"} == {"effort_refused", "reasoning_none"}


def test_a_double_that_mixes_reasoning_into_the_answer_fails(context: Context, state: State) -> None:
    state.reply = chats(message("<think>391</think>No."))
    assert set(verdicts("reasoning", context).values()) == {"fail"}


def test_without_a_reasoning_parser_only_the_effort_none_is_checked(context: Context) -> None:
    found = verdicts("reasoning", replace(context, thinks=False, small=True))
    assert {name for name, verdict in found.items() if verdict != "left_out"} == {"reasoning_none"}
    reasons = {check.detail for check in EXAMPLES["reasoning"](replace(context, thinks=False)).checks}
    assert "The server runs without a reasoning parser." in reasons


def test_a_double_that_sees_another_colour_fails(context: Context, state: State) -> None:
    state.reply = chats(message("It is blurred."))
    assert verdicts("image", context) == {"image": "fail"}


def test_an_image_is_refused_clearly_or_the_check_fails(context: Context, state: State) -> None:
    text_only = replace(context, sees=False, refuses_images=True)
    assert verdicts("image", text_only) == {"image_refused": "fail"}
    state.reply = chats(error(400, "At most 0 image(s) may be provided in one prompt."))
    assert verdicts("image", text_only) == {"image_refused": "pass"}
    state.reply = chats(error(400, "Bad request."))
    assert verdicts("image", text_only) == {"image_refused": "fail"}
    assert verdicts("image", replace(context, sees=False)) == {"image": "left_out"}


def test_a_double_that_mixes_up_its_clients_fails(context: Context, state: State) -> None:
    state.reply = chats(message("It is Paris."))
    check = EXAMPLES["many_clients"](context).checks[0]
    assert (check.verdict, check.measured) == ("fail", "1 of 16 right")


def test_a_double_that_loses_one_client_of_many_fails(context: Context, state: State) -> None:
    state.reply = lambda _path, body: error(503, "busy") if "Cuba" in text_of(body) else None
    outcome = EXAMPLES["many_clients"](context)
    assert outcome.checks[0].measured == "15 of 16 right"
    assert "busy" in outcome.text
    assert len(outcome.data["together"]) == 15


def test_a_rehearsal_asks_with_four_clients(context: Context) -> None:
    assert EXAMPLES["many_clients"](replace(context, small=True)).checks[0].measured == "4 of 4 right"


def test_many_clients_can_be_asked_where_a_loop_already_runs(context: Context) -> None:
    """As in a notebook."""

    async def cell() -> str:
        return EXAMPLES["many_clients"](context).checks[0].verdict

    assert asyncio.run(cell()) == "pass"


def test_a_double_that_forgets_a_prompt_fails(context: Context, state: State) -> None:
    state.reply = lambda _path, body: good_completion(body, State())
    assert verdicts("prefix_cache", context) == {"prefix_cache": "fail"}


def test_counters_of_several_engines_are_summed(context: Context) -> None:
    twice = replace(context, metrics_urls=(context.base_url, context.base_url))
    assert "0 before, 2 while it streamed" in EXAMPLES["cancelled"](twice).text


@pytest.mark.parametrize(
    "reply",
    [
        (200, {"type": "message", "content": [], "stop_reason": "end_turn"}),
        (200, {"type": "message", "content": [{"type": "text", "text": "Paris"}], "stop_reason": "max_tokens"}),
        (404, {"detail": "Not Found"}),
    ],
    ids=["empty", "cut", "not there"],
)
def test_a_double_that_does_not_speak_anthropic_fails(reply: Reply, context: Context, state: State) -> None:
    state.reply = always(reply)
    assert verdicts("anthropic_messages", context) == {"anthropic_messages": "fail"}


def test_what_a_context_does_not_allow_is_left_out(context: Context) -> None:
    assert verdicts("long_input", replace(context, long_input_tokens=None)) == {
        "long_input": "left_out",
        "context_limit": "pass",
    }
    assert verdicts("long_input", replace(context, max_model_len=None)) == {
        "long_input": "pass",
        "context_limit": "left_out",
    }


def test_a_long_text_is_cut(context: Context, state: State) -> None:
    state.reply = chats(message("\n".join(["word " * 1000] * 200)))
    text = EXAMPLES["chat"](context).text
    assert len(text.splitlines()) == 40
    assert max(map(len, text.splitlines())) < 410
    assert text.endswith("(161 more lines)")


@pytest.mark.parametrize("name", EXAMPLES)
def test_prose_and_source_of_an_example(name: str) -> None:
    assert prose(name).endswith(".")
    assert "\n" not in prose(name)
    assert f"def {name}(" in source(name)
    assert prose(name) not in source(name)


def test_an_unknown_example_is_an_error() -> None:
    with pytest.raises(KeyError):
        source("flying")


def test_the_source_that_a_page_shows_is_complete_and_well_written() -> None:
    for name in EXAMPLES:
        for command in (("check", "--isolated", "--select", "F,I,E"), ("format", "--isolated", "--check")):
            done = subprocess.run(
                [sys.executable, "-m", "ruff", *command, "--line-length", "120", "-"],
                input=f"{source(name)}\n",
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, name + done.stdout + done.stderr


def test_the_source_that_a_page_shows_runs_by_itself(context: Context) -> None:
    namespace: dict[str, Any] = {}
    exec(source("tool_turns"), namespace)
    messages = namespace["tool_turns"](context.client, "m", 64)
    assert messages[-1]["content"] == "It is 21 degrees in Paris."
