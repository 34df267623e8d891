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
# # TPU v7x: TEP32 with DCP8, as validated
#
# The validated sizing on a v7x slice once more, with the cache cut over eight devices. The second of the two
# configurations that were tried on this hardware.

# %% tags=["parameters"]
model: str = "moonshotai/Kimi-K3.1-Pro"  # hub name or folder to load; with base_url, the name that is served
revision: str = ""  # commit of the model repository to pin; empty takes its newest
base_url: str = ""  # address of a server that already runs, for example http://127.0.0.1:8000
port: int = 8000  # port for the server that is launched
ready_timeout_s: float = 3600  # bound on the server's start, in seconds
request_timeout_s: float = 600  # bound on one request, in seconds
rehearse: bool = False  # cut the recipe down to this machine's CPU
gsm8k: str = ""  # file of GSM8K questions as JSON lines; empty takes those of the hub
beam_1m: str = ""  # file of BEAM-1M as JSON lines of "prompt" and "answer"; empty asks none

# %%
from cookbook import experiments, judging
from cookbook.session import open_run

run = open_run("tpu_v7x_tep32_dcp8", globals())
run.about()

# %% [markdown]
# ## Why this layout
#
# Without the cut, each device of the group keeps the whole latent cache. With it, eight devices share one copy, and the
# slice has room for several times the tokens. What is published is that the answers stay as good.
#
# Take it as the step between the first validated preset and a sizing of your own with long contexts: it shows that the
# cut works on your build, at a size where that is quickly seen.
#
# Leave it if the first preset has not run yet. Two unknowns at once are hard to tell apart.
#
# What the cut costs in time on this hardware no source says.
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
# As without the cut, but with one more group among the devices to be formed.

# %%
base_url = run.start()
run.timeline()

# %% [markdown]
# ## Client
#
# The chat examples come first, as a fault of the cut would already garble these.

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
# The claim on tokens under such a cut is of GPUs; the arithmetic differs here.

# %%
run.check_server()
run.examples("prefix_cache")

# %% [markdown]
# ### Group and cut, as the log shows them

# %%
experiments.one_group(run, "The slice is one group, cut for decoding", r"world[ _]size\W+32", expected="world size 32")

# %% [markdown]
# ### GSM8K with the cut
#
# Its own published figure, slightly below that of the other preset.

# %%
experiments.accuracy(run, "tpu_dcp8_gsm8k", against="tpu_v7x_tep32", points=0.5)

# %% [markdown]
# ### Hits in a cut cache
#
# The blocks of a prefix now lie on eight devices, and have to come back in the right order.

# %%
experiments.identical_after_a_hit(run)

# %% [markdown]
# ### Needles
#
# At every depth, as each depth lies on another device.

# %%
experiments.needles(run)
experiments.beam(run)

# %% [markdown]
# ### Tokens of both presets

# %%
answers = experiments.answers(run)
judging.same_answers(run, "tpu_v7x_tep32", answers, flag="--decode-context-parallel-size")

# %% [markdown]
# ## Evidence
#
# Compare with the folder of the first preset: only the cut differs.

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
# If answers are good there and bad here, the cut is the cause; report it with both folders.

# %%
run.troubleshooting()

# %% [markdown]
# ## References

# %%
run.references()

# %%
run.finish()
