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
# # B300: decode context parallel 8
#
# One B300 node whose eight GPUs cut the KV cache among them and no longer keep a copy each. Several times as many
# tokens are claimed to fit.

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

run = open_run("b300_dcp8", globals())
run.about()

# %% [markdown]
# ## Why this layout
#
# The latent of this model's attention is the same for all heads, so tensor parallelism alone copies it to every GPU.
# Decode context parallelism gives each GPU an eighth of the tokens instead; at every decode step each attends to its
# part, and the partial results are exchanged.
#
# Take it for very long contexts, and for many sessions that live long: agents with a long history, assistants whose
# users come back within the hour. What does not have to be evicted does not have to be computed again.
#
# Leave it where few short requests have to be answered as quickly as possible. The exchange makes each decode step
# longer by a published share, which is checked below; prefill stays as fast. Should both matter, the recipe with
# low-latency decode on top of this one takes most of that back.
#
# The state of the linear-attention layers is not cut, so the gain stays somewhat below the number of GPUs.
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
# Which sparse attention backend the image picks under this layout no source says. It is named in the phases or in the
# log.

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
# The claim on tokens is the heart of this recipe; the line comes out of the engine's own log.

# %%
run.check_server()
run.examples("prefix_cache")

# %% [markdown]
# ### Tokens against tensor parallel 8
#
# The ratio is taken from a run of the baseline on the same hardware, image and version, which is named. Without such a
# run there is no verdict.

# %%
judging.more_tokens(run, "b300_tp8", "dcp_times_tp8", "Tokens that fit, against TP8")
run.capacity("b300_tp8", "b300_dcp8")

# %% [markdown]
# ### Decode steps
#
# What the exchange costs, at each batch.

# %%
steps = experiments.decode_steps(run)
title = "Decode step against TP8 at the same batch"
judging.against(run, "b300_tp8", "dcp_decode_step", title, feature_checks.at_most_times, steps)
run.picture("Decode step by batch, cache cut in eight", {"DCP8": steps})

# %% [markdown]
# ### Prefill
#
# A prompt has to be read as quickly as without the cut.

# %%
server, client = experiments.first_tokens(run)
judging.against(run, "b300_tp8", "dcp_prefill", "Prefill against TP8", feature_checks.at_most_times, server)
run.picture("Time to first token, cache cut in eight", {"DCP8": server, "Client alone": client}, log_x=True)

# %% [markdown]
# ### The same answers
#
# A cut cache must not change what is said. At temperature 0 the tokens are compared with those of the baseline. Sums
# over eight parts are added up in another order, so a near tie may fall the other way; the check says how much of that
# it allows.

# %%
answers = experiments.answers(run)
judging.same_answers(run, "b300_tp8", answers, flag="--decode-context-parallel-size")

# %% [markdown]
# ## Evidence
#
# Where a check reads "no baseline", run the recipe that it names on this machine and then this one again.

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
# Gibberish or a refusal at the start point at the attention backend: compare an answer with the baseline's before you
# look elsewhere.

# %%
run.troubleshooting()

# %% [markdown]
# ## References

# %%
run.references()

# %%
run.finish()
