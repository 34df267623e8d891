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
# # TPU v7x: tensor and expert parallel
#
# The general TPU recipe: a v7x slice with the long context of the model, and sizing that nobody has validated.

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

run = open_run("tpu_v7x_tep", globals())
run.about()

# %% [markdown]
# ## Why this layout
#
# The two validated presets show that the model runs right; this one is what you would serve with. Layout and kernels
# are the same, while context and number of sequences are those of the general strategy.
#
# Take it after a preset has passed on your slice, and watch memory and compile times, as both grow with the context.
#
# Leave it if the presets' sizing is enough for you, since only they have a published accuracy. For images take other
# hardware.
#
# What it costs is time at the start, and that every figure on this page is the first of its kind.
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
# A longer context means more programs to compile. Allow for that in the time limit.

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
# The longest prompt here nearly fills the context, which on this hardware is the part least tried.

# %%
run.examples("image", "long_input", "many_clients", "cancelled")

# %% [markdown]
# ## Checks
#
# Whatever fits, fits: no claim is made for this sizing.

# %%
run.check_server()
run.examples("prefix_cache")

# %% [markdown]
# ### Ranks of the slice

# %%
experiments.one_group(run, "Thirty-two devices in one group", r"world[ _]size\W+32", expected="world size 32")

# %% [markdown]
# ### BEAM-1M and needles
#
# Published: the benchmark of a million tokens gave what the GPU reference gave. It is run where its data is at hand,
# named in a parameter; the needles run always.

# %%
experiments.beam(run)
experiments.needles(run)

# %% [markdown]
# ### Hits

# %%
experiments.identical_after_a_hit(run)

# %% [markdown]
# ### GSM8K at this sizing
#
# The accuracy should not depend on the sizing; the published figure is of the same layout.

# %%
experiments.accuracy(run, "tpu_gsm8k")

# %% [markdown]
# ### Steps and first tokens

# %%
server, client = experiments.first_tokens(run)
steps = experiments.decode_steps(run)
run.picture("Time to first token on the slice", {"Slice": server, "Client alone": client}, log_x=True)

# %% [markdown]
# ### Batches of the slice

# %%
run.picture("Decode step by batch on the slice", {"Slice": steps})

# %% [markdown]
# ## Evidence
#
# With the commit of the plugin noted, this folder is worth sending in.

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
# Go back to a preset when something fails: if it passes there, the sizing is at fault.

# %%
run.troubleshooting()

# %% [markdown]
# ## References

# %%
run.references()

# %%
run.finish()
