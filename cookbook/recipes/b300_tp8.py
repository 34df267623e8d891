# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # B300: tensor parallel 8
#
# This page is a notebook. It starts a vLLM server with Kimi-K3.1-Pro on one B300 node, talks to it, and checks what it
# claims. What you read below is what it printed when it ran.
#
# Set the parameters, or leave them. With `base_url` nothing is launched and the server at that address is used; with
# `rehearse` a small model answers on a CPU in place of Kimi-K3.1-Pro.

# %% tags=["parameters"]
model: str = "moonshotai/Kimi-K3.1-Pro"  # hub name or folder to load; with base_url, the name that is served
revision: str = ""  # commit of the model repository to pin; empty takes its newest
base_url: str = ""  # address of a server that already runs, for example http://127.0.0.1:8000
port: int = 8000  # port for the server that is launched
ready_timeout_s: float = 3600  # bound on the server's start, in seconds
request_timeout_s: float = 600  # bound on one request, in seconds
rehearse: bool = False  # cut the recipe down to this machine's CPU

# %% [markdown]
# The run is resolved first: which commands, on what, and, in a rehearsal, what differs from the hardware.

# %%
from openai import OpenAI

from cookbook import checks, client
from cookbook.session import open_run

run = open_run(
    "b300_tp8",
    model=model,
    revision=revision,
    base_url=base_url,
    port=port,
    ready_timeout_s=ready_timeout_s,
    request_timeout_s=request_timeout_s,
    rehearse=rehearse,
)
run.about()

# %% [markdown]
# ## Why this layout
#
# The weights fill most of the memory of one node, so the smallest deployment is the whole node. Tensor parallelism cuts
# each layer over all GPUs of the node: every GPU works on every token, which keeps the time per token short, and the
# traffic stays on NVLink. It is the baseline that the other recipes are compared with.
#
# What it costs: each GPU keeps the whole latent KV cache, as the latent of this model's attention is shared by all
# heads and cannot be cut by head. For very long contexts or many long-lived sessions, sharding the cache over the GPUs
# (decode context parallelism) holds several times more tokens. For long prompts one at a time, expert parallelism
# prefills faster.
#
# ## Requirements

# %%
run.requirements()

# %% [markdown]
# ## Commands
#
# One flag a line, ready to copy. What the sources do not state for this model is marked in the table under it.

# %%
run.commands()

# %% [markdown]
# Why each flag and variable is there, and how sure that is:

# %%
run.reasons()

# %% [markdown]
# ## Launch
#
# The server belongs to a supervisor outside this notebook. It ends with the notebook, whatever ends it, and its log
# goes to a file; below are the phases that the log tells of. Loading the weights takes longest.

# %%
base_url = run.start()

# %% [markdown]
# ## Client
#
# Any OpenAI client works. First with curl: the models, then a question.

# %%
print(client.curl(f"{base_url}/v1/models"))

# %% [markdown]
# The same question is asked again further down, so it is set once. Thinking is switched off where a short answer is
# wanted.

# %%
question = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
no_thinking = {"chat_template_kwargs": {"thinking": False}}
body = {"model": run.model, "messages": question, "temperature": 0, "max_tokens": 64, **no_thinking}
print(client.curl(f"{base_url}/v1/chat/completions", body))

# %% [markdown]
# With the openai package:

# %%
openai = OpenAI(base_url=f"{base_url}/v1", api_key=client.api_key(), timeout=request_timeout_s, max_retries=0)
answer = openai.chat.completions.create(
    model=run.model, messages=question, temperature=0, max_tokens=64, extra_body=no_thinking
).choices[0]
print(answer.message.content)

# %% [markdown]
# Streamed, the text arrives in pieces:

# %%
stream = openai.chat.completions.create(
    model=run.model, messages=question, temperature=0, max_tokens=64, extra_body=no_thinking, stream=True
)
pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
print(" | ".join(pieces))

# %% [markdown]
# Reasoning comes in a field of its own. `reasoning_effort` says how much of it: low, high or max, or none.

