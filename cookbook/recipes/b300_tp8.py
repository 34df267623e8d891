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

# %%
from cookbook.session import open_run

run = open_run("b300_tp8", globals())
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

# %%
run.commands()

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
# Any OpenAI client works, and any that speaks Anthropic's form.

# %%
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
# First the server itself: it is ready, it serves the model that it should, and its KV cache holds what is claimed.

# %%
run.check_server()

# %% [markdown]
# ### Prefix cache
#
# A prompt that comes again is not computed again, as far as its blocks are still in the cache.

# %%
run.examples("prefix_cache")

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

# %%
run.finish()
