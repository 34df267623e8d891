"""What the notebooks measure themselves: time to first token, decode steps, answers as tokens, sessions that return.

`vllm bench serve` measures load (see `cookbook.load`); this is for single prompts so long, and steps so short, that the
client would show in the figure. So prompts are token ids, serialised before the clock starts, lines of the stream are
kept unread until it has stopped, and `client_cost` measures what is left of the client itself.
"""

from __future__ import annotations

import json
import random
import socketserver
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from cookbook.errors import InputError, ServerError
from cookbook.evidence import Point, Series

__all__ = [
    "PROMPTS",
    "Needle",
    "Sessions",
    "answers",
    "ask",
    "client_cost",
    "decode_step",
    "first_tokens",
    "logprobs",
    "needles",
    "prompt",
    "questions",
    "sample",
    "sessions",
    "time_to_first_token",
]

COMPLETIONS = "/v1/completions"
# Ids of ordinary words in every tokenizer that is meant here: above the bytes, below the smallest vocabulary.
FIRST_ID, LAST_ID = 1000, 30000
FILLER = "The road went on past fields, a mill and a row of poplars, and nothing happened there that day."
LONGER = (1, 2, 4)
"""Tries at sequences that have to decode together, by how much longer their answers are."""
ASKED = 0.0
"""Temperature of everything that is compared with another run."""

PROMPTS: Mapping[str, str] = {
    "capital": "The capital of France is",
    "count": "One, two, three, four, five, six, seven,",
    "water": "At sea level, water boils at a temperature of",
    "months": "January, February, March, April,",
    "story": "The lighthouse keeper climbed the stairs. At the top he saw",
    "code": "def add(a, b):\n    return a + b\n\ndef multiply(a, b):\n",
    "list": "Three things to take on a long walk:\n1.",
    "planet": "The planet nearest to the sun is",
}
"""Prompts whose answers two runs are compared by, by name. Plain text, so no chat template comes between."""


def prompt(tokens: int, seed: int, salt: str = "") -> list[int]:
    """Token ids that no other seed begins with in the same way, so no prefix cache knows them.

    Args:
        tokens: How many.
        seed: The same gives the same.
        salt: Of the run, for a server that another run may have asked before. Empty where nobody did.
    """
    draw = random.Random(f"{salt} {seed}")  # noqa: S311  # nothing secret
    return [draw.randint(FIRST_ID, LAST_ID) for _ in range(tokens)]


