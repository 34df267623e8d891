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
# # GB300: NVFP4 KV cache
#
# Two GB300 trays whose KV cache keeps the latent of a token in four bits. About half as many tokens more are claimed to
# fit, at next to no loss of accuracy.

# %% tags=["parameters"]
model: str = "moonshotai/Kimi-K3.1-Pro"  # hub name or folder to load; with base_url, the name that is served
revision: str = ""  # commit of the model repository to pin; empty takes its newest
base_url: str = ""  # address of a server that already runs, for example http://127.0.0.1:8000
port: int = 8000  # port for the server that is launched
ready_timeout_s: float = 3600  # bound on the server's start, in seconds
request_timeout_s: float = 600  # bound on one request, in seconds
rehearse: bool = False  # cut the recipe down to this machine's CPU
gsm8k: str = ""  # file of GSM8K questions as JSON lines; empty takes those of the hub

# %%
from cookbook import experiments
from cookbook.begin import Here
from cookbook.session import open_run

run = open_run("gb300_nvfp4_kv", globals())
run.about()

# %% [markdown]
# ## Why this layout
#
# The cache holds two things for each token and attention layer: the latent, and the key by which the indexer selects
# what to attend to. Only the latent shrinks here. The indexer's keys stay as they are, so the same tokens are selected.
#
# Take it when the cache is what limits you: long contexts on two trays, or more sessions than fit. It costs no hardware
# and no exchange between GPUs.
#
# Leave it where accuracy over very long contexts is what you sell, until you have measured that yourself: what is
# published is GSM8K, whose prompts are short. This page adds a retrieval check of its own for that reason. No source
# says whether decode context parallelism or low-latency decode read such a cache.
#
# ## Requirements

# %%
run.requirements()

# %% [markdown]
# ## Commands

# %%
run.commands()

# %% [markdown]
# ## Launch
#
# The server is started twice on this page, first with the small cache.

# %%
base_url = run.start()
run.timeline()

# %% [markdown]
# ## Client

# %%
run.curl()
run.examples("chat", "streaming", "reasoning", "anthropic_messages")

# %% [markdown]
# ### Tools and structured answers

# %%
run.examples("tool_call", "tool_turns", "streamed_tool_call", "structured_output")

# %% [markdown]
# ### Images, long prompts, many clients

# %%
run.examples("image", "long_input", "many_clients", "cancelled")

# %% [markdown]
# ## Checks
#
# Nothing is published as an absolute number of tokens; the ratio is, and it is measured further down.

# %%
run.check_server()
run.examples("prefix_cache")

# %% [markdown]
# ### Bytes of a token
#
# The log names the memory of the cache and the tokens in it. Their quotient has to be what the format says.

# %%
small_tokens = run.kv_tokens()
experiments.bytes_per_token(run)

# %% [markdown]
# ### Accuracy
#
# GSM8K against the published figure, and against this machine's own run with the FP8 cache.

# %%
experiments.accuracy(run, "nvfp4_gsm8k", against="gb300_tp8", points=0.5)

# %% [markdown]
# ### Retrieval from long contexts
#
# No source has measured it. A number is hidden at several depths of texts of several lengths, and has to be found.

# %%
experiments.needles(run)
small_steps = experiments.decode_steps(run)

# %% [markdown]
# ### The same trays with FP8
#
# The other side of the comparison. A CPU has no four-bit cache: there, one byte stands for the small format and two for
# the large one.

# %%
here = Here("--kv-cache-dtype", "auto", "Two bytes an element stand for the larger format.")
run.restart(without="nvfp4_kv", here=here)
large_tokens = run.kv_tokens()
large_steps = experiments.decode_steps(run, "decode_step_without")

# %% [markdown]
# ### Tokens that fit

# %%
title = "Tokens of the smaller format against the larger"
experiments.more_cache(run, "nvfp4_kv_tokens", title, small_tokens, large_tokens)
run.capacity("gb300_tp8", "gb300_nvfp4_kv")

# %% [markdown]
# ### Steps of both
#
# A smaller cache is read faster. Its tokens may differ from those of the larger one, as it rounds more; whether that
# matters is what the accuracy above tells.

# %%
run.picture("Decode step by batch, both formats", {"Smaller format": small_steps, "Larger format": large_steps})

# %% [markdown]
# ## Evidence
#
# Both commands are recorded. The accuracy lies question by question in `accuracy.jsonl`.

# %%
run.stop()
run.results()

# %% [markdown]
# ### Memory over the run

# %%
run.memory()

# %% [markdown]
# ## Troubleshooting
#
# Answers that fall apart only in long contexts point at the format: ask the same of the FP8 server. Reported so far:

# %%
run.troubleshooting()

# %% [markdown]
# ## References

# %%
run.references()

# %%
run.finish()
