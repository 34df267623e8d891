"""Each example, run against a server and judged.

The requests are those of `calls`, which a page shows; here is what has to hold of their answers, and what is left out
where a model cannot do it.
"""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from openai import OpenAIError

from cookbook import checks, client
from cookbook.evidence import CheckResult
from cookbook.examples import calls
from cookbook.examples.context import Context, Outcome, bounded

__all__ = ["EXAMPLES", "Example"]

T = TypeVar("T")
Example: TypeAlias = Callable[[Context], Outcome]

NOT_SMALL = "The small model does not reason, and no reasoning parser runs."
NO_PARSER = "The server runs without a reasoning parser."
NOT_STRICT = (
    "vllm-router 0.1.17 takes `strict` out of a tool (seen), so nothing holds the arguments to the schema, and the "
    "small model does not keep to it by itself."
)
UNKNOWN_LENGTH = "The context length of this server is not known."
CITIES = {
    "France": "Paris",
    "Italy": "Rome",
    "Germany": "Berlin",
    "Spain": "Madrid",
    "Japan": "Tokyo",
    "Egypt": "Cairo",
    "Austria": "Vienna",
    "Portugal": "Lisbon",
    "Greece": "Athens",
    "Poland": "Warsaw",
    "Norway": "Oslo",
    "Ireland": "Dublin",
    "Finland": "Helsinki",
    "Peru": "Lima",
    "Cuba": "Havana",
    "Kenya": "Nairobi",
}
SMALL_CLIENTS = 4
# Only whole blocks are found again, and those of a model with recurrent layers are thousands of tokens long.
LINES = 2000
SMALL_LINES = 100
FREED_WITHIN_S = 10.0
# More than a block: vLLM 0.32.0's ExampleConnector, the second KV tier of a rehearsal, dies of a prompt of one token.
SHORT = 40


def chat(context: Context) -> Outcome:
    """One question."""
    answer = calls.chat(context.client, context.model)
    text = answer.message.content
    return Outcome(text or "", (checks.answered(text, contains="Paris", finish_reason=answer.finish_reason),))


def streaming(context: Context) -> Outcome:
    """The same question, streamed."""
    whole = calls.chat(context.client, context.model).message.content
    pieces = calls.streaming(context.client, context.model)
    return Outcome(
        " | ".join(text for _, text in pieces),
        (checks.same_text(whole, "".join(text for _, text in pieces)),),
        {"seconds": [round(seconds, 4) for seconds, _ in pieces]},
    )


def reasoning(context: Context) -> Outcome:
    """Each effort, and one that does not exist; of a model that does not reason, only that none is asked for."""
    efforts = calls.EFFORTS if context.thinks else calls.EFFORTS[-1:]
    results = calls.reasoning(context.client, context.model, context.max_tokens, efforts)
    text = [f"{effort}:\n  reasoning: {thought}\n  answer: {answer}" for effort, (thought, answer) in results.items()]
    thoughtful = calls.EFFORTS[:-1]
    if context.thinks:
        status, message = calls.unsupported_effort(context.client, context.model)
        text.append(f"medium: HTTP {status} {message}")
        found = [checks.reasoning_apart(*results[effort], effort=effort) for effort in thoughtful]
        found.append(checks.effort_refused(status, message, supported=thoughtful))
    else:
        reason = NOT_SMALL if context.small else NO_PARSER
        found = [
            checks.leave_out(f"reasoning_{effort}", f"Reasoning, effort {effort}", expected="two fields", reason=reason)
            for effort in thoughtful
        ]
        found.append(
            checks.leave_out(
                "effort_refused",
                "Unsupported effort refused",
                expected="HTTP 400",
                reason="The model's own template decides which efforts there are." if context.small else reason,
            )
        )
    return Outcome("\n".join(text), (*found, checks.reasoning_off(*results["none"])))


