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
# # MI355X: tensor parallel 8
#
# One MI355X node with AMD's AITER kernels, eight GPUs in one group. The plain recipe for this hardware.

# %% tags=["parameters"]
model: str = "moonshotai/Kimi-K3.1-Pro"  # hub name or folder to load; with base_url, the name that is served
revision: str = ""  # commit of the model repository to pin; empty takes its newest
base_url: str = ""  # address of a server that already runs, for example http://127.0.0.1:8000
port: int = 8000  # port for the server that is launched
ready_timeout_s: float = 3600  # bound on the server's start, in seconds
request_timeout_s: float = 600  # bound on one request, in seconds
rehearse: bool = False  # cut the recipe down to this machine's CPU

# %%
from cookbook import experiments, judging
from cookbook.session import open_run

run = open_run("mi355x_tp8", globals())
run.about()

# %% [markdown]
# ## Why this layout
#
# The node has the most memory of the single nodes here, so the weights leave more room for the cache than on eight GPUs
# of the other make. The layout is the common baseline: every layer over all eight.
#
# Take it to begin with, and for mixed traffic. Note how far that has been tried: what was published to run on this
# hardware is a tuned configuration for agents, which has its own page, and not this one.
#
# It costs the usual copies of the cache. The graphs cover decode steps only, and one variable about them is marked as
# required, so leave the environment as it is shown until you know why you change it.
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
# Kernels of AITER may be built at the first start, which takes minutes once.

# %%
base_url = run.start()
run.timeline()

# %% [markdown]
# ## Client
#
# What is asked alone is asked again among others further down: a fault at batch one was reported for the previous
# model.

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
# The published figures on tokens are of other hardware and are not used here.

# %%
run.check_server()
run.examples("prefix_cache")

# %% [markdown]
# ### AITER, as the log shows it

# %%
judging.seen_in_log(
    run,
    "aiter",
    "Kernels of AITER are at work",
    r"aiter",
    expected="AITER is named",
    not_on_cpu="AITER is for AMD GPUs.",
)

# %% [markdown]
# ### Prompts and steps
#
# Measured as on the other pages, so that the hardware can be compared where the circumstances allow it.

# %%
server, client = experiments.first_tokens(run)
steps = experiments.decode_steps(run)
answers = experiments.answers(run)
run.picture("Time to first token on MI355X", {"Server": server, "Client alone": client}, log_x=True)

# %% [markdown]
# ### Batches

# %%
run.picture("Decode step by batch on MI355X", {"MI355X": steps})

# %% [markdown]
# ### Many at once

# %%
experiments.put_under_load(run)

# %% [markdown]
# ## Evidence
#
# A run of this recipe is what the page for agents can be compared with.

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
# A memory fault deep in a long context is the best known of them; the padding variable of the other recipe avoids it.

# %%
run.troubleshooting()

# %% [markdown]
# ## References

# %%
run.references()

# %%
run.finish()
