"""Checks: what was measured against what has to hold. Pure functions, so each one can be shown to fail.

A check judges what the notebook's own requests brought back; it sends none itself. What cannot be judged is left out
with a reason, which is neither pass nor fail.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jsonschema

from cookbook.deployment import Claim, Source
from cookbook.evidence import CheckResult

__all__ = [
    "all_answered",
    "answered",
    "anthropic_answered",
    "broken",
    "context_limit",
    "effort_refused",
    "follows_schema",
    "freed",
    "image_described",
    "image_refused",
    "kv_cache_tokens",
    "leave_out",
    "long_input",
    "made",
    "prefix_cache_hits",
    "ready",
    "reasoning_apart",
    "reasoning_off",
    "same_text",
    "serves",
    "streamed_tool_call",
    "tool_called",
    "tools_in_turns",
]

OPENAI_API = Source(title="OpenAI API reference", url="https://platform.openai.com/docs/api-reference/chat")
VLLM_METRICS = Source(title="vLLM documentation, metrics", url="https://docs.vllm.ai/en/stable/usage/metrics/")
VLLM_TOOLS = Source(
    title="vLLM documentation, tool calling", url="https://docs.vllm.ai/en/stable/features/tool_calling/"
)
VLLM_K3 = Source(
    title="vLLM, renderer of Kimi K3",
    url="https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/renderers/kimi_k3.py",
)
VLLM_IMAGES = Source(
    title="vLLM documentation, multimodal inputs", url="https://docs.vllm.ai/en/stable/features/multimodal_inputs/"
)
ANTHROPIC_API = Source(title="Anthropic API reference", url="https://docs.anthropic.com/en/api/messages")
RECIPE = Source(title="This recipe")
MARKERS = ("<think>", "</think>", "◁think▷", "◁/think▷")
SHOWN = 200


def made(
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
    """The result of a check that was made.

    Args:
        name: Unique within a run.
        title: For a reader.
        holds: Whether what was measured is what has to hold.
        expected: What has to hold.
        measured: What was seen.
        source: Of the expectation.
        unit: Of both.
        detail: Why it failed; more on what was seen.
    """
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


def broken(name: str, error: str) -> CheckResult:
    """An example that came to no result.

    Args:
        name: Of the example.
        error: What happened.
    """
    return made(
        name,
        f"Example {name} came to its end",
        holds=False,
        expected="no error",
        measured="an error",
        source=RECIPE,
        detail=error,
    )


def ready(seconds: float | None, *, limit_s: float, health_status: int) -> CheckResult:
    """The server answers `/health` with 200, within the time limit of its start.

    Args:
        seconds: From the start of the process until it was ready; None for a server that was already running.
        limit_s: Bound on `seconds`.
        health_status: HTTP status of `/health`.
    """
    in_time = seconds is None or seconds <= limit_s
    return made(
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
    return made(
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
    return made(
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
    return made(
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
    return made(
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
    return made(
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


def reasoning_apart(reasoning: str | None, answer: str | None, *, effort: str = "") -> CheckResult:
    """The reasoning arrives in its own field, and none of its markers in the answer.

    Args:
        reasoning: The field of that name.
        answer: The content.
        effort: The reasoning effort that was asked for; empty for the model's own.
    """
    markers = _markers(answer)
    return made(
        f"reasoning_{effort}" if effort else "reasoning",
        "Reasoning apart from the answer" + (f", effort {effort}" if effort else ""),
        holds=bool(reasoning and reasoning.strip()) and bool(answer and answer.strip()) and not markers,
        expected="both fields filled, no marker in the answer",
        measured=f"{len(reasoning or '')} characters of reasoning, {len(answer or '')} of answer",
        source=OPENAI_API,
        detail=markers,
    )


def reasoning_off(reasoning: str | None, answer: str | None) -> CheckResult:
    """With effort "none" an answer arrives, and no reasoning, neither in its own field nor in the answer."""
    markers = _markers(answer)
    return made(
        "reasoning_none",
        "No reasoning where none is asked for",
        holds=not (reasoning and reasoning.strip()) and bool(answer and answer.strip()) and not markers,
        expected="0 characters of reasoning, an answer without markers",
        measured=f"{len(reasoning or '')} characters of reasoning, {len(answer or '')} of answer",
        source=OPENAI_API,
        detail=markers,
    )


def _markers(answer: str | None) -> str:
    found = [marker for marker in MARKERS if marker in (answer or "")]
    return f"The answer contains {', '.join(found)}." if found else ""


def effort_refused(status: int, message: str, *, supported: Sequence[str]) -> CheckResult:
    """A reasoning effort that the model does not have is an error that names those it has.

    Args:
        status: HTTP status of the answer.
        message: The error; empty where there was none.
        supported: The efforts to be named.
    """
    words = set(re.findall(r"\w+", message))
    return made(
        "effort_refused",
        "Unsupported effort refused",
        holds=status == 400 and words.issuperset(supported),
        expected=f"HTTP 400 that names {', '.join(supported)}",
        measured=_refusal(status, message),
        source=VLLM_K3,
    )


def _refusal(status: int, message: str) -> str:
    return f"HTTP {status} {message[:SHOWN]}".strip()


def tools_in_turns(
    messages: Sequence[Mapping[str, Any]], *, tools: Mapping[str, Mapping[str, Any]], contains: str
) -> CheckResult:
    """A conversation with tools: calls by their schema, each result handed back, and a final answer that uses it.

    Args:
        messages: The whole conversation.
        tools: JSON schema of the arguments, by the tool's name.
        contains: What only a tool's result can have told the model.
    """
    called = [call for message in messages for call in message.get("tool_calls") or ()]
    returned = {message.get("tool_call_id") for message in messages if message.get("role") == "tool"}
    faults = []
    for call in called:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        fault = _schema_error(arguments, tools[name]) if name in tools else "unknown tool"
        faults += [f"{name}({arguments}): {fault}"] if fault else []
        faults += [] if call["id"] in returned else [f"no result for call {call['id']}"]
    last = messages[-1] if messages else {}
    final = (last.get("content") or "") if last.get("role") == "assistant" and not last.get("tool_calls") else ""
    return made(
        "tool_turns",
        "Tool used over several turns",
        holds=bool(called) and not faults and contains in final,
        expected=f'at least 1 call with its result, final answer contains "{contains}"',
        measured=f'{len(called)} calls, {len(returned)} results, final answer "{final.strip()[:SHOWN]}"',
        source=VLLM_TOOLS,
        detail="; ".join(faults),
    )


def streamed_tool_call(
    calls: Sequence[Mapping[str, Sequence[str]]], *, name: str, parameters: Mapping[str, Any]
) -> CheckResult:
    """A streamed call, joined from its pieces, is one of the tool, and its arguments obey the schema.

    Args:
        calls: Of each call the pieces of "name" and of "arguments".
        name: The tool.
        parameters: JSON schema of its arguments.
    """
    joined = [("".join(call["name"]), "".join(call["arguments"])) for call in calls]
    pieces = sum(len(call["arguments"]) for call in calls)
    detail = "; ".join(filter(None, (_schema_error(arguments, parameters) for _, arguments in joined)))
    measured = "; ".join(f"{called}({arguments})" for called, arguments in joined) or "no call"
    return made(
        "streamed_tool_call",
        "Streamed tool call is whole",
        holds=bool(joined) and all(called == name for called, _ in joined) and not detail,
        expected=f"{name}(…) by its schema",
        measured=f"{measured[:SHOWN]}, arguments in {pieces} pieces",
        source=OPENAI_API,
        detail=detail,
    )


def image_described(text: str | None, *, contains: str) -> CheckResult:
    """The answer about an image says what is in it."""
    text = text or ""
    return made(
        "image",
        "Image seen",
        holds=bool(re.search(rf"\b{re.escape(contains)}\b", text, re.IGNORECASE)),
        expected=f'contains "{contains}"',
        measured=f'"{text.strip()[:SHOWN]}"',
        source=VLLM_IMAGES,
    )


def image_refused(status: int, message: str, *, alive: bool) -> CheckResult:
    """A server that takes text only refuses an image with an error that says so, and still answers.

    Args:
        status: HTTP status of the answer.
        message: The error; empty where there was none.
        alive: A request after it was answered.
    """
    clear = "image" in message.lower() or "multimodal" in message.lower()
    return made(
        "image_refused",
        "Image refused by a server for text",
        holds=400 <= status < 500 and clear and alive,
        expected="HTTP 4xx that speaks of the image, then an answer",
        measured=f"{_refusal(status, message)}; then {_life(alive=alive)}",
        source=VLLM_IMAGES,
    )


def _life(*, alive: bool) -> str:
    return "an answer" if alive else "no answer"


def long_input(counted: int, *, sent: int, limit: int | None) -> CheckResult:
    """A long prompt is accepted, and counted as what was sent.

    Args:
        counted: Tokens of the prompt, by the server.
        sent: Tokens of the prompt.
        limit: Context length; None where it is not known.
    """
    return made(
        "long_input",
        "Long prompt answered",
        holds=counted == sent > 0,
        expected=str(sent),
        measured=str(counted),
        unit="tokens",
        source=RECIPE,
        detail="" if limit is None else f"The context holds {limit} tokens.",
    )


def context_limit(status: int, message: str, *, limit: int, alive: bool) -> CheckResult:
    """A prompt over the limit is an error that names the limit, and the server still answers.

    Args:
        status: HTTP status of the answer.
        message: The error; empty where there was none.
        limit: Context length in tokens.
        alive: A request after it was answered.
    """
    named = str(limit) in re.findall(r"\d+", message.replace(",", ""))
    return made(
        "context_limit",
        "Longer prompt refused",
        holds=status == 400 and named and alive,
        expected=f"HTTP 400 that names {limit}, then an answer",
        measured=f"{_refusal(status, message)}; then {_life(alive=alive)}",
        source=RECIPE,
    )


def all_answered(together: Sequence[str], words: Sequence[str], *, alone: Sequence[str]) -> CheckResult:
    """Requests at the same time each get the answer to their own question.

    Equal texts are counted and not demanded: a batch adds numbers up in another order, so even at temperature 0 a
    token may turn out otherwise.

    Args:
        together: The answers; empty where one failed.
        words: What each has to contain.
        alone: The answers to the same requests, one after the other.
    """
    right = [word.lower() in text.lower() for text, word in zip(together, words, strict=True)]
    equal = sum(text == other for text, other in zip(together, alone, strict=True))
    wrong = [word for word, holds in zip(words, right, strict=True) if not holds]
    return made(
        "many_clients",
        "Every client answered",
        holds=bool(right) and all(right),
        expected=f"{len(words)} of {len(words)} right",
        measured=f"{sum(right)} of {len(words)} right",
        source=RECIPE,
        detail=f"{equal} are equal to the answer of the same request alone."
        + (f" Not found: {', '.join(wrong)}." if wrong else ""),
    )


def freed(before: float, during: float, after: float, *, seconds: float, limit_s: float) -> CheckResult:
    """A request whose client went away is given up.

    Args:
        before: Running requests before it.
        during: While it streamed.
        after: After its client closed the connection, at the end of the waiting.
        seconds: From closing until then.
        limit_s: Bound on `seconds`.
    """
    return made(
        "cancelled",
        "Request of a client that left is given up",
        holds=during > before >= after,
        expected=f"{before:.0f} running within {limit_s:g} s",
        measured=f"{after:.0f} running after {seconds:.2f} s",
        source=VLLM_METRICS,
        detail="" if during > before else "It was never seen running.",
    )


def anthropic_answered(status: int, body: Mapping[str, Any], *, contains: str) -> CheckResult:
    """`/v1/messages` answers in Anthropic's form.

    Args:
        status: HTTP status of the answer.
        body: Its JSON; empty where it was none.
        contains: What a correct answer must say.
    """
    blocks = [block for block in body.get("content") or () if block.get("type") == "text"]
    text = "".join(block.get("text") or "" for block in blocks)
    stop = body.get("stop_reason")
    return made(
        "anthropic_messages",
        "Answer in Anthropic's form",
        holds=status == 200
        and body.get("type") == "message"
        and contains.lower() in text.lower()
        and stop == "end_turn",
        expected=f'HTTP 200, contains "{contains}", ends with "end_turn"',
        measured=f'HTTP {status}, "{text.strip()[:SHOWN]}", ends with "{stop}"',
        source=ANTHROPIC_API,
    )


def kv_cache_tokens(measured: Sequence[int], claim: Claim, source: Source) -> CheckResult:
    """The KV cache holds as many tokens as claimed, by the line that the server logs at its start.

    Args:
        measured: Tokens, one figure for each engine; a deployment holds their sum.
        claim: The figure to reach; more is as good.
        source: Of the claim.
    """
    total = sum(measured)
    return made(
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
    return made(
        "prefix_cache",
        "Repeated prompt found in the prefix cache",
        holds=prompt_tokens > 0 and hits >= prompt_tokens / 2,
        expected=f"at least {prompt_tokens // 2} of {prompt_tokens}",
        measured=f"{hits:.0f}" if name in after else f"no {name} in /metrics",
        unit="tokens",
        source=VLLM_METRICS,
    )