def _loose(context: Context, name: str, title: str) -> Outcome | None:
    """The check left out, where the small model would have to keep to a schema by itself."""
    if not context.small or context.strict:
        return None
    return Outcome("", (checks.leave_out(name, title, expected="get_weather(…) by its schema", reason=NOT_STRICT),))


def tool_call(context: Context) -> Outcome:
    """One call of a tool."""
    left_out = _loose(context, "tool_call", "Tool called with valid arguments")
    if left_out:
        return left_out
    called = calls.tool_call(context.client, context.model, context.max_tokens).message.tool_calls or []
    functions = [call.function for call in called if call.type == "function"]
    text = "\n".join(f"{function.name}({function.arguments})" for function in functions)
    return Outcome(text, (checks.tool_called(called, name="get_weather", parameters=calls.WEATHER),))


def tool_turns(context: Context) -> Outcome:
    """A call, its result, and the answer."""
    left_out = _loose(context, "tool_turns", "Tool used over several turns")
    if left_out:
        return left_out
    messages = calls.tool_turns(context.client, context.model, context.max_tokens)
    found = checks.tools_in_turns(messages, tools={"get_weather": calls.WEATHER}, contains="21")
    return Outcome("\n".join(json.dumps(message, ensure_ascii=False) for message in messages), (found,))


def streamed_tool_call(context: Context) -> Outcome:
    """A call out of its pieces."""
    left_out = _loose(context, "streamed_tool_call", "Streamed tool call is whole")
    if left_out:
        return left_out
    pieces = calls.streamed_tool_call(context.client, context.model, context.max_tokens)
    text = "\n".join(f"{''.join(call['name'])}: {' | '.join(call['arguments'])}" for call in pieces)
    found = checks.streamed_tool_call(pieces, name="get_weather", parameters=calls.WEATHER)
    return Outcome(text, (found,))


def structured_output(context: Context) -> Outcome:
    """JSON by a schema."""
    text = calls.structured_output(context.client, context.model, context.max_tokens).message.content
    return Outcome(text or "", (checks.follows_schema(text, calls.CITY),))


def image(context: Context) -> Outcome:
    """An image: what is seen in it, or how it is refused."""
    if context.sees:
        answer = calls.image(context.client, context.model)
        text = answer.message.content
        return Outcome(text or "", (checks.image_described(text, contains="red"),))
    if context.refuses_images:
        status, message = calls.refusal(lambda: calls.image(context.client, context.model))
        found = checks.image_refused(status, message, alive=_alive(context))
        return Outcome(f"HTTP {status}: {message}", (found,))
    reason = "It is not known whether this server takes images."
    left_out = checks.leave_out("image", "Image", expected="described or refused", reason=reason)
    return Outcome("", (left_out,))


def long_input(context: Context) -> Outcome:
    """A prompt that just fits, and one that does not."""
    limit, tokens = context.max_model_len, context.long_input_tokens
    text, found, data = [], [], {}
    if tokens is None:
        reason = "This run sends no prompt of that length."
        found.append(checks.leave_out("long_input", "Long prompt answered", expected="its tokens", reason=reason))
    else:
        began = time.perf_counter()
        counted = calls.long_input(context.client, context.model, tokens)
        data["seconds"] = time.perf_counter() - began
        text.append(f"{tokens} tokens: accepted, {counted} counted, {data['seconds']:.1f} s")
        found.append(checks.long_input(counted, sent=tokens, limit=limit))
    if limit is None:
        expected = "HTTP 400 that names the limit"
        found.append(
            checks.leave_out("context_limit", "Longer prompt refused", expected=expected, reason=UNKNOWN_LENGTH)
        )
    else:
        status, message = calls.over_limit(context.client, context.model, limit)
        text.append(f"{limit + 1} tokens: HTTP {status} {message}")
        found.append(checks.context_limit(status, message, limit=limit, alive=_alive(context)))
    return Outcome("\n".join(text), tuple(found), data)


