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
# # B300: speculative decoding with DSpark
#
# A small draft model proposes several tokens, and Kimi-K3.1-Pro checks them in a single step. Where the draft is right,
# one step brings several tokens.

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

run = open_run("b300_spec_decoding", globals())
run.about()

# %% [markdown]
# ## Why this layout
#
# A decode step of few sequences reads nearly all active weights to produce one token for each. Checking all proposed
# tokens reads the same weights once, so each accepted one comes almost for free.
#
# Take it for few sequences and for text that a draft can foresee: code, mathematics, forms. The model card of the draft
# gives accepted lengths by kind of text, and they differ by more than half.
#
# Leave it when the batch is large, as checking then costs time that other sequences could have used, and with pipeline
# parallelism, which it refuses. The draft has weights and a cache of its own on the devices, so fewer tokens of the
# model fit.
#
# What is said does not depend on the draft: a token that the model would not have drawn is rejected.
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
# Two models are loaded, the draft after the target.

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
# With a draft fewer tokens fit, and none of the published figures is about that.

# %%
run.check_server()
run.examples("prefix_cache")

# %% [markdown]
# ### Accepted length
#
# Questions of GSM8K are asked as the draft's card did, at temperature one. Name a file of them in the parameter
# `gsm8k`; the bundled sums only show that the counters move.

# %%
experiments.drafts(run)

# %% [markdown]
# ### Steps with the draft

# %%
drafted = experiments.decode_steps(run)
drafted_answers = experiments.answers(run)

# %% [markdown]
# ### The same server without the draft

# %%
run.restart(without="spec_decoding")
plain = experiments.decode_steps(run, "decode_step_without")
plain_answers = experiments.answers(run)
run.picture("Time of a token by batch", {"With the draft": drafted, "Without it": plain})

# %% [markdown]
# ### No other answers
#
# At temperature 0 the draft must not show in the tokens, but for near ties.

# %%
judging.same_with_and_without(run, "the draft", drafted_answers, plain_answers, flag="--speculative-config")

# %% [markdown]
# ## Evidence
#
# The accepted length stands in the table with the counts that it comes from.

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
# A length near one says that the draft does not fit the model: look at which draft was loaded, and for which target it
# was trained.

# %%
run.troubleshooting()

# %% [markdown]
# ## References

# %%
run.references()

# %%
run.finish()
