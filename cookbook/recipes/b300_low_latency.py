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
# # B300: low-latency decode
#
# Fused kernels for decode steps of few sequences on one B300 node. The server is started twice, with them and without,
# so both figures come from one machine on one day.

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

run = open_run("b300_low_latency", globals())
run.about()

# %% [markdown]
# ## Why this layout
#
# A decode step of one sequence is hundreds of small kernels, and the time goes into starting them. The specialised path
# fuses the step into a few kernels; prefill, and steps in which prompts and answers mix, keep the usual path.
#
# Take it where someone waits for each token: a coding assistant, a voice, an agent whose next step hangs on the last
# one. The published gain is largest for a single sequence and smaller at a few dozen.
#
# Leave it with expert parallelism, which it refuses, or where the batch is large all day. It serves batches of up to
# eight one by one, and some round ones above; a batch between them falls back to the usual path without a word.
#
# It costs no memory to speak of. It needs what the defaults are: the second model runner, full graphs for decode steps,
# and a group of eight.
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
# Graphs are captured for each batch that the fused path serves, which shows as a phase of its own.

# %%
base_url = run.start()
run.timeline()

# %% [markdown]
# ## Client
#
# The examples run against the fused path, so a fault in it would show as a wrong answer here.

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
# The number of tokens that fit should not move, as the path changes how a step is computed and not what is kept.

# %%
run.check_server()
run.examples("prefix_cache")

# %% [markdown]
# ### The specialised path, as the log shows it
#
# Only the log tells whether the fused kernels are at work. The line that repeats the command does not count.

# %%
experiments.specialised_path(run)

# %% [markdown]
# ### With it

# %%
fused = experiments.decode_steps(run)
fused_answers = experiments.answers(run)

# %% [markdown]
# ### Without it
#
# The same server again, without this one feature.

# %%
run.restart(without="low_latency")
plain = experiments.decode_steps(run, "decode_step_without")
plain_answers = experiments.answers(run)

# %% [markdown]
# ### One against the other
#
# A ratio of medians, and beside it the range that the repetitions allow. A ratio inside that range of noise would prove
# nothing.

# %%
title = "Decode step at batch"
judging.judge(run, "low_latency_batch_1", f"{title} 1", feature_checks.times_faster, fused, plain, at=[1])
judging.judge(run, "low_latency_batch_32", f"{title} 32 and 64", feature_checks.times_faster, fused, plain, at=[32, 64])
curves = {"Low-latency decode": fused, "Without it": plain}
run.picture("Decode step by batch, with and without", curves, claim="low_latency_batch_1", at=1)

# %% [markdown]
# ### The same answers from both
#
# Fused kernels round at other places. The beginnings of the answers have to agree.

# %%
judging.same_with_and_without(run, "low-latency decode", fused_answers, plain_answers, flag="--additional-config")

# %% [markdown]
# ## Evidence
#
# Both commands and both curves are in the record, so the comparison can be looked at again without the machine.

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
# A refusal at the start names the condition that is not met: a group of another size, expert parallelism, or graphs
# switched off. Of builds for the previous model it is known that:

# %%
run.troubleshooting()

# %% [markdown]
# ## References

# %%
run.references()

# %%
run.finish()