def many_clients(context: Context) -> Outcome:
    """Questions asked alone, then all at once."""
    cities = dict(list(CITIES.items())[: SMALL_CLIENTS if context.small else None])
    questions = [f"What is the capital of {country}? Answer in one sentence." for country in cities]

    async def alone_and_together() -> tuple[list[Any], list[Any]]:
        async with context.asynchronous() as asynchronous:
            alone = [(await calls.many_clients(asynchronous, context.model, [one]))[0] for one in questions]
            return alone, await calls.many_clients(asynchronous, context.model, questions)

    alone, together = _in_thread(alone_and_together())
    found = checks.all_answered(_texts(together), list(cities.values()), alone=_texts(alone))
    text = "\n".join(
        f"{country}: {answer[1]} ({answer[0]:.2f} s)" if isinstance(answer, tuple) else f"{country}: {answer!r}"
        for country, answer in zip(cities, together, strict=True)
    )
    return Outcome(text, (found,), {"alone": _seconds(alone), "together": _seconds(together)})


def _texts(answers: list[Any]) -> list[str]:
    return [answer[1] if isinstance(answer, tuple) else "" for answer in answers]


def _seconds(answers: list[Any]) -> list[float]:
    return [round(answer[0], 4) for answer in answers if isinstance(answer, tuple)]


def _in_thread(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result. A notebook has a running loop already, and that cannot run another one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def cancelled(context: Context) -> Outcome:
    """A client that leaves."""
    with context.engines() as engines:
        before, during, after, seconds = calls.cancelled(context.client, context.model, engines, FREED_WITHIN_S)
    text = f"Running requests: {before:.0f} before, {during:.0f} while it streamed, {after:.0f} after {seconds:.2f} s"
    return Outcome(
        text, (checks.freed(before, during, after, seconds=seconds, limit_s=FREED_WITHIN_S),), {"seconds": seconds}
    )


def prefix_cache(context: Context) -> Outcome:
    """A prompt that comes twice."""
    lines = SMALL_LINES if context.small else LINES
    with context.engines() as engines:
        tokens, before, after = calls.prefix_cache(context.client, context.model, engines, lines, context.groups)
    names = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:request_success_total")
    text = "\n".join(f"{name:34} {before.get(name, 0):10.0f} -> {after.get(name, 0):10.0f}" for name in names)
    return Outcome(text, (checks.prefix_cache_hits(before, after, prompt_tokens=tokens),))


def anthropic_messages(context: Context) -> Outcome:
    """Anthropic's form."""
    with client.http(context.base_url, context.request_timeout_s) as http:
        answer = calls.anthropic_messages(http, context.model)
    body = answer.json() if answer.headers.get("content-type", "").startswith("application/json") else {}
    text = json.dumps(body, indent=2, ensure_ascii=False) if body else answer.text
    return Outcome(text, (checks.anthropic_answered(answer.status_code, body, contains="Paris"),))


def _alive(context: Context) -> bool:
    """Whether the server still answers a request."""
    try:
        calls.long_input(context.client, context.model, SHORT)
    except OpenAIError:
        return False
    return True


def _guarded(example: Example) -> Example:
    """The example, with whatever goes wrong in it as a check that fails: the others shall go on."""
    name = example.__name__

    @functools.wraps(example)
    def run(context: Context) -> Outcome:
        try:
            outcome = example(context)
        except Exception as error:  # noqa: BLE001  # openai, httpx and a server that answers nonsense raise many kinds
            found: CheckResult = checks.broken(name, f"{type(error).__name__}: {error}")
            return Outcome(bounded(found.detail), (found,))
        return Outcome(bounded(outcome.text), outcome.checks, outcome.data)

    return run


EXAMPLES: Mapping[str, Example] = MappingProxyType(
    {
        example.__name__: _guarded(example)
        for example in (
            chat,
            streaming,
            reasoning,
            tool_call,
            tool_turns,
            streamed_tool_call,
            structured_output,
            image,
            long_input,
            many_clients,
            cancelled,
            prefix_cache,
            anthropic_messages,
        )
    }
)
"""The examples by name, in the order of a page."""
