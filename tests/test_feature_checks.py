"""Each check of a feature passes on what is right, and fails on what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cookbook import feature_checks as fc
from cookbook.compare import BY_UNIT
from cookbook.deployment import Claim, Source
from cookbook.evidence import CheckResult, Point, Series
from cookbook.measure import Needle, Sessions

SOURCE = Source(title="Somewhere", url="https://example.org/claim")


def claim(value: float, unit: str, tolerance: float = 0.1) -> Claim:
    return Claim(
        name="c", statement="As claimed.", value=value, unit=unit, tolerance=tolerance, basis="stated", source="spec"
    )


def curve(points: dict[float, tuple[float, ...]], unit: str = "ms") -> Series:
    found = tuple(Point(x=x, values=values) for x, values in points.items())
    return Series(name="s", title="S", unit=unit, x="x", points=found)


SLOW = curve({1: (16.0, 17.0, 16.5), 32: (26.0, 25.0, 25.5), 64: (30.0, 30.5, 30.2)})
FAST = curve({1: (10.0, 10.2, 10.1), 32: (20.0, 20.5, 20.2), 64: (24.0, 24.5, 24.2)})
FASTER, TIMES = claim(1.6, "times faster"), claim(1.25, "times TP8's decode step", 0.0)
RATIO, SECONDS = claim(1.5, "times FP8's tokens"), claim(10, "s", 0.2)
MOVED = {"vllm:nixl_xfer_time_seconds_count": 4.0, "vllm:nixl_bytes_transferred_sum": 2.0**22}
PREFILL = {"vllm:prompt_tokens_total": 100.0, "vllm:generation_tokens_total": 4.0}
DECODE = {"vllm:external_prefix_cache_hits_total": 96.0, "vllm:generation_tokens_total": 64.0}
BACK = {"vllm:external_prefix_cache_hits_total": 1000.0, "vllm:prefix_cache_hits_total": 10.0}
DRAFTED = {"vllm:spec_decode_num_drafts_total": 100.0, "vllm:spec_decode_num_accepted_tokens_total": 360.0}
LOG = "INFO Available KV cache memory: 10.00 GiB\nINFO GPU KV cache size: 1,000,000 tokens, Maximum concurrency 1x"
BYTES = 10 * 2**30 / 1e6 / 24
EP = "(Worker) INFO [EP Rank 0/8] Expert parallelism is enabled."
ECHO = "INFO non-default args: {'additional_config': {'decode_backend': 'latency_specialized'}}"


def log_shows(log: str, pattern: str) -> CheckResult:
    return fc.log_shows("log", "Log", log, pattern, expected="it", source=SOURCE)


def at_most(values: tuple[float, ...]) -> CheckResult:
    return fc.at_most("at_most", "At most", values, claim=SECONDS, source=SOURCE)


def less(ours: Series, theirs: Series, at: float = 1) -> CheckResult:
    return fc.less_than("less", "Less", ours, theirs, claim=SECONDS, source=SOURCE, at=at, compared_with="run a")


def faster(ours: Series, theirs: Series, at: tuple[float, ...] = (1,)) -> CheckResult:
    return fc.times_faster("faster", "Faster", ours, theirs, claim=FASTER, source=SOURCE, at=at)


def times(ours: Series, theirs: Series) -> CheckResult:
    return fc.at_most_times("times", "Times", ours, theirs, claim=TIMES, source=SOURCE, compared_with="run a")


def flat(client: dict[float, tuple[float, ...]], server: dict[float, tuple[float, ...]]) -> CheckResult:
    return fc.client_flat("flat", "Flat", curve(client, "s"), curve(server, "s"))


def load(asked: int, done: int) -> CheckResult:
    return fc.load_done("load", "Load", asked=asked, done=done, tokens_per_s=10)


def as_many(ours: int | None, theirs: int | None) -> CheckResult:
    return fc.times_as_many("many", "Many", ours, theirs, claim=RATIO, source=SOURCE)


def per_token(log: str, expected: float) -> CheckResult:
    return fc.bytes_per_token("bytes", "Bytes", log, expected=expected, layers=24)


def same(ours: dict[str, tuple[int, ...]], theirs: dict[str, tuple[int, ...]]) -> CheckResult:
    return fc.same_tokens("same", "Same", ours, theirs, compared_with="run a")


def identical(hit: tuple[list[str], list[float]], hits: float = 64) -> CheckResult:
    return fc.identical("identical", "Identical", (["a", "b"], [-0.5, -1.0]), hit, hits=hits, source=SOURCE)


def moved(after: dict[str, float], requests: int = 4) -> CheckResult:
    return fc.kv_moved("moved", "Moved", {}, after, requests=requests)


def elsewhere(prefill: dict[str, float], decode: dict[str, float]) -> CheckResult:
    return fc.prefilled_elsewhere("pd", "PD", ({}, prefill), ({}, decode), answer_tokens=64)


def refused(status: int, message: str, seconds: float = 1) -> CheckResult:
    return fc.refused_clearly("refused", "Refused", status, message, seconds=seconds, limit_s=10)


def back(after: dict[str, float], tokens: int = 1500) -> CheckResult:
    return fc.kv_came_back("back", "Back", {}, after, tokens=tokens)


def sooner(cold: tuple[float, ...], again: tuple[float, ...]) -> CheckResult:
    return fc.returned_faster("sooner", "Sooner", cold, again)


def grew(before: float, after: float) -> CheckResult:
    return fc.memory_grew("grew", "Grew", before, after, at_least=100, what="Memory")


def accepted(after: dict[str, float], figure: Claim | None = None) -> CheckResult:
    return fc.acceptance_length("accepted", "Accepted", {}, after, claim=figure, source=SOURCE)


def done(asked: int, made: int, *errors: str) -> CheckResult:
    found = Sessions(asked=asked, done=made, errors=errors, seconds=1, output_tokens=8)
    return fc.sessions_done("sessions", "Sessions", found, count=2)


def needles(*answers: str, share: float = 1.0) -> CheckResult:
    found = [Needle(1000, f"at {i}", "12345", answer) for i, answer in enumerate(answers)]
    return fc.needles_found("needles", "Needles", found, share=share)


PASSING: dict[str, Callable[[], CheckResult]] = {
    "log": lambda: log_shows(f"{ECHO}\n{EP}", "expert parallelism is enabled"),
    "at most": lambda: at_most((11.0, 9.0, 10.0)),
    "at most, within the tolerance": lambda: at_most((11.9,)),
    "less": lambda: less(FAST, SLOW),
    "faster": lambda: faster(FAST, SLOW),
    "times": lambda: times(curve({1: (12.0,), 8: (1.0,)}), curve({1: (10.0,)})),
    "flat": lambda: flat({340_000: (0.003,)}, {340_000: (10.0,)}),
    "load": lambda: load(8, 8),
    "many": lambda: as_many(1_500, 1_000),
    "bytes": lambda: per_token(LOG, BYTES),
    "same": lambda: same({"a": (1, 2, 3, 4, 5)}, {"a": (1, 2, 3, 4, 9)}),
    "identical": lambda: identical((["a", "b"], [-0.5, -1.0])),
    "moved": lambda: moved(MOVED),
    "pd": lambda: elsewhere(PREFILL, DECODE),
    "refused": lambda: refused(503, "No prefill server."),
    "back": lambda: back(BACK),
    "sooner": lambda: sooner((1.0, 2.0), (0.1, 0.2)),
    "grew": lambda: grew(10, 120),
    "accepted": lambda: accepted(DRAFTED, claim(4.6, "tokens a step")),
    "accepted, without a claim": lambda: accepted(DRAFTED),
    "sessions": lambda: done(4, 4),
    "needles": lambda: needles(" 12345."),
    "needles, most of them": lambda: needles("12345", "none", share=0.5),
}
FAILING: dict[str, Callable[[], CheckResult]] = {
    "log, only the command is repeated": lambda: log_shows(ECHO, "latency_specialized"),
    "log, empty": lambda: log_shows("", "x"),
    "at most, too slow": lambda: at_most((12.1, 12.2, 13.0)),
    "at most, nothing measured": lambda: at_most(()),
    "less, slower": lambda: less(SLOW, FAST),
    "less, as slow": lambda: less(FAST, FAST),
    "less, another length": lambda: less(FAST, SLOW, at=7),
    "faster, at one batch only": lambda: faster(FAST, SLOW, (1, 32)),
    "faster, a batch is missing": lambda: faster(FAST, curve({1: (17.0,)}), (1, 32)),
    "faster, nothing asked": lambda: faster(FAST, SLOW, ()),
    "faster, the same": lambda: faster(FAST, FAST),
    "times, slower": lambda: times(curve({1: (12.6,)}), curve({1: (10.0,)})),
    "times, no batch in common": lambda: times(curve({1: (1.0,)}), curve({2: (10.0,)})),
    "flat, the client grows": lambda: flat({1: (0.001,), 9: (4.0,)}, {1: (1.0,), 9: (10.0,)}),
    "flat, a length is missing": lambda: flat({1: (0.001,)}, {1: (1.0,), 9: (10.0,)}),
    "load, one failed": lambda: load(8, 7),
    "load, none": lambda: load(0, 0),
    "many, too few": lambda: as_many(1_300, 1_000),
    "many, not known": lambda: as_many(None, 1_000),
    "many, other side not known": lambda: as_many(1_500, None),
    "bytes, too many": lambda: per_token(LOG, BYTES / 1.5),
    "bytes, fewer than can be": lambda: per_token(LOG, BYTES * 1.5),
    "bytes, not in the log": lambda: per_token("", BYTES),
    "same, another answer": lambda: same({"a": (1, 2, 3, 4)}, {"a": (1, 9, 3, 4)}),
    "same, one missing": lambda: same({"a": (1, 2), "b": (1, 2)}, {"a": (1, 2)}),
    "same, none": lambda: same({}, {}),
    "identical, a log-probability": lambda: identical((["a", "b"], [-0.5, -1.1])),
    "identical, a token": lambda: identical((["a", "c"], [-0.5, -1.0])),
    "identical, but no hit": lambda: identical((["a", "b"], [-0.5, -1.0]), hits=0),
    "moved, too few": lambda: moved(MOVED, requests=5),
    "moved, one failed": lambda: moved({**MOVED, "vllm:nixl_num_failed_transfers_total": 1.0}),
    "moved, no counter": lambda: moved({}),
    "moved, no request": lambda: moved(MOVED, requests=0),
    "pd, decode read the prompts": lambda: elsewhere(PREFILL, {"vllm:generation_tokens_total": 64.0}),
    "pd, prefill wrote": lambda: elsewhere({**PREFILL, "vllm:generation_tokens_total": 64.0}, DECODE),
    "pd, nothing": lambda: elsewhere({}, {}),
    "refused, answered": lambda: refused(200, "Paris"),
    "refused, no words": lambda: refused(500, " "),
    "refused, silence": lambda: refused(0, "ReadTimeout"),
    "refused, late": lambda: refused(503, "Sorry.", seconds=11),
    "back, from the device only": lambda: back({**BACK, "vllm:external_prefix_cache_hits_total": 0.0}),
    "back, too few": lambda: back(BACK, tokens=2100),
    "back, no counter": lambda: back({}),
    "sooner, later": lambda: sooner((1.0,), (1.1,)),
    "sooner, none": lambda: sooner((), ()),
    "grew, too little": lambda: grew(10, 109),
    "accepted, too few": lambda: accepted(DRAFTED, claim(6, "tokens a step")),
    "accepted, no draft": lambda: accepted({}),
    "accepted, none of them": lambda: accepted({"vllm:spec_decode_num_drafts_total": 10.0}),
    "sessions, one missing": lambda: done(4, 3, "HTTP 500"),
    "sessions, none": lambda: done(0, 0),
    "needles, one missed": lambda: needles("12345", "54321"),
    "needles, none": needles,
}


@pytest.mark.parametrize("case", PASSING)
def test_passes(case: str) -> None:
    assert PASSING[case]().verdict == "pass"


@pytest.mark.parametrize("case", FAILING)
def test_fails(case: str) -> None:
    result = FAILING[case]()
    assert result.verdict == "fail"
    assert result.measured


def test_every_check_is_seen_to_pass_and_to_fail() -> None:
    def names(cases: dict[str, Callable[[], CheckResult]]) -> set[str]:
        return {check().name for check in cases.values()}

    assert names(PASSING) == names(FAILING)
    assert len(names(PASSING)) == len(fc.__all__)


def test_a_ratio_has_its_spread_beside_it() -> None:
    result = faster(FAST, SLOW)
    assert "spread 1.57 to 1.7" in result.detail
    assert result.measured == "1.63"


def test_the_smallest_ratio_counts() -> None:
    assert faster(FAST, SLOW, (1, 32, 64)).measured == "1.25"


def test_a_comparison_names_the_other_run() -> None:
    assert "Compared with run a." in times(FAST, SLOW).detail
    assert "Compared in this run." in faster(FAST, SLOW).detail


@pytest.mark.parametrize("case", [name for name, check in PASSING.items() if check().unit])
def test_which_way_is_better_is_known_for_each_unit(case: str) -> None:
    unit: Any = PASSING[case]().unit
    assert unit in BY_UNIT or unit == "GiB"
