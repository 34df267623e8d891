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
# # MI355X: AgentX
#
# Many agent sessions at once on one MI355X node: the cache cut over the GPUs, a draft that proposes tokens, and a
# second tier in the host's memory.

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
from cookbook.session import open_run

run = open_run("mi355x_agentx", globals())
run.about()

# %% [markdown]
# ## Why this layout
#
# Agents have long shared instructions, many short turns, and pauses in which a tool works. Each part of this
# configuration answers one of these: the cut cache holds the sessions, the second tier keeps those that pause, and the
# draft shortens the turns.
#
# It is the one configuration that was published to have run on this hardware. Which parts it has is stated; their
# values are not, and are those of a benchmark of the previous model, or inferred. The notices above say so.
#
# Take it for coding agents and the like. Leave it for traffic without shared prefixes, where two of the three parts
# only cost; and for single prompts of great length, where this hardware has a known fault that a setting here avoids.
#
# It costs host memory, room for the draft, and the exchange of the cut cache at every step.
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
# Target and draft are loaded, and the host's memory is pinned.

# %%
at_start = experiments.second_tier_gib(run)
base_url = run.start()
run.timeline()

# %% [markdown]
# ## Client

# %%
run.curl()
run.examples("chat", "streaming", "reasoning", "anthropic_messages")

# %% [markdown]
# ### Tools and structured answers
#
# Agents live on these: a call that is not whole stops the agent.

# %%
run.examples("tool_call", "tool_turns", "streamed_tool_call", "structured_output")

# %% [markdown]
# ### Images, long prompts, many clients

# %%
run.examples("image", "long_input", "many_clients", "cancelled")

# %% [markdown]
# ## Checks
#
# How many tokens are to fit nobody has published for this configuration.

# %%
run.check_server()
run.examples("prefix_cache")

# %% [markdown]
# ### Sessions
#
# All at once, several turns each, the whole history with every turn.

# %%
experiments.agents(run)

# %% [markdown]
# ### The draft
#
# How many tokens a step brings. The card's figures are of another vendor's hardware and kernels, so here it only has to
# be of use.

# %%
experiments.drafts(run)

# %% [markdown]
# ### Pauses
#
# Sessions that were pushed out of the device's cache while their tools worked, and come back.

# %%
experiments.returning_sessions(run)

# %% [markdown]
# ### The host's share

# %%
experiments.second_tier_grew(run, at_start)

# %% [markdown]
# ## Evidence
#
# With another concurrency in mind, change the number of sequences in the command and run the page again: the record
# shows which it was.

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
# Three features together have more ways to fail than one. Take away the draft first, then the second tier. Reported:

# %%
run.troubleshooting()

# %% [markdown]
# ## References

# %%
run.references()

# %%
run.finish()
