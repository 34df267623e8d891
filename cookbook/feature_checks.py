"""Checks of what a feature is for: tokens that fit, steps that take less time, bytes that were moved.

Pure functions, so each one can be shown to fail. Those that hold a published figure against a measurement take name,
title, what was measured, then `claim` and `source`, so that `Run.judge` and `Run.against` can call any of them. A
measured figure comes with the spread of its repetitions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from cookbook.checks import RECIPE, VLLM_METRICS, made
from cookbook.deployment import Claim, Source
from cookbook.evidence import CheckResult, Series
from cookbook.measure import Needle, Sessions

__all__ = [
    "acceptance_length",
    "at_most",
    "at_most_times",
    "bytes_per_token",
    "client_flat",
    "identical",
    "kv_came_back",
    "kv_moved",
    "less_than",
    "load_done",
    "log_shows",
    "memory_grew",
    "needles_found",
    "prefilled_elsewhere",
    "refused_clearly",
    "returned_faster",
    "same_tokens",
    "sessions_done",
    "times_as_many",
    "times_faster",
]

NIXL = Source(
    title="vLLM documentation, NixlConnector", url="https://docs.vllm.ai/en/stable/features/nixl_connector_usage/"
)
BATCHES = Source(
    title="vLLM documentation, reproducibility", url="https://docs.vllm.ai/en/stable/usage/reproducibility/"
)
# Lines that repeat the command. They name a feature whether or not it is at work.
ECHO = re.compile(r"non-default args|Initializing a V\d LLM engine|vllm serve |additional_config")
SHOWN = 200

HITS = "vllm:prefix_cache_hits_total"
EXTERNAL_HITS = "vllm:external_prefix_cache_hits_total"
TRANSFERS = "vllm:nixl_xfer_time_seconds_count"
BYTES = "vllm:nixl_bytes_transferred_sum"
FAILED_TRANSFERS = "vllm:nixl_num_failed_transfers_total"
PROMPT_TOKENS = "vllm:prompt_tokens_total"
GENERATED = "vllm:generation_tokens_total"
DRAFTS = "vllm:spec_decode_num_drafts_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"


def _grew(before: Mapping[str, float], after: Mapping[str, float], name: str) -> float:
    return after.get(name, 0.0) - before.get(name, 0.0)


def _at(series: Series, x: float) -> tuple[float, ...]:
    return next((point.values for point in series.points if point.x == x), ())


def _spread(values: Sequence[float]) -> str:
    return f"spread {min(values):.4g} to {max(values):.4g}"


def _ratios(above: Sequence[float], below: Sequence[float]) -> tuple[float, float, float]:
    """Ratio of the medians, and the lowest and highest that the repetitions allow."""
    return median(above) / median(below), min(above) / max(below), max(above) / min(below)


# The log


def log_shows(name: str, title: str, log: str, pattern: str, *, expected: str, source: Source) -> CheckResult:
    """The log has a line of this pattern. Lines that only repeat the command do not count.

    Args:
        name: Of the check.
        title: Of the check.
        log: Of a server.
        pattern: Regular expression, looked for without regard to case.
        expected: What the line says, for a reader.
        source: Of the pattern.
    """
    lines = (line for line in log.splitlines() if not ECHO.search(line))
    found = next((line.strip() for line in lines if re.search(pattern, line, re.IGNORECASE)), "")
    return made(
        name,
        title,
        holds=bool(found),
        expected=expected,
        measured=found[-SHOWN:] or "no such line",
        source=source,
        detail="" if found else f"Looked for: {pattern}",
    )


# Time


def at_most(name: str, title: str, values: Sequence[float], *, claim: Claim, source: Source) -> CheckResult:
    """The median is the published figure at most, with the claim's tolerance.

    Args:
        name: Of the check.
        title: Of the check.
        values: Repeated measurements, in the claim's unit.
        claim: The figure; less is as good.
        source: Of the claim.
    """
    limit = claim.value * (1 + claim.tolerance)
    return made(
        name,
        title,
        holds=bool(values) and median(values) <= limit,
        expected=f"at most {limit:.4g}",
        measured=f"{median(values):.4g}" if values else "nothing",
        unit=claim.unit,
        source=source,
        detail=f"{claim.statement} Median of {len(values)}, {_spread(values)}." if values else claim.statement,
    )


def less_than(
    name: str,
    title: str,
    ours: Series,
    theirs: Series,
    *,
    claim: Claim,
    source: Source,
    at: float,
    compared_with: str = "",
) -> CheckResult:
    """The median is below that of the other side, by the published figures of both.

    Args:
        name: Of the check.
        title: Of the check.
        ours: The smaller side, in the claim's unit.
        theirs: The other side.
        claim: The figure that says how the two compare.
        source: Of the claim.
        at: Where along the curves.
        compared_with: The other run, for a reader; empty for this one.
    """
    one, other = _at(ours, at), _at(theirs, at)
    both = bool(one) and bool(other)
    return made(
        name,
        title,
        holds=both and median(one) < median(other),
        expected=f"less than {median(other):.4g}" if other else "less than the other side's",
        measured=f"{median(one):.4g}" if one else "nothing",
        unit=claim.unit,
        source=source,
        detail=f"{claim.statement} {_with(compared_with)}"
        + (f" {_spread(one).capitalize()} against {_spread(other)}." if both else ""),
    )


def _with(other: str) -> str:
    return f"Compared with {other}." if other else "Compared in this run."


def times_faster(
    name: str,
    title: str,
    ours: Series,
    theirs: Series,
    *,
    claim: Claim,
    source: Source,
    at: Iterable[float],
    compared_with: str = "",
) -> CheckResult:
    """A step takes so many times less than the other side's, at each of these batches; the smallest ratio counts.

    Args:
        name: Of the check.
        title: Of the check.
        ours: The faster side.
        theirs: The other side.
        claim: The ratio to reach, with its tolerance.
        source: Of the claim.
        at: The batches.
        compared_with: The other run, for a reader; empty for this one.
    """
    batches = list(at)
    ratios = {x: _ratios(_at(theirs, x), _at(ours, x)) for x in batches if _at(ours, x) and _at(theirs, x)}
    floor = claim.value * (1 - claim.tolerance)
    lowest = min(ratios.values(), default=(0.0, 0.0, 0.0))
    return made(
        name,
        title,
        holds=len(ratios) == len(batches) > 0 and lowest[0] >= floor,
        expected=f"at least {floor:.3g}",
        measured=f"{lowest[0]:.3g}" if ratios else "nothing",
        unit=claim.unit,
        source=source,
        detail=f"{claim.statement} {_with(compared_with)} {_each(ratios, batches)}",
    )


def at_most_times(
    name: str,
    title: str,
    ours: Series,
    theirs: Series,
    *,
    claim: Claim,
    source: Source,
    compared_with: str = "",
) -> CheckResult:
    """A step takes at most so many times the other side's, at every batch that both measured; the largest counts.

    Args:
        name: Of the check.
        title: Of the check.
        ours: The slower side.
        theirs: The other side.
        claim: The ratio that may not be passed, with its tolerance.
        source: Of the claim.
        compared_with: The other run, for a reader; empty for this one.
    """
    batches = [point.x for point in ours.points if _at(theirs, point.x)]
    ratios = {x: _ratios(_at(ours, x), _at(theirs, x)) for x in batches}
    limit = claim.value * (1 + claim.tolerance)
    highest = max(ratios.values(), default=(0.0, 0.0, 0.0))
    return made(
        name,
        title,
        holds=bool(ratios) and highest[0] <= limit,
        expected=f"at most {limit:.3g}",
        measured=f"{highest[0]:.3g}" if ratios else "no batch in common",
        unit=claim.unit,
        source=source,
        detail=f"{claim.statement} {_with(compared_with)} {_each(ratios, batches)}",
    )


def _each(ratios: Mapping[float, tuple[float, float, float]], asked: Sequence[float]) -> str:
    shown = [f"{x:g}: {ratio:.3g} (spread {low:.3g} to {high:.3g})" for x, (ratio, low, high) in ratios.items()]
    shown += [f"{x:g}: not measured" for x in asked if x not in ratios]
    return "; ".join(shown) + "."


def client_flat(name: str, title: str, client: Series, server: Series, *, share: float = 0.05) -> CheckResult:
    """What the client itself takes is a small share of what was measured with it, at every length.

    Args:
        name: Of the check.
        title: Of the check.
        client: Of `cookbook.measure.client_cost`, in seconds.
        server: Time to first token, in seconds, at the same lengths.
        share: How much of it the client may be, from 0 to 1.
    """
    shares = {
        point.x: median(_at(client, point.x)) / median(point.values)
        for point in server.points
        if point.values and _at(client, point.x)
    }
    worst = max(shares.values(), default=1.0)
    return made(
        name,
        title,
        holds=len(shares) == len(server.points) > 0 and worst <= share,
        expected=f"at most {100 * share:g}",
        measured=f"{100 * worst:.2g}" if shares else "no length in common",
        unit="% of the time to first token",
        source=Source(title="vLLM issue 39963", url="https://github.com/vllm-project/vllm/issues/39963"),
        detail="; ".join(f"{x:,.0f} tokens: {1000 * median(_at(client, x)):.3g} ms" for x in shares) + ".",
    )


def load_done(name: str, title: str, *, asked: int, done: int, tokens_per_s: float) -> CheckResult:
    """Every request of `vllm bench serve` came to its end.

    Args:
        name: Of the check.
        title: Of the check.
        asked: Requests that were sent.
        done: Requests that were answered.
        tokens_per_s: Of output, all together.
    """
    return made(
        name,
        title,
        holds=0 < asked == done,
        expected=f"{asked} of {asked} answered",
        measured=f"{done} of {asked} answered",
        source=Source(
            title="vLLM documentation, vllm bench serve", url="https://docs.vllm.ai/en/stable/cli/bench/serve/"
        ),
        detail=f"{tokens_per_s:,.1f} output tokens/s.",
    )


# Tokens and bytes


def times_as_many(
    name: str,
    title: str,
    ours: int | None,
    theirs: int | None,
    *,
    claim: Claim,
    source: Source,
    compared_with: str = "",
) -> CheckResult:
    """The KV cache holds so many times the tokens of the other side's.

    Args:
        name: Of the check.
        title: Of the check.
        ours: Tokens here; None where the log does not say.
        theirs: Tokens of the other side.
        claim: The ratio to reach, with its tolerance.
        source: Of the claim.
        compared_with: The other run, for a reader; empty for this one.
    """
    floor = claim.value * (1 - claim.tolerance)
    known = bool(ours and theirs)
    ratio = ours / theirs if ours and theirs else 0.0
    return made(
        name,
        title,
        holds=known and ratio >= floor,
        expected=f"at least {floor:.3g}",
        measured=f"{ratio:.3g}" if known else "the log does not say",
        unit=claim.unit,
        source=source,
        detail=f"{claim.statement} {_with(compared_with)} {ours or 0:,} against {theirs or 0:,}.",
    )


def bytes_per_token(
    name: str, title: str, log: str, *, expected: float, layers: int, slack: float = 0.15, source: Source = RECIPE
) -> CheckResult:
    """Memory of the KV cache over its tokens is what the arithmetic of the format says, with slack for state and pages.

    Args:
        name: Of the check.
        title: Of the check.
        log: Of a server: it names the memory of a device, and the tokens.
        expected: Bytes of a token in a layer of one device.
        layers: That have such a cache.
        slack: By how much it may be more, as a share; less than the format cannot be.
        source: Of the arithmetic.
    """
    memory = re.search(r"(?:Available KV cache memory: |Explicitly set \()([\d.]+)", log)
    tokens = re.search(r"KV cache size: ([\d,]+) tokens", log)
    found = float(memory[1]) * 2**30 / int(tokens[1].replace(",", "")) / layers if memory and tokens else None
    return made(
        name,
        title,
        # The memory is logged with two digits after the point, so a little less may be seen.
        holds=found is not None and 0.98 * expected <= found <= expected * (1 + slack),
        expected=f"{expected:,.0f} to {expected * (1 + slack):,.0f}",
        measured="the log does not say" if found is None else f"{found:,.1f}",
        unit="bytes a token and layer",
        source=source,
        detail=f"{memory[1]} GiB for {tokens[1]} tokens in {layers} layers." if memory and tokens else "",
    )


def same_tokens(
    name: str,
    title: str,
    ours: Mapping[str, Sequence[int]],
    theirs: Mapping[str, Sequence[int]],
    *,
    compared_with: str,
    first: int = 4,
    share: float = 0.5,
) -> CheckResult:
    """Both sides answer the same prompts with the same tokens at temperature 0, within a tolerance.

    Another layout adds numbers up in another order, so two tokens that are nearly as likely may change places, and the
    rest of that answer is then another one. So equal beginnings are demanded, and not equal answers.

    Args:
        name: Of the check.
        title: Of the check.
        ours: Token ids by the name of the prompt.
        theirs: Of the other side.
        compared_with: The other side, for a reader.
        first: Tokens that have to be equal in most answers.
        share: How much of all tokens comes before the first difference, at least, from 0 to 1.
    """
    names = [prompt for prompt in ours if theirs.get(prompt) and ours[prompt]]
    common = {prompt: _common(ours[prompt], theirs[prompt]) for prompt in names}
    length = sum(min(len(ours[prompt]), len(theirs[prompt])) for prompt in names)
    reached = sum(common.values()) / length if length else 0.0
    begun = sum(common[prompt] >= min(first, len(theirs[prompt])) for prompt in names)
    whole = sum(common[prompt] == len(ours[prompt]) == len(theirs[prompt]) for prompt in names)
    return made(
        name,
        title,
        holds=len(names) == len(ours) > 0 and reached >= share and begun >= 0.75 * len(names),
        expected=f"at least {100 * share:g} % of the tokens before the first difference",
        measured=f"{100 * reached:.1f} %" if names else "no prompt in common",
        source=BATCHES,
        detail=f"Compared with {compared_with}. {whole} of {len(ours)} answers equal from beginning to end, {begun} in"
        f" their first {first} tokens. The tolerance is ours: no source states one.",
    )


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def identical(
    name: str,
    title: str,
    cold: tuple[Sequence[str], Sequence[float]],
    hit: tuple[Sequence[str], Sequence[float]],
    *,
    hits: float,
    source: Source,
) -> CheckResult:
    """A prompt out of the prefix cache gets the same tokens with the same log-probabilities as the first time.

    Args:
        name: Of the check.
        title: Of the check.
        cold: Tokens and their log-probabilities, the first time.
        hit: The same the second time.
        hits: Tokens that the second request found in the cache; none would prove nothing.
        source: Of the expectation.
    """
    furthest = max((abs(a - b) for a, b in zip(cold[1], hit[1], strict=False)), default=float("inf"))
    same = list(cold[0]) == list(hit[0]) and len(cold[1]) == len(hit[1]) > 0
    return made(
        name,
        title,
        holds=same and furthest == 0 and hits > 0,
        expected="equal tokens, log-probabilities that differ by 0",
        measured=f"{_common_text(cold[0], hit[0])} of {len(cold[0])} tokens equal, log-probabilities differ by"
        f" {furthest:.3g} at most",
        source=source,
        detail=f"{hits:,.0f} tokens of the prompt came out of the cache.",
    )


def _common_text(one: Sequence[str], other: Sequence[str]) -> int:
    return sum(a == b for a, b in zip(one, other, strict=False))


# Prefill/decode disaggregation


def kv_moved(
    name: str, title: str, before: Mapping[str, float], after: Mapping[str, float], *, requests: int
) -> CheckResult:
    """The decode side pulled the KV cache of each request over NIXL, and no transfer failed.

    Args:
        name: Of the check.
        title: Of the check.
        before: Counters of the decode side before the requests.
        after: The same after them.
        requests: How many were sent.
    """
    moved, failed = _grew(before, after, TRANSFERS), _grew(before, after, FAILED_TRANSFERS)
    return made(
        name,
        title,
        holds=requests > 0 and moved >= requests and failed == 0,
        expected=f"at least {requests} transfers, 0 failed",
        measured=f"{moved:.0f} transfers, {failed:.0f} failed" if TRANSFERS in after else f"no {TRANSFERS} in /metrics",
        source=NIXL,
        detail=f"{_grew(before, after, BYTES) / 2**20:,.2f} MiB in all.",
    )


def prefilled_elsewhere(
    name: str,
    title: str,
    prefill: tuple[Mapping[str, float], Mapping[str, float]],
    decode: tuple[Mapping[str, float], Mapping[str, float]],
    *,
    answer_tokens: int,
) -> CheckResult:
    """The prompts were computed in the prefill pool and the answers in the decode pool, by the counters of both.

    Args:
        name: Of the check.
        title: Of the check.
        prefill: Counters of the prefill pool, before and after.
        decode: Counters of the decode pool, before and after.
        answer_tokens: Tokens of the answers.
    """
    prompts, taken = _grew(*prefill, PROMPT_TOKENS), _grew(*decode, EXTERNAL_HITS)
    written, extra = _grew(*decode, GENERATED), _grew(*prefill, GENERATED)
    return made(
        name,
        title,
        # The last block of a prompt is computed again where it is decoded.
        holds=prompts > 0 and taken >= 0.5 * prompts and written >= 0.9 * answer_tokens > extra,
        expected="prompts read by prefill and taken over by decode, answers written by decode",
        measured=f"prefill read {prompts:,.0f} and wrote {extra:,.0f} tokens, decode took over {taken:,.0f} and wrote"
        f" {written:,.0f}",
        source=NIXL,
    )


def refused_clearly(
    name: str, title: str, status: int, message: str, *, seconds: float, limit_s: float, source: Source = RECIPE
) -> CheckResult:
    """What cannot be served gets an error within a time limit, and no silence.

    Args:
        name: Of the check.
        title: Of the check.
        status: HTTP status of the answer; 0 where none came.
        message: The error.
        seconds: Until it came.
        limit_s: Bound on `seconds`.
        source: Of the expectation.
    """
    return made(
        name,
        title,
        holds=status >= 400 and bool(message.strip()) and seconds <= limit_s,
        expected=f"an HTTP error with a message within {limit_s:g} s",
        measured=f"HTTP {status} after {seconds:.1f} s: {' '.join(message.split())[:SHOWN]}" if status else "no answer",
        source=source,
    )


# KV offload


def kv_came_back(
    name: str, title: str, before: Mapping[str, float], after: Mapping[str, float], *, tokens: int, share: float = 0.5
) -> CheckResult:
    """Prefixes that the device no longer held came back from the second tier.

    Args:
        name: Of the check.
        title: Of the check.
        before: Counters before the prompts were sent again.
        after: The same after it.
        tokens: Of these prompts.
        share: How much of them has to come back.
    """
    back, device = _grew(before, after, EXTERNAL_HITS), _grew(before, after, HITS)
    return made(
        name,
        title,
        holds=tokens > 0 and back >= share * tokens,
        expected=f"at least {share * tokens:,.0f} of {tokens:,}",
        measured=f"{back:,.0f}" if EXTERNAL_HITS in after else f"no {EXTERNAL_HITS} in /metrics",
        unit="tokens",
        source=VLLM_METRICS,
        detail=f"{device:,.0f} more were still on the device.",
    )


def returned_faster(name: str, title: str, cold: Sequence[float], back: Sequence[float]) -> CheckResult:
    """Sessions that come back have their first token sooner than when they were new.

    Args:
        name: Of the check.
        title: Of the check.
        cold: Seconds to the first token of each, the first time.
        back: The same when they come back.
    """
    both = bool(cold) and bool(back)
    return made(
        name,
        title,
        holds=both and median(back) < median(cold),
        expected=f"less than {median(cold):.4g}" if cold else "less than cold",
        measured=f"{median(back):.4g}" if back else "nothing",
        unit="s",
        source=RECIPE,
        detail=f"Cold {_spread(cold)}, coming back {_spread(back)}." if both else "",
    )


def memory_grew(name: str, title: str, before: float, after: float, *, at_least: float, what: str) -> CheckResult:
    """The second tier takes up room, by what was there before and after.

    Args:
        name: Of the check.
        title: Of the check.
        before: GiB in use before.
        after: GiB in use after.
        at_least: GiB by which it has to grow.
        what: Of which memory, for a reader.
    """
    return made(
        name,
        title,
        holds=after - before >= at_least,
        expected=f"at least {at_least:.3g} more",
        measured=f"{after - before:.3g} more",
        unit="GiB",
        source=RECIPE,
        detail=f"{what}: {before:.4g} GiB before, {after:.4g} GiB after.",
    )


# Drafts, sessions, long contexts


def acceptance_length(
    name: str,
    title: str,
    before: Mapping[str, float],
    after: Mapping[str, float],
    *,
    claim: Claim | None,
    source: Source,
) -> CheckResult:
    """A step brings as many tokens as the draft's card says: those accepted of the draft, and the model's own.

    Args:
        name: Of the check.
        title: Of the check.
        before: Counters before the requests.
        after: The same after them.
        claim: The length to reach, with its tolerance; None where the draft only has to be of some use.
        source: Of the claim.
    """
    drafts, accepted = _grew(before, after, DRAFTS), _grew(before, after, ACCEPTED)
    length = 1 + accepted / drafts if drafts else 0.0
    floor = claim.value * (1 - claim.tolerance) if claim else 1.0
    return made(
        name,
        title,
        holds=drafts > 0 and length >= floor and accepted > 0,
        expected=f"at least {floor:.3g}" if claim else "more than 1",
        measured=f"{length:.3g}" if drafts else "no draft was made",
        unit="tokens a step",
        source=source,
        detail=f"{f'{claim.statement} ' if claim else ''}{drafts:,.0f} drafts, {accepted:,.0f} tokens accepted.",
    )


def sessions_done(name: str, title: str, found: Sessions, *, count: int) -> CheckResult:
    """Every turn of every session was answered in full.

    Args:
        name: Of the check.
        title: Of the check.
        found: What became of them.
        count: Sessions at a time.
    """
    return made(
        name,
        title,
        holds=0 < found.asked == found.done,
        expected=f"{found.asked} turns of {count} sessions",
        measured=f"{found.done} turns",
        source=RECIPE,
        detail="; ".join(found.errors)[:SHOWN]
        or f"{found.output_tokens / found.seconds:,.1f} output tokens/s over {found.seconds:.1f} s.",
    )


def needles_found(name: str, title: str, found: Sequence[Needle], *, share: float = 1.0) -> CheckResult:
    """What a long text says is found again.

    Args:
        name: Of the check.
        title: Of the check.
        found: What was asked and answered.
        share: How many have to be found, from 0 to 1.
    """
    right = sum(needle.found for needle in found)
    missed = [f"{needle.tokens:,} tokens, {needle.where}" for needle in found if not needle.found]
    longest = max((needle.tokens for needle in found), default=0)
    return made(
        name,
        title,
        holds=bool(found) and right >= share * len(found),
        expected=f"at least {share * len(found):.0f} of {len(found)}",
        measured=f"{right} of {len(found)}",
        source=RECIPE,
        detail=f"Up to {longest:,} tokens." + (f" Missed: {', '.join(missed)}." if missed else ""),
    )
