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
# # Zhenwu 810E: tensor and expert parallel 32
#
# Two nodes of sixteen 810E each, one group of thirty-two. The experts are stored in four bits and computed with
# sixteen-bit activations.

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

run = open_run("ppu_810e_tp32", globals())
run.about()

# %% [markdown]
# ## Why this layout
#
# The 810E computes no four-bit activations, so the experts' weights stay in four bits and are unpacked as they are
# used. Thirty-two devices share every attention layer, and the experts are spread over them as wholes.
#
# Take it if these are your nodes; there is one layout for them, and this is it. Speculative decoding is off on this
# hardware.
#
# What it costs: a group that spans two nodes meets at every layer, so the network between them sets the pace of each
# token. The context and the cache have no published figures here.
#
# The image is named for each hardware configuration by whoever supplies it, and no name is public.
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
# Rank one is started on the second node with the command above.

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
# The plugin keeps no checkpoints of the state within a prefill, which limits what the prefix cache finds again.

# %%
run.check_server()
run.examples("prefix_cache")

# %% [markdown]
# ### Thirty-two ranks, as the log shows them

# %%
experiments.one_group(
    run, "One group over both nodes", r"in world size 32 is assigned .*TP rank", expected="world size 32"
)
judging.seen_in_log(
    run,
    "moe_backend",
    "Experts computed as W4A16",
    r"w4a16",
    expected="W4A16 is named",
    flag="--moe-backend",
    source="vllm_sail",
)

# %% [markdown]
# ### Accuracy
#
# No figure is published for this hardware. The result is kept, with its interval, for the next build to be held
# against.

# %%
experiments.accuracy(run)

# %% [markdown]
# ### Speed, for the record

# %%
steps = experiments.decode_steps(run)
answers = experiments.answers(run)
run.picture("Decode step by batch over two nodes", {"810E": steps})

# %% [markdown]
# ## Evidence
#
# Keep the folder of each build of the plugin: nothing else tells whether the next one is better.

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
# Start with the plugin: is it loaded, and for this version of vLLM? Then what is known of the layout:

# %%
run.troubleshooting()

# %% [markdown]
# ## References

# %%
run.references()

# %%
run.finish()
