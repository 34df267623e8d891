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
# # GB300: tensor parallel 8 on two trays
#
# Two GB300 trays of four GPUs each, joined to one group of eight by NVLink. It is the baseline of a GB300 rack.

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
from cookbook import experiments
from cookbook.session import open_run

run = open_run("gb300_tp8", globals())
run.about()

# %% [markdown]
# ## Why this layout
#
# A tray alone does not hold the weights. Two do, and as NVLink reaches over both trays, the group of eight behaves like
# one node: the same layout as on B300, spread over two hosts.
#
# Take it as the smallest deployment of a rack, and run it once before anything else there. The NVFP4 cache, the prefill
# and decode pools and every change of yours are then held against its figures.
#
# What it costs is what tensor parallelism costs everywhere, eight copies of the latent cache; and two hosts that have
# to start together, see each other, and be stopped together. When one tray fails, the whole group is gone.
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
# The head waits for the other tray. Start the command of rank one there; here, both ranks of a rehearsal are processes
# of this machine.

# %%
base_url = run.start()
run.timeline()

# %% [markdown]
# ## Client
#
# Clients only ever speak to the head. The other rank listens to nobody.

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
# No figure is published on how many tokens fit on these trays, so that check says so and the picture below shows the
# arithmetic.

# %%
run.check_server()
run.examples("prefix_cache")

# %% [markdown]
# ### The group, as the log shows it
#
# Each worker writes which rank it has, in a world of how many.

# %%
experiments.one_group(
    run,
    "The group spans all workers",
    r"in world size 8 is assigned .*TP rank [4-7]",
    expected="world size 8, ranks on both trays",
)
run.capacity("gb300_tp8", "gb300_nvfp4_kv")

# %% [markdown]
# ### Curves for the rack
#
# Taken as on every page: prompts one at a time, then batches that decode together.

# %%
server, client = experiments.first_tokens(run)
steps = experiments.decode_steps(run)
answers = experiments.answers(run)
run.picture("Time to first token on two trays", {"Server": server, "Client alone": client}, log_x=True)

# %% [markdown]
# ### Decode steps over two trays

# %%
run.picture("Decode step by batch on two trays", {"Two trays": steps})

# %% [markdown]
# ### GSM8K
#
# The figure of this FP8 cache is what the NVFP4 recipe is compared with.

# %%
experiments.accuracy(run, "fp8_gsm8k")

# %% [markdown]
# ## Evidence
#
# The accuracy, the curves and the answers in this folder are the baseline of two other recipes.

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
# A start that hangs is nearly always the network: the wrong interface, or a port that the trays do not reach. What else
# was reported:

# %%
run.troubleshooting()

# %% [markdown]
# ## References

# %%
run.references()

# %%
run.finish()
