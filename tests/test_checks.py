"""Each check passes on what is right and fails on what is wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cookbook import checks
from cookbook.deployment import Claim, Source
from cookbook.evidence import CheckResult

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
CLAIM = Claim(
    name="kv_cache_tokens",
    statement="2.6 M tokens.",
    value=2_600_000,
    unit="tokens",
    tolerance=0.1,
    basis="stated",
    source="spec",
)
SOURCE = Source(title="Somewhere", url="https://example.org/claim")


def call(name: str, arguments: str) -> Any:
    return SimpleNamespace(function=SimpleNamespace(name=name, arguments=arguments))


def counters(hits: float) -> dict[str, float]:
    return {"vllm:prefix_cache_hits_total": hits}


EFFORTS = ("low", "high", "max")
PARIS = '{"city":"Paris","unit":"celsius"}'


def turns(*, arguments: str = PARIS, result_for: str = "1", final: str = "It is 21 degrees.") -> list[dict[str, Any]]:
    function = {"name": "get_weather", "arguments": arguments}
    return [
        {"role": "user", "content": "What is the weather in Paris?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": result_for, "content": '{"temperature": 21}'},
        {"role": "assistant", "content": final},
    ]


def in_turns(messages: list[dict[str, Any]]) -> CheckResult:
    return checks.tools_in_turns(messages, tools={"get_weather": SCHEMA}, contains="21")


def streamed(*arguments: str, name: str = "get_weather") -> CheckResult:
    calls = [{"name": [name], "arguments": arguments}]
    return checks.streamed_tool_call(calls, name="get_weather", parameters=SCHEMA)


def in_anthropic_form(status: int = 200, *, text: str = "It is Paris.", stop: str = "end_turn") -> CheckResult:
    content = [{"type": "thinking", "thinking": "France"}, {"type": "text", "text": text}]
    body = {"type": "message", "content": content, "stop_reason": stop}
    return checks.anthropic_answered(status, body, contains="Paris")


def over_limit(status: int = 400, message: str = "At most 4096 tokens.", *, alive: bool = True) -> CheckResult:
    return checks.context_limit(status, message, limit=4096, alive=alive)


PASSING = {
    "ready": checks.ready(27.5, limit_s=3600, health_status=200),
    "ready, already running": checks.ready(None, limit_s=1, health_status=200),
    "serves": checks.serves({"data": [{"id": "m", "max_model_len": 4096}]}, model="m", max_model_len=4096),
    "serves, length unknown": checks.serves({"data": [{"id": "m"}]}, model="m", max_model_len=None),
    "answered": checks.answered("It is Paris.", contains="paris", finish_reason="stop"),
    "same text": checks.same_text("It is Paris.", "It is Paris."),
    "tool": checks.tool_called(
        [call("get_weather", '{"city":"Paris","unit":"celsius"}')], name="get_weather", parameters=SCHEMA
    ),
    "schema": checks.follows_schema('{"city":"Paris","unit":"celsius"}', SCHEMA),
    "reasoning": checks.reasoning_apart("17 * 23 is 391.", "No."),
    "kv": checks.kv_cache_tokens([2_700_000], CLAIM, SOURCE),
    "kv, just within tolerance": checks.kv_cache_tokens([2_340_000], CLAIM, SOURCE),
    "kv of several engines": checks.kv_cache_tokens([1_300_000, 1_300_000], CLAIM, SOURCE),
    "prefix": checks.prefix_cache_hits(counters(100), counters(1000), prompt_tokens=1000),
    "no reasoning wanted": checks.reasoning_off(None, "No."),
    "effort refused": checks.effort_refused(400, "supports thinking_effort: low, high, max", supported=EFFORTS),
    "turns": in_turns(turns()),
    "turns, two calls": in_turns([*turns()[:3], *turns()[1:]]),
    "streamed tool call": streamed('{"city":"Par', 'is","unit":', '"celsius"}'),
    "image": checks.image_described("A Red square.", contains="red"),
    "image refused": checks.image_refused(400, "m is not a multimodal model", alive=True),
    "image refused by a limit": checks.image_refused(400, "At most 0 image(s) may be provided.", alive=True),
    "long prompt": checks.long_input(4090, sent=4090, limit=4096),
    "over the limit": over_limit(),
    "over the limit, with separators": over_limit(message="At most 4,096 tokens."),
    "all clients": checks.all_answered(["It is Paris.", "It is Rome."], ["Paris", "Rome"], alone=["Paris.", "Rome."]),
    "freed": checks.freed(0, 1, 0, seconds=0.1, limit_s=10),
    "freed, others go on": checks.freed(2, 3, 1, seconds=0.1, limit_s=10),
    "anthropic": in_anthropic_form(),
}
FAILING = {
    "ready too late": checks.ready(3601, limit_s=3600, health_status=200),
    "not ready": checks.ready(27.5, limit_s=3600, health_status=503),
    "another model": checks.serves({"data": [{"id": "other", "max_model_len": 4096}]}, model="m", max_model_len=4096),
    "another length": checks.serves({"data": [{"id": "m", "max_model_len": 2048}]}, model="m", max_model_len=4096),
    "no models": checks.serves({}, model="m", max_model_len=None),
    "wrong answer": checks.answered("It is Rome.", contains="Paris", finish_reason="stop"),
    "cut answer": checks.answered("It is Paris and", contains="Paris", finish_reason="length"),
    "empty answer": checks.answered(None, contains="Paris", finish_reason="stop"),
    "other streamed text": checks.same_text("It is Paris.", "It is Pari."),
    "streamed text goes on": checks.same_text("It is Paris.", "It is Paris. And"),
    "nothing streamed": checks.same_text("", ""),
    "no tool call": checks.tool_called(None, name="get_weather", parameters=SCHEMA),
    "another tool": checks.tool_called([call("get_time", "{}")], name="get_weather", parameters=SCHEMA),
    "tool arguments against the schema": checks.tool_called(
        [call("get_weather", '{"city":"Paris","unit":"kelvin"}')], name="get_weather", parameters=SCHEMA
    ),
    "tool arguments cut off": checks.tool_called(
        [call("get_weather", '{"city":"Par')], name="get_weather", parameters=SCHEMA
    ),
    "JSON against the schema": checks.follows_schema('{"city":"Paris"}', SCHEMA),
    "not JSON": checks.follows_schema("Paris", SCHEMA),
    "no reasoning": checks.reasoning_apart(None, "No."),
    "all in reasoning": checks.reasoning_apart("17 * 23 is 391. No.", None),
    "marker left in the answer": checks.reasoning_apart("17 * 23 is 391.", "</think>No."),
    "kv too small": checks.kv_cache_tokens([2_339_999], CLAIM, SOURCE),
    "kv not logged": checks.kv_cache_tokens([], CLAIM, SOURCE),
    "prefix not found": checks.prefix_cache_hits(counters(100), counters(100), prompt_tokens=1000),
    "prefix hardly found": checks.prefix_cache_hits(counters(0), counters(499), prompt_tokens=1000),
    "no counters": checks.prefix_cache_hits({}, {}, prompt_tokens=1000),
    "no prompt": checks.prefix_cache_hits(counters(0), counters(0), prompt_tokens=0),
    "reasoning where none is wanted": checks.reasoning_off("17 * 23 is 391.", "No."),
    "reasoning in the answer": checks.reasoning_off(None, "<think>391</think>No."),
    "no answer without reasoning": checks.reasoning_off(None, ""),
    "effort taken": checks.effort_refused(200, "", supported=EFFORTS),
    "effort refused without naming any": checks.effort_refused(400, "below the maximum", supported=EFFORTS),
    "effort breaks the server": checks.effort_refused(500, "low, high, max", supported=EFFORTS),
    "turns without a call": in_turns([turns()[0], turns()[3]]),
    "turns, result of another call": in_turns(turns(result_for="2")),
    "turns, arguments cut off": in_turns(turns(arguments='{"city":"Par')),
    "turns, result not used": in_turns(turns(final="It is warm.")),
    "turns without an answer": in_turns(turns()[:3]),
    "turns, still calling": in_turns(turns()[:2]),
    "no turns": in_turns([]),
    "streamed tool call cut off": streamed('{"city":"Par'),
    "streamed tool call of another tool": streamed(PARIS, name="get_weatherget_weather"),
    "streamed tool call without arguments": streamed(),
    "no streamed tool call": checks.streamed_tool_call([], name="get_weather", parameters=SCHEMA),
    "image not seen": checks.image_described("It is blurred.", contains="red"),
    "nothing said of the image": checks.image_described(None, contains="red"),
    "image taken": checks.image_refused(200, "", alive=True),
    "image breaks the server": checks.image_refused(500, "no image", alive=True),
    "image refused unclearly": checks.image_refused(400, "Bad request", alive=True),
    "server dead after the image": checks.image_refused(400, "no image", alive=False),
    "long prompt cut": checks.long_input(4000, sent=4090, limit=4096),
    "no long prompt": checks.long_input(0, sent=0, limit=None),
    "prompt over the limit taken": over_limit(200, ""),
    "limit not named": over_limit(message="Your prompt of 40960 tokens is too long."),
    "prompt over the limit breaks the server": over_limit(500),
    "server dead after the prompt": over_limit(alive=False),
    "clients mixed up": checks.all_answered(["It is Rome.", "It is Paris."], ["Paris", "Rome"], alone=["", ""]),
    "a client without an answer": checks.all_answered(["It is Paris.", ""], ["Paris", "Rome"], alone=["", ""]),
    "no clients": checks.all_answered([], [], alone=[]),
    "not freed": checks.freed(0, 1, 1, seconds=10, limit_s=10),
    "never seen running": checks.freed(0, 0, 0, seconds=0, limit_s=10),
    "anthropic, wrong answer": in_anthropic_form(text="It is Rome."),
    "anthropic, cut answer": in_anthropic_form(stop="max_tokens"),
    "anthropic, error": in_anthropic_form(500),
    "anthropic, no body": checks.anthropic_answered(200, {}, contains="Paris"),
}


@pytest.mark.parametrize("name", PASSING)
def test_passes(name: str) -> None:
    assert PASSING[name].verdict == "pass"


@pytest.mark.parametrize("name", FAILING)
def test_fails(name: str) -> None:
    assert FAILING[name].verdict == "fail"


def test_every_check_is_seen_to_pass_and_to_fail() -> None:
    def names(results: dict[str, CheckResult]) -> set[str]:
        return {result.name for result in results.values()}

    assert names(PASSING) == names(FAILING)
    functions = set(checks.__all__) - {"leave_out", "broken", "made"}
    assert len(names(PASSING)) == len(functions)


def test_a_check_that_is_left_out_is_neither_and_has_its_reason() -> None:
    result = checks.leave_out("reasoning", "Reasoning", expected="two fields", reason="No parser runs.")
    assert (result.verdict, result.detail) == ("left_out", "No parser runs.")


def test_an_example_that_broke_is_a_failure_with_its_error() -> None:
    result = checks.broken("chat", "APITimeoutError: Request timed out.")
    assert (result.name, result.verdict, result.detail) == ("chat", "fail", "APITimeoutError: Request timed out.")


def test_each_effort_is_a_check_of_its_own() -> None:
    results = [
        checks.reasoning_apart(thought, "No.", effort=effort) for effort, thought in (("low", "391"), ("max", ""))
    ]
    assert [(r.name, r.verdict) for r in results] == [("reasoning_low", "pass"), ("reasoning_max", "fail")]


def test_equal_answers_are_counted_and_not_demanded() -> None:
    result = checks.all_answered(["It is Paris.", "Rome."], ["Paris", "Rome"], alone=["Paris.", "Rome."])
    assert (result.verdict, result.detail) == ("pass", "1 are equal to the answer of the same request alone.")


def test_in_how_many_pieces_arguments_came_is_shown() -> None:
    assert PASSING["streamed tool call"].measured.endswith("arguments in 3 pieces")


def test_the_source_and_the_tolerance_are_shown() -> None:
    result = PASSING["kv"]
    assert (result.source, result.source_url) == ("Somewhere", "https://example.org/claim")
    assert (result.expected, result.measured, result.unit) == ("at least 2,340,000", "2,700,000", "tokens")
    assert "10%" in result.detail


def test_where_the_streamed_text_differs_is_shown() -> None:
    assert FAILING["other streamed text"].measured == "10 equal characters, then '.'"