def _body(model: str, ids: Sequence[int], max_tokens: int) -> bytes:
    request = {
        "model": model,
        "prompt": ids,
        "max_tokens": max_tokens,
        "temperature": ASKED,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    return json.dumps(request).encode()


def _stream(http: httpx.Client, body: bytes) -> tuple[float, list[tuple[float, str]]]:
    """Send a request, and return when it was sent and each line of the answer with its time, in seconds.

    Raises:
        ServerError: It was refused, or the connection broke.
    """
    lines: list[tuple[float, str]] = []
    began = time.perf_counter()
    try:
        headers = {"Content-Type": "application/json"}
        with http.stream("POST", COMPLETIONS, content=body, headers=headers) as answer:
            if answer.status_code != httpx.codes.OK:
                answer.read()
                raise ServerError(
                    f"The server refused a request of {len(body)} bytes: HTTP {answer.status_code} {answer.text[:300]}",
                    "Its log may say more.",
                )
            lines.extend((time.perf_counter(), line) for line in answer.iter_lines() if line.startswith("data:"))
    except httpx.HTTPError as error:
        raise ServerError(
            f"No answer to a request of {len(body)} bytes: {type(error).__name__} {error}.",
            "Is the server alive? A long prompt may need a longer request_timeout_s.",
        ) from error
    return began, lines


def _tokens(lines: Sequence[tuple[float, str]]) -> list[tuple[float, int]]:
    """Times at which the answer grew, and how many tokens it had then."""
    grown: list[tuple[float, int]] = []
    for seconds, line in lines:
        text = line.removeprefix("data:").strip()
        if text == "[DONE]":
            continue
        chunk = json.loads(text)
        if "error" in chunk:
            raise ServerError(f"The server broke off an answer: {str(chunk['error'])[:300]}", "See its log.")
        # Without a count (a router may drop the option) a chunk with a choice is one token.
        so_far = grown[-1][1] if grown else 0
        count = (chunk.get("usage") or {}).get("completion_tokens", so_far + bool(chunk.get("choices")))
        if count > so_far:
            grown.append((seconds, count))
    return grown


def _first_token(http: httpx.Client, body: bytes) -> float:
    began, lines = _stream(http, body)
    grown = _tokens(lines)
    if not grown:
        raise ServerError("An answer came without a token.", "See the server's log.")
    return grown[0][0] - began


def time_to_first_token(http: httpx.Client, model: str, lengths: Sequence[int], *, repeats: int, salt: str) -> Series:
    """Seconds to the first token of one prompt at a time, by its length. No prompt is sent twice.

    Each length is warmed up once, outside of what counts: a fresh server compiles kernels at its first long prompt.

    Args:
        http: A client; its timeout bounds each request, warm-up included.
        model: The name that clients use.
        lengths: In tokens.
        repeats: Measurements of each.
        salt: As in `prompt`.

    Raises:
        ServerError: A request was refused or broke off.
    """
    points = []
    for length in lengths:
        bodies = [_body(model, prompt(length, length * 1000 + i, salt), 1) for i in range(repeats + 1)]
        _first_token(http, bodies[0])
        points.append(Point(x=length, values=tuple(round(_first_token(http, body), 6) for body in bodies[1:])))
    return Series(name="ttft", title="Time to first token", unit="s", x="Prompt (tokens)", points=tuple(points))


def first_tokens(http: httpx.Client, model: str, prompts: Sequence[Sequence[int]]) -> tuple[float, ...]:
    """Seconds to the first token of each prompt, one after the other, without warm-up: the first time counts.

    Raises:
        ServerError: A request was refused or broke off.
    """
    return tuple(round(_first_token(http, _body(model, ids, 1)), 6) for ids in prompts)


def decode_step(
    http: httpx.Client, model: str, batches: Sequence[int], *, steps: int, repeats: int, prompt_tokens: int
) -> Series:
    """Milliseconds of a decode step, by how many sequences decode together.

    It counts from when the last of them has its first token until the first of them is done, so that all of the batch
    was decoding; each batch is warmed up once. Where a busy machine let them miss each other, they are asked again, for
    longer answers.

    Args:
        http: A client.
        model: The name that clients use.
        batches: Sequences at a time.
        steps: Tokens of each answer, at least 3. The last try asks for four times as many.
        repeats: Measurements of each batch.
        prompt_tokens: Length of each prompt.

    Raises:
        ServerError: A request was refused or broke off, or the sequences never ran together.
    """
    points = []
    for batch in batches:
        seeds = range(batch * 1_000_000, batch * 1_000_000 + (repeats + 1) * 1000, 1000)
        prompts = [[prompt(prompt_tokens, seed + i) for i in range(batch)] for seed in seeds]
        _at_once(http, model, prompts[0], steps)
        values = [round(1000 * _together(http, model, ids, steps), 3) for ids in prompts[1:]]
        points.append(Point(x=batch, values=tuple(values)))
    return Series(name="decode_step", title="Decode step", unit="ms", x="Batch (sequences)", points=tuple(points))


def _at_once(
    http: httpx.Client, model: str, prompts: Sequence[Sequence[int]], steps: int
) -> list[list[tuple[float, int]]]:
    bodies = [_body(model, ids, steps) for ids in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        streams = [_tokens(lines) for _, lines in pool.map(lambda body: _stream(http, body), bodies)]
    if not all(streams):
        raise ServerError("An answer came without a token.", "See the server's log.")
    return streams


def _together(http: httpx.Client, model: str, prompts: Sequence[Sequence[int]], steps: int) -> float:
    """Seconds of a step, measured again with longer answers where the sequences missed each other."""
    for longer in LONGER:
        found = _step(_at_once(http, model, prompts, longer * steps))
        if found is not None:
            return found
    raise ServerError(
        f"{len(prompts)} sequences never decoded together, in {len(LONGER)} tries, so a step of that batch cannot be"
        " measured.",
        "The KV cache may be too small for them, or the machine too busy.",
    )


def _step(streams: Sequence[Sequence[tuple[float, int]]]) -> float | None:
    """Seconds between two tokens of a sequence while all of them decode; None where they never did."""
    begin, end = max(stream[0][0] for stream in streams), min(stream[-1][0] for stream in streams)
    rates = []
    for stream in streams:
        inside = [(seconds, count) for seconds, count in stream if begin <= seconds <= end]
        if len(inside) > 1:
            (first, before), (last, after) = inside[0], inside[-1]
            rates.append((last - first) / (after - before))
    return median(rates) if len(rates) == len(streams) else None


# Answers


def answers(http: httpx.Client, model: str, *, max_tokens: int) -> dict[str, tuple[int, ...]]:
    """Token ids of the answers to `PROMPTS` at temperature 0, by name, each asked alone.

    Raises:
        ServerError: The server does not answer.
    """
    return {name: _answer(http, model, text, max_tokens) for name, text in PROMPTS.items()}


def _answer(http: httpx.Client, model: str, text: str, max_tokens: int) -> tuple[int, ...]:
    asked = {"model": model, "prompt": text, "max_tokens": max_tokens, "temperature": ASKED, "return_token_ids": True}
    choice = _post(http, COMPLETIONS, asked)["choices"][0]
    if choice.get("token_ids") is not None:
        return tuple(choice["token_ids"])
    # A router does not know the option. What the text tokenizes to is as good for a comparison with the same.
    found = _post(http, "/tokenize", {"model": model, "prompt": choice["text"], "add_special_tokens": False})
    return tuple(found["tokens"])


def logprobs(http: httpx.Client, model: str, ids: Sequence[int], *, max_tokens: int) -> tuple[list[str], list[float]]:
    """The tokens of an answer at temperature 0 and their log-probabilities.

    Raises:
        ServerError: The server does not answer.
    """
    asked = {"model": model, "prompt": ids, "max_tokens": max_tokens, "temperature": ASKED, "logprobs": 1}
    found = _post(http, COMPLETIONS, asked)["choices"][0]["logprobs"]
    return found["tokens"], found["token_logprobs"]


def _post(http: httpx.Client, path: str, body: Mapping[str, Any]) -> Any:
    try:
        return http.post(path, json=body).raise_for_status().json()
    except (httpx.HTTPError, ValueError) as error:
        shown = error.response.text[:300] if isinstance(error, httpx.HTTPStatusError) else ""
        raise ServerError(f"{path} answers {type(error).__name__}: {error} {shown}".strip(), "See its log.") from error


# Long contexts


@dataclass(frozen=True)
class Needle:
    """Something that a long text says, and that was asked for.

    Attributes:
        tokens: Length of the prompt, as the server counted it.
        where: It was hidden, or which question it was, for a reader.
        expected: What the answer has to contain.
        answer: What the model said.
    """

    tokens: int
    where: str
    expected: str
    answer: str

    @property
    def found(self) -> bool:
        """It is in the answer."""
        return self.expected.lower() in self.answer.lower()


def needles(
    http: httpx.Client, model: str, lengths: Sequence[int], depths: Sequence[float], *, max_tokens: int
) -> list[Needle]:
    """Hide a number in texts of several lengths and at several depths, and ask for it.

    Args:
        http: A client.
        model: The name that clients use.
        lengths: Of the texts, in tokens, roughly.
        depths: From 0 to 1.
        max_tokens: Of an answer.

    Raises:
        ServerError: The server does not answer.
    """
    filler = _post(http, "/tokenize", {"model": model, "prompt": FILLER})["count"]
    found = []
    for length in lengths:
        for depth in depths:
            number = str(random.Random(f"{length} {depth}").randint(10_000, 99_999))  # noqa: S311
            lines = [f"{FILLER}" for _ in range(max(1, length // filler))]
            lines.insert(round(depth * len(lines)), f"The number of the locker is {number}.")
            text = "\n".join(lines) + "\n\nWhat is the number of the locker? The number of the locker is"
            asked = {"model": model, "prompt": text, "max_tokens": max_tokens, "temperature": ASKED}
            answer = _post(http, COMPLETIONS, asked)
            found.append(
                Needle(answer["usage"]["prompt_tokens"], f"at {depth:.0%}", number, answer["choices"][0]["text"])
            )
    return found


def questions(http: httpx.Client, model: str, path: Path, *, max_tokens: int) -> list[Needle]:
    """Ask the questions of a file on long texts.

    Args:
        http: A client.
        model: The name that clients use.
        path: JSON lines of "prompt", the text and the question, and "answer", what the reply has to contain.
        max_tokens: Of a reply.

    Raises:
        InputError: The file cannot be read, or a line is not of that form.
        ServerError: The server does not answer.
    """
    todo = 'Each line is a JSON object of "prompt" and "answer".'
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}.", todo) from error
    found = []
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            text, expected = str(entry["prompt"]), str(entry["answer"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}, line {number}: {type(error).__name__} {error}.", todo) from error
        asked = {"model": model, "prompt": text, "max_tokens": max_tokens, "temperature": ASKED}
        answer = _post(http, COMPLETIONS, asked)
        reply = answer["choices"][0]["text"]
        found.append(Needle(answer["usage"]["prompt_tokens"], f"question {number}", expected, reply))
    if not found:
        raise InputError(f"{path} has no questions.", todo)
    return found


def sample(http: httpx.Client, model: str, text: str, *, max_tokens: int) -> str:
    """An answer as people and model cards draw them: temperature 1, top_p 0.95.

    Raises:
        ServerError: The server does not answer.
    """
    asked = {"model": model, "prompt": text, "max_tokens": max_tokens, "temperature": 1, "top_p": 0.95}
    return str(_post(http, COMPLETIONS, asked)["choices"][0]["text"])


def ask(http: httpx.Client, model: str, text: str, *, max_tokens: int) -> tuple[int, str, float]:
    """Ask a question that may well get no answer.

    Returns:
        HTTP status (0 where none came), the answer or the error, and the seconds until then.
    """
    began = time.perf_counter()
    asked = {"model": model, "prompt": text, "max_tokens": max_tokens, "temperature": ASKED}
    try:
        answer = http.post(COMPLETIONS, json=asked)
    except httpx.HTTPError as error:
        return 0, f"{type(error).__name__} {error}", time.perf_counter() - began
    good = answer.status_code == httpx.codes.OK
    said = answer.json()["choices"][0]["text"] if good else answer.text
    return answer.status_code, said, time.perf_counter() - began


# Sessions


@dataclass(frozen=True)
class Sessions:
    """Sessions of several turns that ran at once.

    Attributes:
        asked: Turns that were to be made.
        done: Turns that were answered in full.
        errors: Why others were not, each kind once.
        seconds: Until the last was done.
        output_tokens: Of all answers.
        first_token_s: Seconds to the first token, by turn, for each session.
    """

    asked: int
    done: int
    errors: tuple[str, ...]
    seconds: float
    output_tokens: int
    first_token_s: tuple[tuple[float, ...], ...] = field(default=())

    @property
    def series(self) -> Series:
        """Time to first token by turn."""
        points = tuple(Point(x=turn, values=seconds) for turn, seconds in enumerate(self.first_token_s, 1) if seconds)
        return Series(name="turn_ttft", title="Time to first token", unit="s", x="Turn of the session", points=points)


def sessions(
    http: httpx.Client,
    model: str,
    *,
    count: int,
    turns: int,
    shared_tokens: int,
    turn_tokens: int,
    answer_tokens: int,
    salt: str,
) -> Sessions:
    """Run sessions at once, each of several turns. All begin with the same long prefix, as agents with the same tools
    and instructions do, and every turn sends the whole session so far.

    Args:
        http: A client.
        model: The name that clients use.
        count: Sessions at a time.
        turns: Of each.
        shared_tokens: Length of the prefix that all share.
        turn_tokens: What each turn adds.
        answer_tokens: Length of each answer.
        salt: As in `prompt`.
    """
    shared = prompt(shared_tokens, 7, salt)
    took: list[list[float]] = [[] for _ in range(turns)]
    errors: list[str] = []
    output = 0
    lock = threading.Lock()

    def run(session: int) -> None:
        nonlocal output
        so_far = list(shared)
        for turn in range(turns):
            so_far += prompt(turn_tokens, 1_000_000 + session * 1000 + turn, salt)
            try:
                began, lines = _stream(http, _body(model, so_far, answer_tokens))
                grown = _tokens(lines)
            except ServerError as error:
                with lock:
                    errors.append(str(error))
                return
            with lock:
                if grown and grown[-1][1] == answer_tokens:
                    took[turn].append(round(grown[0][0] - began, 6))
                    output += answer_tokens
                else:
                    errors.append("An answer was shorter than asked for.")

    began = time.perf_counter()
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(run, range(count)))
    return Sessions(
        asked=count * turns,
        done=sum(map(len, took)),
        errors=tuple(dict.fromkeys(errors)),
        seconds=time.perf_counter() - began,
        output_tokens=output,
        first_token_s=tuple(map(tuple, took)),
    )


# The client itself


def client_cost(lengths: Sequence[int], *, repeats: int) -> Series:
    """Seconds that this client itself takes for a prompt, by its length, without any model.

    It asks a socket on this machine that reads the request to its end and answers at once. Whatever grows here would
    be taken for the server's time.

    Args:
        lengths: In tokens.
        repeats: Measurements of each.
    """
    points = []
    with _answering_at_once() as url, httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
        for length in lengths:
            bodies = [_body("none", prompt(length, seed=length * 1000 + i), 1) for i in range(repeats + 1)]
            values = [round(_first_token(http, body), 6) for body in bodies]
            points.append(Point(x=length, values=tuple(values[1:])))
    return Series(name="client_cost", title="The client itself", unit="s", x="Prompt (tokens)", points=tuple(points))


ANSWER = b'data: {"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}}\n\ndata: [DONE]\n\n'


class _AtOnce(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        length = 0
        while (line := self.rfile.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        self.rfile.read(length)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n"
        self.wfile.write(head + b"Content-Length: %d\r\n\r\n" % len(ANSWER) + ANSWER)


@contextmanager
def _answering_at_once() -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _AtOnce) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
