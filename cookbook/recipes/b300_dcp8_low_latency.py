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
# # B300: low-latency decode with DCP8
#
# The cut cache and the fused decode step together, on one B300 node: many long sessions, and steps that are claimed to
# come near those of plain tensor parallelism.

# %% tags=["parameters"]
model: str = "moonshotai/Kimi-K3.1-Pro"  # hub name or folder to load; with base_url, the name that is served
revision: str = ""  # commit of the model repository to pin; empty takes its newest
base_url: str = ""  # address of a server that already runs, for example http://127.0.0.1:8000
port: int = 8000  # port for the server that is launched
ready_timeout_s: float = 3600  # bound on the server's start, in seconds
request_timeout_s: float = 600  # bound on one request, in seconds
rehearse: bool = False  # cut the recipe down to this machine's CPU

# %%
from cookbook import experiments, feature_checks, judging
from cookbook.session import open_run

run = open_run("b300_dcp8_low_latency", globals())
run.about()

# %% [markdown]
# ## Why this layout
#
# Decode context parallelism makes room and lengthens the step; the fused path shortens it. Together they are what a
# node of agents wants: hundreds of long histories held at once, and a reply that does not drag.
#
# Prefer plain low-latency decode when the cache of the baseline suffices, for then the exchange between the GPUs is
# only a cost. Prefer plain decode context parallelism when batches are large, as the fused path serves small ones.
#
# The price is in the conditions: those of both parts hold at once, so the group, the cut and the graphs are all fixed,
# and neither expert parallelism nor a large draft can be added.
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
# Two features that must agree: if they do not, the engine refuses within seconds, before the weights are read.

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
#
# One token over the context has to be refused also where a request is spread over eight GPUs.

# %%
run.examples("image", "long_input", "many_clients", "cancelled")

# %% [markdown]
# ## Checks
#
# The cut alone decides how many tokens fit, so the claim is that of decode context parallelism.

# %%
run.check_server()
run.examples("prefix_cache")

# %% [markdown]
# ### Both paths, as the log shows them

# %%
experiments.specialised_path(run)
judging.more_tokens(run, "b300_tp8", "dcp_times_tp8", "Tokens that fit, against plain TP8")

# %% [markdown]
# ### Decode steps against plain tensor parallelism
#
# The claim: within a few per cent. The baseline's evidence is named in the check.

# %%
steps = experiments.decode_steps(run)
answers = experiments.answers(run)
title = "Decode step against plain TP8"
judging.against(run, "b300_tp8", "low_latency_dcp8", title, feature_checks.at_most_times, steps)
run.picture("Decode step by batch, cut and fused", {"DCP8 with low-latency decode": steps})

# %% [markdown]
# ### Answers
#
# Two changes to the arithmetic of a step at once, so its tokens are held against the plain layout's.

# %%
judging.same_answers(run, "b300_tp8", answers, flag="--decode-context-parallel-size")

# %% [markdown]
# ## Evidence
#
# Compare this folder with that of either feature alone to see which of the two moved something.

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
# Take one feature away at a time until the fault is gone; both recipes exist alone. What is known:

# %%
run.troubleshooting()

# %% [markdown]
# ## References

# %%
run.references()

# %%
run.finish()
