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
# # GB300: prefill/decode with KV offload
#
# The prefill and decode pools of a GB300 rack, with a host-memory tier behind prefill. A session that returns is read
# from there, and then moves on to decode like any other.

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

run = open_run("gb300_pd_kv_offload", globals())
run.about()

# %% [markdown]
# ## Why this layout
#
# In a disaggregated deployment it is the prefill pool that computes prefixes, so it is there that remembering them
# pays. Two connectors stand side by side in it: one hands the cache to decode, the other keeps what leaves the devices
# in the host's memory. The decode pool has no second tier.
#
# Take it when the pools exist already and sessions come back: agents with long shared instructions, chats that go on
# after lunch. What is saved is prefill, and with it the number of trays that prefill needs.
#
# Leave it where prefixes do not repeat. And leave the plain pools in place as a comparison: two connectors can
# disagree, on who frees a block for instance, where one cannot.
#
# It costs pinned memory on each prefill tray.
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
# The room that the second tier takes is noted first.

# %%
before_start = experiments.second_tier_gib(run)
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
#
# Long prompts go through both connectors, so the one that nearly fills the context is the hardest of these.

# %%
run.examples("image", "long_input", "many_clients", "cancelled")

# %% [markdown]
# ## Checks
#
# The router answers for all; the engines behind it are counted one by one.

# %%
run.check_server()
run.examples("prefix_cache")

# %% [markdown]
# ### The transfer, beside the second tier
#
# With two connectors in one engine, the first question is whether the transfer still works.

# %%
answers = experiments.prefill_then_decode(run)

# %% [markdown]
# ### One server's tokens

# %%
experiments.same_as_alone(run, answers)

# %% [markdown]
# ### Returning sessions
#
# The prefill pool is asked directly, so that the time is that of reading the prompt and nothing else.

# %%
experiments.returning_sessions(run, "prefill")

# %% [markdown]
# ### What the tier takes up

# %%
experiments.second_tier_grew(run, before_start)

# %% [markdown]
# ## Evidence
#
# Hits of the second tier and transfers are counted apart, in checks of their own.

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
# If transfers stop when the tier is added, compare both pools' cache settings: the connector refuses two sides that
# differ. Further:

# %%
run.troubleshooting()

# %% [markdown]
# ## References

# %%
run.references()

# %%
run.finish()
