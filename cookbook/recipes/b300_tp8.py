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
# Kimi-K3.1-Pro on one B300 node, as plainly as it goes: one group of eight GPUs that share every layer. Begin here, and
# come back to it when something faster or larger has to be explained.

# %% tags=["parameters"]
model: str = "moonshotai/Kimi-K3.1-Pro"  # hub name or folder to load; with base_url, the name that is served
revision: str = ""  # commit of the model repository to pin; empty takes its newest
base_url: str = ""  # address of a server that already runs, for example http://127.0.0.1:8000
port: int = 8000  # port for the server that is launched
ready_timeout_s: float = 3600  # bound on the server's start, in seconds
request_timeout_s: float = 600  # bound on one request, in seconds
rehearse: bool = False  # cut the recipe down to this machine's CPU

# %%
from cookbook import experiments
from cookbook.session import open_run

run = open_run("b300_tp8", globals())
run.about()

# %% [markdown]
# ## Why this layout
#
# The weights fill most of the memory of one node, so the smallest deployment is the whole node. Tensor parallelism cuts
# each layer over all GPUs of the node: every GPU works on every token, which keeps the time per token short, and the
# traffic stays on NVLink.
#
# Take it when the load is mixed and nothing stands out: chats, tool calls, documents of moderate length. It is the
# baseline that the other recipes are measured against, so run it once on each machine.
#
# What it costs: each GPU keeps the whole latent KV cache, as the latent of this model's attention is shared by all
# heads and cannot be cut by head. Eight copies of the same cache are the price of the simplest layout. For very long
# contexts or many long-lived sessions, decode context parallelism holds several times more tokens; for long prompts one
# at a time, expert parallelism prefills faster; for the shortest time between tokens there is low-latency decode.
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
# Reading the weights takes longest; after that, kernels are warmed up and graphs captured. Below are the phases as the
# server's log tells of them.

# %%
base_url = run.start()
run.timeline()

# %% [markdown]
# ## Client
#
# Any OpenAI client works, and any that speaks Anthropic's form.

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
# First the server itself: it is ready, it serves the model that it should, its KV cache holds what is claimed, and a
# prompt that comes again is found in it.

# %%
run.check_server()
run.examples("prefix_cache")

# %% [markdown]
# ### KV cache by layout
#
# How many tokens fit is what the choice of a layout comes down to most often.

# %%
run.capacity("b300_tp8", "b300_tep", "b300_dcp8")

# %% [markdown]
# ### Time to first token
#
# One prompt at a time, each new to the server, so nothing comes out of a cache. The client is measured beside it
# against a socket that answers at once: a client that is slow with long prompts would be taken for a slow server.

# %%
server, client = experiments.first_tokens(run)
run.picture("Time to first token by length of the prompt", {"Server": server, "Client alone": client}, log_x=True)

# %% [markdown]
# ### Decode steps
#
# The time between two tokens of a sequence, by how many sequences decode together. The other recipes for this node are
# held against these figures.

# %%
steps = experiments.decode_steps(run)
answers = experiments.answers(run)
run.picture("Decode step by batch", {"Tensor parallel 8": steps})

# %% [markdown]
# ### Under load
#
# What clients feel when many come at once: percentiles, as an average hides those who wait.

# %%
experiments.put_under_load(run)

# %% [markdown]
# ## Evidence
#
# The run leaves a folder: this notebook as it ran, the server's log, and `evidence.json` with the machine, the
# versions, the commands, the checks, the curves and the times. Secrets are taken out of all three. The server is
# stopped now.

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
