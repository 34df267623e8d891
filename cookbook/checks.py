"""Checks: what was measured against what has to hold. Pure functions, so each one can be shown to fail.

A check judges what the notebook's own requests brought back; it sends none itself. What cannot be judged is left out
with a reason, which is neither pass nor fail.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import jsonschema

from cookbook.deployment import Claim, Source
from cookbook.evidence import CheckResult

__all__ = [
    "answered",
    "follows_schema",
    "kv_cache_tokens",
    "leave_out",
    "prefix_cache_hits",
    "ready",
    "reasoning_apart",
    "same_text",
    "serves",
    "tool_called",
]

OPENAI_API = Source(title="OpenAI API reference", url="https://platform.openai.com/docs/api-reference/chat")
VLLM_METRICS = Source(title="vLLM documentation, metrics", url="https://docs.vllm.ai/en/stable/usage/metrics/")
RECIPE = Source(title="This recipe")
SHOWN = 200


def _result(
    name: str,
    title: str,
    *,
    holds: bool,
    expected: str,
    measured: str,
    source: Source,
    unit: str = "",
    detail: str = "",
) -> CheckResult:
    return CheckResult(
        name=name,
        title=title,
        expected=expected,
        measured=measured,
        unit=unit,
        verdict="pass" if holds else "fail",
        detail=detail,
        source=source.title,
        source_url=source.url,
    )


def leave_out(name: str, title: str, *, expected: str, reason: str, source: Source = RECIPE) -> CheckResult:
    """A check that was not made, and why."""
    return CheckResult(
        name=name,
        title=title,
        expected=expected,
        measured="",
        verdict="left_out",
        detail=reason,
        source=source.title,
        source_url=source.url,
    )


def ready(seconds: float | None, *, limit_s: float, health_status: int) -> CheckResult:
    """The server answers `/health` with 200, within the time limit of its start.

    Args:
        seconds: From the start of the process until it was ready; None for a server that was already running.
        limit_s: Bound on `seconds`.
        health_status: HTTP status of `/health`.
    """
    in_time = seconds is None or seconds <= limit_s
    return _result(
        "ready",
        "Server is ready",
        holds=health_status == 200 and in_time,
        expected=f"HTTP 200 within {limit_s:g}",
        measured=f"HTTP {health_status}" + ("" if seconds is None else f" after {seconds:.1f}"),
        unit="s",
        source=RECIPE,
        detail="It was already running." if seconds is None else "",
    )


def serves(models: Mapping[str, Any], *, model: str, max_model_len: int | None) -> CheckResult:
    """`/v1/models` names the model, with the context length of the command.

    Args:
        models: The answer of `/v1/models`.
        model: The name that clients use.
        max_model_len: Context length in tokens; None where the command does not set it.
    """
    served = {str(entry.get("id")): entry.get("max_model_len") for entry in models.get("data", ())}
    expected = model if max_model_len is None else f"{model}, {max_model_len} tokens"
    return _result(
        "model",
        "Model and context length",
        holds=model in served and max_model_len in (None, served[model]),
        expected=expected,
        measured="; ".join(f"{name}, {length} tokens" for name, length in served.items()) or "none",
        source=RECIPE,
    )


def answered(text: str | None, *, contains: str, finish_reason: str | None) -> CheckResult:
    """An answer says what a correct one must say, and ended by itself."""
    text = text or ""
    return _result(
        "answer",
        "Question answered",
        holds=contains.lower() in text.lower() and finish_reason == "stop",
        expected=f'contains "{contains}", ends with "stop"',
        measured=f'"{text.strip()[:SHOWN]}", ends with "{finish_reason}"',
        source=RECIPE,
    )


def same_text(whole: str | None, streamed: str) -> CheckResult:
    """The streamed text is the unstreamed one, at temperature 0."""
    whole = whole or ""
    common = next(
        (i for i, (a, b) in enumerate(zip(whole, streamed, strict=False)) if a != b), min(len(whole), len(streamed))
    )
    same = whole == streamed and bool(whole)
    return _result(
        "streaming",
        "Streamed text equals the unstreamed one",
        holds=same,
        expected=f"{len(whole)} equal characters",
        measured=f"{common} equal characters" + ("" if same else f", then {streamed[common : common + 20]!r}"),
        source=OPENAI_API,
    )


def tool_called(calls: Sequence[Any] | None, *, name: str, parameters: Mapping[str, Any]) -> CheckResult:
    """One call of the tool, with arguments that obey its schema.

    Args:
        calls: `message.tool_calls` of an answer.
        name: The tool.
        parameters: JSON schema of its arguments.
    """
    measured = "; ".join(f"{call.function.name}({call.function.arguments})" for call in calls or ()) or "no call"
    detail = ""
    holds = bool(calls) and all(call.function.name == name for call in calls or ())
    if holds:
        detail = "; ".join(filter(None, (_schema_error(call.function.arguments, parameters) for call in calls or ())))
    return _result(
        "tool_call",
        "Tool called with valid arguments",
        holds=holds and not detail,
        expected=f"{name}(…) by its schema",
        measured=measured[:SHOWN],
        source=OPENAI_API,
        detail=detail,
    )


def follows_schema(text: str | None, schema: Mapping[str, Any]) -> CheckResult:
    """A structured answer is JSON and obeys the schema that was asked for."""
    error = _schema_error(text or "", schema)
    return _result(
        "structured_output",
        "JSON schema obeyed",
        holds=not error,
        expected="valid JSON with " + ", ".join(schema.get("required", ())),
        measured=(text or "")[:SHOWN],
        source=OPENAI_API,
        detail=error,
    )


def _schema_error(text: str, schema: Mapping[str, Any]) -> str:
    try:
        jsonschema.validate(json.loads(text), schema)
    except json.JSONDecodeError as error:
        return f"not JSON: {error}"
    except jsonschema.ValidationError as error:
        return error.message
    return ""


def reasoning_apart(reasoning: str | None, answer: str | None) -> CheckResult:
    """The reasoning arrives in its own field, and none of its markers in the answer."""
    markers = [marker for marker in ("<think>", "</think>", "◁think▷", "◁/think▷") if marker in (answer or "")]
    return _result(
        "reasoning",
        "Reasoning apart from the answer",
        holds=bool(reasoning and reasoning.strip()) and bool(answer and answer.strip()) and not markers,
        expected="both fields filled, no marker in the answer",
        measured=f"{len(reasoning or '')} characters of reasoning, {len(answer or '')} of answer",
        source=OPENAI_API,
        detail=f"The answer contains {', '.join(markers)}." if markers else "",
    )


def kv_cache_tokens(measured: Sequence[int], claim: Claim, source: Source) -> CheckResult:
    """The KV cache holds as many tokens as claimed, by the line that the server logs at its start.

    Args:
        measured: Tokens, one figure for each engine; a deployment holds their sum.
        claim: The figure to reach; more is as good.
        source: Of the claim.
    """
    total = sum(measured)
    return _result(
        "kv_cache_tokens",
        "KV cache capacity",
        holds=bool(measured) and total >= claim.value * (1 - claim.tolerance),
        expected=f"at least {claim.value * (1 - claim.tolerance):,.0f}",
        measured=f"{total:,}" if measured else "no such line in the log",
        unit=claim.unit,
        source=source,
        detail=f"{claim.statement} {claim.tolerance:.0%} less still counts.",
    )


def prefix_cache_hits(before: Mapping[str, float], after: Mapping[str, float], *, prompt_tokens: int) -> CheckResult:
    """A prompt that is sent twice is found in the prefix cache the second time.

    Args:
        before: Counters of `/metrics` before the second request.
        after: The same after it.
        prompt_tokens: Length of the prompt. Only whole blocks can be found, so half of it has to be.
    """
    name = "vllm:prefix_cache_hits_total"
    hits = after.get(name, 0.0) - before.get(name, 0.0)
    return _result(
        "prefix_cache",
        "Repeated prompt found in the prefix cache",
        holds=prompt_tokens > 0 and hits >= prompt_tokens / 2,
        expected=f"at least {prompt_tokens // 2} of {prompt_tokens}",
        measured=f"{hits:.0f}" if name in after else f"no {name} in /metrics",
        unit="tokens",
        source=VLLM_METRICS,
    )
