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
# # Zhenwu M890: TP8, DP4, EP32
#
# Four nodes of eight M890 each. Every node answers by itself as a tensor-parallel group, and all thirty-two devices
# share the experts.

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
from cookbook import experiments, judging
from cookbook.session import open_run

run = open_run("ppu_m890_dep32", globals())
run.about()

# %% [markdown]
# ## Why this layout
#
# Attention is cheap to repeat and experts are not. So each node keeps a whole attention, with a cache of its own, while
# the experts are spread over all nodes: four groups side by side, meeting only where experts are asked.
#
# Take it for throughput: four caches, four batches, one address. The head spreads requests over the groups.
#
# Leave it where one request has to be as fast as possible, for a request only ever has one node's attention. A prefix
# is found again only on the node that has it, so a repeated prompt may have to be read once on each.
#
# Its cost is the exchange between all nodes at every layer with experts; and that all of them have to be up, as each
# holds experts that no other has.
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
# The head starts its own group and waits for the other three.

# %%
base_url = run.start()
run.timeline()

# %% [markdown]
# ## Client
#
# One address for all four groups.

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
# Each group has a cache of its own. A prompt is therefore sent once more than there are groups, so that one of them
# sees it again.

# %%
run.check_server()
run.examples("prefix_cache")

# %% [markdown]
# ### Groups and ranks, as the log shows them

# %%
judging.seen_in_log(
    run,
    "layout",
    "Groups side by side",
    run.sizes(r"in world size 32 is assigned as DP rank 0,.*EP rank", rehearsal=r"EngineCore_DP1 .*DP group leader"),
    expected=run.sizes("world size 32, with data- and expert-parallel ranks", rehearsal="a second data-parallel rank"),
)

# %% [markdown]
# ### Load on all groups
#
# With fewer requests than groups some of them would idle.

# %%
experiments.put_under_load(run)

# %% [markdown]
# ### GSM8K, without a bar
#
# Nothing is published to hold it against.

# %%
experiments.accuracy(run)

# %% [markdown]
# ### Steps of the groups together

# %%
steps = experiments.decode_steps(run)
run.picture("Decode step by batch, spread over groups", {"M890": steps})

# %% [markdown]
# ## Evidence
#
# The table tells of one head; the logs of the other nodes lie on those nodes.

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
# A group that does not join keeps all others waiting: look on its node first. Known problems of such layouts:

# %%
run.troubleshooting()

# %% [markdown]
# ## References

# %%
run.references()

# %%
run.finish()
