"""What is measured, from a stream: with a double of the server where it has to misbehave or be slow on purpose."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cookbook import measure
from cookbook.errors import InputError, ServerError


class Line(httpx.SyncByteStream):
    def __init__(self, lines: list[str], gate: Callable[[int], None] = lambda number: None) -> None:
        self.lines = lines
        self.gate = gate

    def __iter__(self) -> Iterator[bytes]:
        for number, line in enumerate(self.lines):
            self.gate(number)
            yield f"data: {line}\n\n".encode()


def chunk(tokens: int | None) -> str:
    usage = {} if tokens is None else {"usage": {"completion_tokens": tokens}}
    return json.dumps({"choices": [{"text": "a"}], **usage})


def double(answer: Callable[[httpx.Request], httpx.Response]) -> httpx.Client:
    return httpx.Client(base_url="http://double", transport=httpx.MockTransport(answer))


def streaming(*lines: str) -> httpx.Client:
    return double(lambda _: httpx.Response(200, stream=Line([*lines, "[DONE]"])))


def counting(request: httpx.Request) -> httpx.Response:
    asked = json.loads(request.content)["max_tokens"]
    return httpx.Response(200, stream=Line([*(chunk(n + 1) for n in range(asked)), "[DONE]"]))


@given(st.integers(1, 300), st.integers(0, 10**9))
def test_a_prompt_has_its_length_and_is_the_same_for_the_same_seed(tokens: int, seed: int) -> None:
    ids = measure.prompt(tokens, seed)
    assert len(ids) == tokens
    assert ids == measure.prompt(tokens, seed)
    assert all(1000 <= one <= 30000 for one in ids)


def test_prompts_of_other_seeds_begin_otherwise() -> None:
    heads = {tuple(measure.prompt(4, seed)) for seed in range(500)}
    assert len(heads) == 500


def test_a_step_counts_from_when_all_decode_until_the_first_is_done() -> None:
    one = [(0.0, 1), (1.0, 2), (1.1, 3), (1.2, 4), (1.3, 5)]
    late = [(1.0, 1), (1.1, 2), (1.2, 3), (1.3, 4), (1.4, 5)]
    assert measure._step([one, late]) == pytest.approx(0.1)


def test_several_tokens_in_a_chunk_are_counted_as_such() -> None:
    drafted = [(0.0, 1), (0.4, 5), (0.8, 9)]
    assert measure._step([drafted]) == pytest.approx(0.1)


def after_one_another(alone: int) -> tuple[httpx.Client, list[int]]:
    """A double that answers two requests one after the other, so many times, then both at once."""
    lengths: list[int] = []
    turn = threading.Lock()
    both = threading.Barrier(2)

    def answer(request: httpx.Request) -> httpx.Response:
        asked = json.loads(request.content)["max_tokens"]
        lengths.append(asked)

        def gate(number: int) -> None:
            if len(lengths) > 2 * (alone + 1):
                both.wait(10)
            elif number == 0:
                turn.acquire()
            elif number == asked:
                turn.release()

        return httpx.Response(200, stream=Line([*(chunk(n + 1) for n in range(asked)), "[DONE]"], gate))

    return double(answer), lengths


def test_sequences_that_missed_each_other_are_asked_for_longer_answers_by_a_double() -> None:
    http, lengths = after_one_another(alone=1)
    found = measure.decode_step(http, "m", [2], steps=4, repeats=1, prompt_tokens=4)
    assert lengths == [4, 4, 4, 4, 8, 8]
    assert len(found.points[0].values) == 1


def test_sequences_that_never_ran_together_in_a_double_are_an_error() -> None:
    http, lengths = after_one_another(alone=9)
    with pytest.raises(ServerError, match="2 sequences never decoded together, in 3 tries"):
        measure.decode_step(http, "m", [2], steps=4, repeats=1, prompt_tokens=4)
    assert lengths == [4, 4, 4, 4, 8, 8, 16, 16]


def test_without_a_count_a_chunk_is_a_token() -> None:
    lines = [(0.1, f"data: {chunk(None)}"), (0.2, f"data: {chunk(None)}"), (0.3, "data: [DONE]")]
    assert measure._tokens(lines) == [(0.1, 1), (0.2, 2)]


def test_the_last_chunk_with_the_usage_alone_is_no_token() -> None:
    lines = [(0.1, f"data: {chunk(1)}"), (0.2, 'data: {"choices": [], "usage": {"completion_tokens": 1}}')]
    assert measure._tokens(lines) == [(0.1, 1)]


def test_each_length_is_warmed_up_and_no_prompt_is_sent_twice_to_a_double() -> None:
    sent: list[list[int]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content)["prompt"])
        return counting(request)

    found = measure.time_to_first_token(double(answer), "m", [5, 9], repeats=2, salt="")
    assert [len(ids) for ids in sent] == [5, 5, 5, 9, 9, 9]
    assert len({tuple(ids) for ids in sent}) == 6
    assert [(point.x, len(point.values)) for point in found.points] == [(5, 2), (9, 2)]


def test_a_server_that_another_run_asked_knows_no_prompt_of_this_one() -> None:
    sent: list[list[int]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content)["prompt"])
        return counting(request)

    for salt in ("first run", "second run"):
        measure.time_to_first_token(double(answer), "m", [16], repeats=1, salt=salt)
        sessions(double(answer), salt)
    assert len({tuple(ids[:8]) for ids in sent}) == 2 * (2 + 1)


def test_decode_steps_of_a_double() -> None:
    found = measure.decode_step(double(counting), "m", [1], steps=8, repeats=2, prompt_tokens=4)
    assert [len(point.values) for point in found.points] == [2]
    assert found.unit == "ms"


@pytest.mark.parametrize(
    ("http", "message"),
    [
        (double(lambda _: httpx.Response(400, text="too long")), "HTTP 400 too long"),
        (streaming(), "without a token"),
        (streaming('{"error": "engine died"}'), "broke off an answer: engine died"),
    ],
    ids=["refused", "empty", "broken off"],
)
def test_a_double_that_does_not_answer_is_an_error_that_says_so(http: httpx.Client, message: str) -> None:
    with pytest.raises(ServerError, match=message):
        measure.first_tokens(http, "m", [[1, 2, 3]])


def test_a_double_that_hangs_up_is_an_error() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("slow", request=request)

    with pytest.raises(ServerError, match=r"No answer to a request of \d+ bytes: ReadTimeout"):
        measure.first_tokens(double(answer), "m", [[1]])


def test_answers_come_as_tokens_also_through_a_double_that_drops_them() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/tokenize":
            return httpx.Response(200, json={"tokens": [7, 8], "count": 2})
        return httpx.Response(200, json={"choices": [{"text": " Paris."}]})

    found = measure.answers(double(answer), "m", max_tokens=4)
    assert set(found) == set(measure.PROMPTS)
    assert set(found.values()) == {(7, 8)}


def test_a_question_without_an_answer_is_told_of_a_double() -> None:
    def gone(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    assert measure.ask(double(lambda _: httpx.Response(503, text="no prefill")), "m", "?", max_tokens=1)[:2] == (
        503,
        "no prefill",
    )
    status, said, seconds = measure.ask(double(gone), "m", "?", max_tokens=1)
    assert (status, said) == (0, "ConnectError refused")
    assert seconds >= 0


def sessions(http: httpx.Client, salt: str = "") -> measure.Sessions:
    return measure.sessions(http, "m", count=2, turns=3, shared_tokens=8, turn_tokens=4, answer_tokens=2, salt=salt)


def test_sessions_of_a_double_share_a_prefix_and_grow() -> None:
    sent: list[list[int]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content)["prompt"])
        return counting(request)

    found = sessions(double(answer))
    assert (found.asked, found.done, found.output_tokens, found.errors) == (6, 6, 12, ())
    assert sorted(len(ids) for ids in sent) == [12, 12, 16, 16, 20, 20]
    assert len({tuple(ids[:8]) for ids in sent}) == 1
    assert [len(point.values) for point in found.series.points] == [2, 2, 2]


def test_a_session_that_a_double_breaks_off_is_counted() -> None:
    numbers = itertools.count()

    def answer(request: httpx.Request) -> httpx.Response:
        return counting(request) if next(numbers) < 4 else httpx.Response(500, text="engine dead")

    found = sessions(double(answer))
    assert found.done == 4
    assert "engine dead" in found.errors[0]


def test_needles_lie_where_they_should_in_what_a_double_gets() -> None:
    texts: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/tokenize":
            return httpx.Response(200, json={"count": 20})
        texts.append(json.loads(request.content)["prompt"])
        number = texts[-1].partition("locker is ")[2][:5]
        return httpx.Response(200, json={"choices": [{"text": f" {number}."}], "usage": {"prompt_tokens": 99}})

    found = measure.needles(double(answer), "m", [200], [0.0, 1.0], max_tokens=8)
    assert [needle.found for needle in found] == [True, True]
    places = [text.index("number of the locker is") / len(text) for text in texts]
    assert places[0] < 0.05
    assert places[1] > 0.8


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "has no questions"), ("{", "line 1"), ('{"prompt": "a"}', r"line 1: KeyError .*answer"), ("[]", "line 1")],
)
def test_a_file_of_questions_that_is_broken_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "beam.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        measure.questions(double(counting), "m", path, max_tokens=1)


def test_a_file_of_questions_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.jsonl cannot be read"):
        measure.questions(double(counting), "m", tmp_path / "gone.jsonl", max_tokens=1)


def test_questions_of_a_file_are_asked_of_a_double(tmp_path: Path) -> None:
    path = tmp_path / "beam.jsonl"
    path.write_text('{"prompt": "Long text. Who?", "answer": "Ann"}\n\n{"prompt": "Where?", "answer": "Rome"}\n')
    reply: Any = {"choices": [{"text": "It was ANN."}], "usage": {"prompt_tokens": 4}}
    found = measure.questions(double(lambda _: httpx.Response(200, json=reply)), "m", path, max_tokens=1)
    assert [(needle.where, needle.found) for needle in found] == [("question 1", True), ("question 2", False)]


def test_the_client_itself_takes_milliseconds_for_a_prompt_of_340_thousand_tokens() -> None:
    """A real socket; a generous bound, as the machine may be busy."""
    found = measure.client_cost([1_000, 340_000], repeats=3)
    assert [point.x for point in found.points] == [1_000, 340_000]
    assert min(found.points[1].values) < 0.5
