"""The client code of the pages, as a reader copies it: the openai package, and httpx for what it does not cover.

One function an example, named like it, with what it shares with others beside it. Nothing here judges what comes back.
"""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import httpx
from openai import APIStatusError, AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from openai.types.chat.chat_completion import Choice

from cookbook.client import metrics

QUESTION: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the capital of France? Answer in one sentence."}
]
Effort: TypeAlias = Literal["low", "high", "max", "none"]
EFFORTS: tuple[Effort, ...] = ("low", "high", "max", "none")
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOL: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city now.",
        "parameters": WEATHER,
        "strict": True,
    },
}
ASK_WEATHER: ChatCompletionMessageParam = {"role": "user", "content": "What is the weather in Paris, in celsius?"}
CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "country": {"type": "string", "maxLength": 30},
        "is_capital": {"type": "boolean"},
    },
    "required": ["name", "country", "is_capital"],
    "additionalProperties": False,
}
RUNNING = "vllm:num_requests_running"


def chat(client: OpenAI, model: str) -> Choice:
    """Any OpenAI client works. One question, with thinking switched off, as a short answer is wanted."""
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=64, reasoning_effort="none"
    )
    return answer.choices[0]


def streaming(client: OpenAI, model: str) -> list[tuple[float, str]]:
    """Streamed, the text arrives in pieces. Each is kept with the time of its arrival, in seconds."""
    began = time.perf_counter()
    stream = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=64, reasoning_effort="none", stream=True
    )
    deltas = (chunk.choices[0].delta.content for chunk in stream if chunk.choices)
    return [(time.perf_counter() - began, text) for text in deltas if text]


def reasoning(
    client: OpenAI, model: str, max_tokens: int, efforts: Sequence[Effort] = EFFORTS
) -> dict[str, tuple[str | None, str | None]]:
    """Reasoning comes in a field of its own. `reasoning_effort` says how much of it: low, high or max, or none.
    Kimi refuses any other, and names these.
    """
    results: dict[str, tuple[str | None, str | None]] = {}
    for effort in efforts:
        answer = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Is 17 * 23 more than 400? Answer yes or no."}],
            temperature=0,
            max_tokens=max_tokens,
            reasoning_effort=effort,
        )
        message = answer.choices[0].message
        # The openai package has no name for this field; it keeps it among the extra ones.
        results[effort] = ((message.model_extra or {}).get("reasoning"), message.content)
    return results


def unsupported_effort(client: OpenAI, model: str) -> tuple[int, str]:
    """An effort that the model does not have."""
    return refusal(
        lambda: client.chat.completions.create(
            model=model, messages=QUESTION, temperature=0, max_tokens=64, reasoning_effort="medium"
        )
    )


def refusal(send: Callable[[], object]) -> tuple[int, str]:
    """HTTP status and message with which the server refuses a request; 200 where it does not."""
    try:
        send()
    except APIStatusError as error:
        return error.status_code, error.message
    return 200, ""


def tool_call(client: OpenAI, model: str, max_tokens: int) -> Choice:
    """A tool call. `required` makes the model call a tool, and `strict` holds the arguments to the schema.
    With `auto` the model may also answer in words.
    """
    answer = client.chat.completions.create(
        model=model,
        messages=[ASK_WEATHER],
        tools=[TOOL],
        tool_choice="required",
        temperature=0,
        max_tokens=max_tokens,
        reasoning_effort="none",
    )
    return answer.choices[0]


def get_weather(city: str, unit: str) -> str:
    """What the tool returns: a real one would look it up."""
    return json.dumps({"city": city, "temperature": 21 if unit == "celsius" else 70})


def tool_turns(client: OpenAI, model: str, max_tokens: int) -> list[Any]:
    """Several turns: what the tool returns goes back to the model, until it answers in words.
    The message list is the whole state of the conversation.
    """
    messages: list[Any] = [ASK_WEATHER]
    for turn in range(4):
        answer = client.chat.completions.create(
            model=model,
            messages=messages,
            tools=[TOOL],
            tool_choice="required" if turn == 0 else "auto",
            temperature=0,
            max_tokens=max_tokens,
            reasoning_effort="none",
        )
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls or ():
            if call.type == "function":
                result = get_weather(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        if not message.tool_calls:
            break
    return messages


def streamed_tool_call(client: OpenAI, model: str, max_tokens: int) -> list[dict[str, list[str]]]:
    """A streamed tool call. The name comes once, the arguments in pieces, which are joined by the call's index."""
    stream = client.chat.completions.create(
        model=model,
        messages=[ASK_WEATHER],
        tools=[TOOL],
        tool_choice="required",
        temperature=0,
        max_tokens=max_tokens,
        reasoning_effort="none",
        stream=True,
    )
    calls: dict[int, dict[str, list[str]]] = {}
    for chunk in stream:
        for delta in (chunk.choices[0].delta.tool_calls or ()) if chunk.choices else ():
            call = calls.setdefault(delta.index, {"name": [], "arguments": []})
            if delta.function and delta.function.name:
                call["name"].append(delta.function.name)
            if delta.function and delta.function.arguments:
                call["arguments"].append(delta.function.arguments)
    return [calls[index] for index in sorted(calls)]


def structured_output(client: OpenAI, model: str, max_tokens: int) -> Choice:
    """An answer that obeys a JSON schema."""
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Describe Paris as JSON with name, country and is_capital."}],
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}},
        temperature=0,
        max_tokens=max_tokens,
        reasoning_effort="none",
    )
    return answer.choices[0]


