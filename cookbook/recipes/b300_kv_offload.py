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
# # B300: KV offload to host memory
#
# A second tier for the KV cache in the host's memory. What leaves the GPUs stays there, and a session that comes back
# is read over the bus instead of being computed again.

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

run = open_run("b300_kv_offload", globals())
run.about()

# %% [markdown]
# ## Why this layout
#
# A prefix cache on the device forgets what was not used lately, and a session that returns after that pays for its
# whole history once more. The host has many times the memory that the cache has on the device, and copying a prefix is
# far cheaper than computing it.
#
# Take it when sessions return: assistants with long histories, agents that wait for tools, documents that are asked
# about again and again. It needs prefix caching.
#
# Leave it when prompts have nothing in common, for then every byte is copied out and never read. The host pays in
# pinned memory, which no other process of the node gets back while the server lives. Size it from what is free once the
# engines are up, not from what the data sheet says.
#
# It changes nothing on the device: neither how many tokens fit there nor how a step is computed.
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
# The host's memory is looked at before and after the start, as the tier pins its share at once.

# %%
before = experiments.second_tier_gib(run)
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
# The device's own prefix cache first; it is the first tier.

# %%
run.check_server()
run.examples("prefix_cache")

# %% [markdown]
# ### Sessions that come back
#
# Sessions are opened, others push them out of the device's cache, and then the first ones return. Counters tell from
# where their prefixes came.

# %%
experiments.returning_sessions(run)

# %% [markdown]
# ### Host memory
#
# What the tier takes, by what was in use before the servers were started and now.

# %%
experiments.second_tier_grew(run, before)

# %% [markdown]
# ### Decoding beside it
#
# Copies run beside the decode steps. The curve is kept to be compared with the recipe without a second tier.

# %%
steps = experiments.decode_steps(run)
answers = experiments.answers(run)
judging.same_answers(run, "b300_tp8", answers)
run.picture("Decode step by batch, with a second tier", {"KV offload": steps})

# %% [markdown]
# ## Evidence
#
# Counters before and after stand in the checks. A folder that stood for host memory in a rehearsal is removed with the
# servers.

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
# No hits of the second tier, though sessions return: look whether prefix caching is on, and whether the hash seed is
# the same in all processes. Beside that:

# %%
run.troubleshooting()

# %% [markdown]
# ## References

# %%
run.references()

# %%
run.finish()
