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
# # VR200 (preview): tensor parallel 8 on two trays
#
# The Blackwell flags in an image for CUDA 13.4, on two VR200 trays. A preview: nobody has tuned or verified it on
# Rubin.

# %% tags=["parameters"]
model: str = "moonshotai/Kimi-K3.1-Pro"  # hub name or folder to load; with base_url, the name that is served
revision: str = ""  # commit of the model repository to pin; empty takes its newest
base_url: str = ""  # address of a server that already runs, for example http://127.0.0.1:8000
port: int = 8000  # port for the server that is launched
ready_timeout_s: float = 3600  # bound on the server's start, in seconds
request_timeout_s: float = 600  # bound on one request, in seconds
rehearse: bool = False  # cut the recipe down to this machine's CPU

# %%
from cookbook import experiments, judging
from cookbook.session import open_run

run = open_run("vr200_tp8", globals())
run.about()

# %% [markdown]
# ## Why this layout
#
# It is the layout of two GB300 trays, unchanged, and it is here so that whoever has the first trays need not start from
# nothing. That the image and the layout exist is published; that they run well is not.
#
# Take it to find out. Each check that passes on your trays is news, and each that fails is too.
#
# Do not take it for anything that others depend on. What it costs to be early: kernels may be those of another
# generation, nothing is known of how much memory is left, and features that are tuned for Blackwell are left out.
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
# Watch the phases: a kernel that does not exist for this generation shows at warm-up, minutes after the weights were
# read.

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
# With no published figure there is no bar to reach. What follows is measured and kept.

# %%
run.check_server()
run.examples("prefix_cache")

# %% [markdown]
# ### The attention backend
#
# On a new generation the first question is which kernels were picked.

# %%
judging.seen_in_log(
    run,
    "attention_backend",
    "An attention backend is named",
    r"using \S+ (attention )?backend",
    expected="the backend by its name",
    not_on_cpu="vLLM's CPU backend does not name it in the log.",
)

# %% [markdown]
# ### First curves
#
# For whoever comes second.

# %%
server, client = experiments.first_tokens(run)
steps = experiments.decode_steps(run)
answers = experiments.answers(run)
run.picture("Decode step by batch, untuned", {"VR200 trays": steps})

# %% [markdown]
# ### First percentiles

# %%
experiments.put_under_load(run)

# %% [markdown]
# ## Evidence
#
# Please send it in, passed or failed. CONTRIBUTING says how.

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
# Nothing was reported for this hardware yet. What is known comes from its predecessors:

# %%
run.troubleshooting()

# %% [markdown]
# ## References

# %%
run.references()

# %%
run.finish()