def red_square(side: int = 128) -> str:
    """A PNG file as a data URL: one red square."""

    def block(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    row = b"\x00" + b"\xff\x00\x00" * side
    png = b"\x89PNG\r\n\x1a\n" + block(b"IHDR", head) + block(b"IDAT", zlib.compress(row * side)) + block(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()


def image(client: OpenAI, model: str) -> Choice:
    """An image goes along as a data URL. A server that takes text only refuses it."""
    answer = client.chat.completions.create(
        model=model,
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": red_square()}},
                    {"type": "text", "text": "Which colour is this square? Answer in one word."},
                ],
            }
        ],
        temperature=0,
        max_tokens=64,
        reasoning_effort="none",
    )
    return answer.choices[0]


def long_input(client: OpenAI, model: str, tokens: int) -> int:
    """A prompt of exactly so many tokens: the completions API takes token ids, so nothing depends on the tokenizer.
    One token more than the context holds is an error that names the limit.

    Returns how many tokens the server counted.
    """
    answer = client.completions.create(model=model, prompt=[1000] * tokens, max_tokens=1, temperature=0)
    return answer.usage.prompt_tokens if answer.usage else 0


def over_limit(client: OpenAI, model: str, limit: int) -> tuple[int, str]:
    """One token more than the context holds."""
    return refusal(lambda: long_input(client, model, limit + 1))


async def many_clients(
    client: AsyncOpenAI, model: str, questions: Sequence[str]
) -> list[tuple[float, str] | BaseException]:
    """Many clients at once. The server batches their requests; each gets its own answer."""

    async def ask(question: str) -> tuple[float, str]:
        began = time.perf_counter()
        answer = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": question}],
            temperature=0,
            max_tokens=64,
            reasoning_effort="none",
        )
        return time.perf_counter() - began, answer.choices[0].message.content or ""

    return await asyncio.gather(*map(ask, questions), return_exceptions=True)


def cancelled(
    client: OpenAI, model: str, servers: Sequence[httpx.Client], limit_s: float
) -> tuple[float, float, float, float]:
    """A client that leaves in the middle of an answer. The server notices, and stops working for it.

    Returns how many requests ran before, during and after, and the seconds from closing until they were back.
    """
    before, began = metrics(*servers)[RUNNING], time.monotonic()
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Count from 1 to 1000."}],
        max_tokens=1500,
        reasoning_effort="none",
        stream=True,
        # Else a short answer could be what ends it.
        extra_body={"ignore_eos": True},
    )
    during = before
    for _ in stream:
        during = metrics(*servers)[RUNNING]
        if during > before or time.monotonic() - began > limit_s:
            break
    stream.close()
    closed = time.monotonic()
    while (after := metrics(*servers)[RUNNING]) > before and time.monotonic() - closed < limit_s:
        time.sleep(0.05)
    return before, during, after, time.monotonic() - closed


def prefix_cache(
    client: OpenAI, model: str, servers: Sequence[httpx.Client], lines: int, groups: int
) -> tuple[int, dict[str, float], dict[str, float]]:
    """A long prompt is sent again. Where groups serve side by side each has a cache of its own, so it is sent once more
    than there are groups. The counters are read before and after.

    Returns the length of the prompt in tokens, and the counters.
    """
    prompt = "\n".join(f"Line {number}: the server reads this once and remembers it." for number in range(lines))
    before = metrics(*servers)
    tokens = 0
    for _ in range(groups + 1):
        answer = client.completions.create(model=model, prompt=prompt, max_tokens=1, temperature=0)
        tokens = answer.usage.prompt_tokens if answer.usage else 0
    return tokens, before, metrics(*servers)


def anthropic_messages(server: httpx.Client, model: str) -> httpx.Response:
    """The server also speaks Anthropic's form, so its clients can be pointed here."""
    body = {"model": model, "messages": QUESTION, "temperature": 0, "max_tokens": 64, "thinking": {"type": "disabled"}}
    return server.post("/v1/messages", json=body)
