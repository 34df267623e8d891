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
# # GB300: prefill/decode disaggregation
#
# Two pools of GB300 trays and a router. One pool only reads prompts, the other only writes answers, and the cache of
# each request moves between them over NIXL.

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

run = open_run("gb300_pd", globals())
run.about()

# %% [markdown]
# ## Why this layout
#
# Reading a prompt and writing an answer want different things. A long prompt that is read in the middle of other
# people's answers makes them stutter; two pools keep them apart, and each gets the layout that suits it: tensor and
# expert parallel for prefill, many small data-parallel groups with spread experts for decode.
#
# Take it at scale, when prompts are long, answers have to flow evenly, and traffic is steady enough that both pools
# have work. Then each pool is also sized by itself.
#
# Leave it for a rack that is half idle, or for a single pair of trays. It takes six trays, a fast network with RDMA
# between them, and one more thing that can fail. Every request pays for a transfer before its second token.
#
# Every worker has to keep its convolution states in the layout that the transfer reads, or the connector refuses to
# start.
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
# Both pools start at once, and the router once they are ready. On the hardware this page runs on the first prefill
# node; the commands of the others are above.

# %%
base_url = run.start()
run.timeline()

# %% [markdown]
# ## Client
#
# Clients speak to the router and notice nothing of the pools.

# %%
run.curl()
run.examples("chat", "streaming", "reasoning", "anthropic_messages")

# %% [markdown]
# ### Tools and structured answers
#
# The router passes requests on field by field, and drops those that it does not know.

# %%
run.examples("tool_call", "tool_turns", "streamed_tool_call", "structured_output")

# %% [markdown]
# ### Images, long prompts, many clients

# %%
run.examples("image", "long_input", "many_clients", "cancelled")

# %% [markdown]
# ## Checks
#
# Readiness is that of the router and of every engine behind it.

# %%
run.check_server()
run.examples("prefix_cache")

# %% [markdown]
# ### Prefill, then decode
#
# The counters of both pools before and after a few requests: who read the prompts, who wrote the answers, and how many
# transfers there were between.

# %%
answers = experiments.prefill_then_decode(run)

# %% [markdown]
# ### The output of one server
#
# On the previous model, disaggregation was reported to give wrong output without an error. So the tokens are compared
# with those of a server that does both by itself.

# %%
experiments.same_as_alone(run, answers)

# %% [markdown]
# ### Under load through the router

# %%
experiments.put_under_load(run)

# %% [markdown]
# ### When prefill is down
#
# The pool is stopped, and a request is sent. What has to come is an error, soon. This is the last thing on the page, as
# nothing works after it.

# %%
experiments.without_prefill(run)

# %% [markdown]
# ## Evidence
#
# The record has the commands of all processes, and a log for each of them.

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
# Look at the decode side's log first: a transfer that failed is told there, and so is a prefill pool of another layout.
# Known beside that:

# %%
run.troubleshooting()

# %% [markdown]
# ## References

# %%
run.references()

# %%
run.finish()