# %%
thought = openai.chat.completions.create(
    model=run.model,
    messages=[{"role": "user", "content": "Is 17 * 23 more than 400? Answer yes or no."}],
    temperature=0,
    max_tokens=run.max_tokens,
    reasoning_effort="low",
)
message = thought.choices[0].message
reasoning = (message.model_extra or {}).get("reasoning")
print("reasoning:", reasoning)
print("answer:", message.content)

# %% [markdown]
# A tool call. `required` makes the model call one of the tools (with `auto` it may also answer in words), and `strict`
# holds the arguments to the schema.

# %%
weather = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
tool = {
    "name": "get_weather",
    "description": "The weather in a city now.",
    "parameters": weather,
    "strict": True,
}
called = openai.chat.completions.create(
    model=run.model,
    messages=[{"role": "user", "content": "What is the weather in Paris, in celsius?"}],
    tools=[{"type": "function", "function": tool}],
    tool_choice="required",
    temperature=0,
    max_tokens=run.max_tokens,
    extra_body=no_thinking,
).choices[0]
for call in called.message.tool_calls or []:
    print(call.function.name, call.function.arguments)

# %% [markdown]
# An answer that obeys a JSON schema:

# %%
city = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "country": {"type": "string", "maxLength": 30},
        "is_capital": {"type": "boolean"},
    },
    "required": ["name", "country", "is_capital"],
    "additionalProperties": False,
}
structured = openai.chat.completions.create(
    model=run.model,
    messages=[{"role": "user", "content": "Describe Paris as JSON with name, country and is_capital."}],
    response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": city}},
    temperature=0,
    max_tokens=run.max_tokens,
    extra_body=no_thinking,
).choices[0]
print(structured.message.content)

# %% [markdown]
# The server also speaks Anthropic's form:

# %%
body = {"model": run.model, "max_tokens": 32, "messages": question, **no_thinking}
print(client.curl(f"{base_url}/v1/messages", body))

# %% [markdown]
# Its counters are at `/metrics`, in Prometheus' format. A long prompt is sent twice, and the counters are read before
# and after the second time: the prefix cache must know the prompt by then.

# %%
prompt = "\n".join(f"Line {number}: the server reads this once and remembers it." for number in range(150))
first = openai.completions.create(model=run.model, prompt=prompt, max_tokens=1, temperature=0)
before = run.metrics()
openai.completions.create(model=run.model, prompt=prompt, max_tokens=1, temperature=0)
after = run.metrics()
for name in ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:request_success_total"):
    print(f"{name:34} {before.get(name, 0):10.0f} -> {after.get(name, 0):10.0f}")

# %% [markdown]
# ## Checks
#
# Each holds what came back above against what has to hold. First the server itself: it is ready, it serves the model
# that it should, and its KV cache holds what is claimed.

# %%
run.check_ready()
run.check_model()
run.check_kv_cache()

# %% [markdown]
# Then its answers:

# %%
run.check(checks.answered(answer.message.content, contains="Paris", finish_reason=answer.finish_reason))
run.check(checks.same_text(answer.message.content, "".join(pieces)))
run.check_reasoning(reasoning, message.content)
run.check(checks.tool_called(called.message.tool_calls, name="get_weather", parameters=weather))
run.check(checks.follows_schema(structured.message.content, city))

# %% [markdown]
# And the prefix cache:

# %%
run.check(checks.prefix_cache_hits(before, after, prompt_tokens=first.usage.prompt_tokens))

# %% [markdown]
# ## Evidence
#
# The run leaves a folder: this notebook as it ran, the server's log, and `evidence.json` with the machine, the
# versions, the commands, the checks and the times. Secrets are taken out of all three. The server is stopped now.

# %%
run.stop()
run.results()

# %% [markdown]
# ## Troubleshooting
#
# If the server does not come up, the launch above ends with the root cause out of its log. Opened in JupyterLab, a
# failing cell leaves the server running until `run.stop()` or the end of the kernel. Known problems that apply here:

# %%
run.troubleshooting()

# %% [markdown]
# ## References

# %%
run.references()

# %% [markdown]
# The notebook ends with an error if a check fell short, so that papermill notices too.

# %%
run.finish()
