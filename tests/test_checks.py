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
    functions = set(checks.__all__) - {"leave_out"}
    assert len(names(PASSING)) == len(functions)


def test_a_check_that_is_left_out_is_neither_and_has_its_reason() -> None:
    result = checks.leave_out("reasoning", "Reasoning", expected="two fields", reason="No parser runs.")
    assert (result.verdict, result.detail) == ("left_out", "No parser runs.")


def test_the_source_and_the_tolerance_are_shown() -> None:
    result = PASSING["kv"]
    assert (result.source, result.source_url) == ("Somewhere", "https://example.org/claim")
    assert (result.expected, result.measured, result.unit) == ("at least 2,340,000", "2,700,000", "tokens")
    assert "10%" in result.detail


def test_where_the_streamed_text_differs_is_shown() -> None:
    assert FAILING["other streamed text"].measured == "10 equal characters, then '.'"
