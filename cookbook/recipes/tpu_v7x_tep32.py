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
# # TPU v7x: TEP32, as validated
#
# A v7x slice of sixteen chips on four hosts, as one group of thirty-two devices with the sizing that was validated: a
# context of some ten thousand tokens and sixteen sequences.

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
from cookbook import experiments
from cookbook.session import open_run

run = open_run("tpu_v7x_tep32", globals())
run.about()

# %% [markdown]
# ## Why this layout
#
# Of the TPU recipes this is the one with a published accuracy behind it. Attention lies over all thirty-two devices,
# the experts are spread, the latent cache is FP8, and one pool of blocks serves both kinds of layers.
#
# Take it to see whether your slice and your build do what was validated, before you change anything. The sizing is
# small for that reason.
#
# Leave it for real traffic: sixteen short sequences do not fill a slice. The general TPU recipe has a longer context,
# and no validation.
#
# It is text only, so images are refused. The parsers for tools and reasoning are on by default and were not exercised
# in the validation. Speculative decoding is gated off until a fix is merged. The build is from a branch, as the
# commands show.
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
# Programs for each size are compiled at the start, which takes long and is why the limit is wide.

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
# The vision tower is not loaded. An image has to get a clear refusal, and the server has to live on.

# %%
run.examples("image", "long_input", "many_clients", "cancelled")

# %% [markdown]
# ## Checks
#
# Figures on tokens are published for other hardware only.

# %%
run.check_server()
run.examples("prefix_cache")

# %% [markdown]
# ### The slice, as the log shows it

# %%
experiments.one_group(run, "One group over the slice", r"world[ _]size\W+32", expected="world size 32")

# %% [markdown]
# ### GSM8K
#
# The published accuracy of this sizing.

# %%
experiments.accuracy(run, "tpu_gsm8k")

# %% [markdown]
# ### A prefix-cache hit changes nothing
#
# It was published that hits give identical tokens and log-probabilities. The same prompt twice, compared number by
# number.

# %%
experiments.identical_after_a_hit(run)

# %% [markdown]
# ### Long contexts
#
# With this sizing, the texts end where the context does; the benchmark of a million tokens does not fit into it.

# %%
experiments.needles(run)
experiments.beam(run)

# %% [markdown]
# ## Evidence
#
# The name of the branch is no version: note the commit of the plugin beside this folder.

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
# Host memory that runs out at loading and slow prefill have the same kind of cause, a setting that fell back to its
# default.

# %%
run.troubleshooting()

# %% [markdown]
# ## References

# %%
run.references()

# %%
run.finish()
