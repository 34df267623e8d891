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
# # B300: expert parallel with MegaMoE
#
# The same B300 node, with the experts of the mixture spread over the GPUs as wholes. A prompt of hundreds of thousands
# of tokens then has its first token sooner.

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

run = open_run("b300_tep", globals())
run.about()

# %% [markdown]
# ## Why this layout
#
# Under plain tensor parallelism every GPU holds a slice of every expert, and each slice is a small matrix that a long
# prefill cannot fill. Here a GPU holds whole experts, tokens travel to them over NVLink, and one kernel both moves and
# computes (MegaMoE).
#
# Take it for long prompts that come one at a time: a repository, a book, a long transcript, asked about once. The
# published figure is of one request at a time on a checkpoint from before the release.
#
# Leave it where decode steps of few sequences matter most: low-latency decode refuses expert parallelism. And where
# many short requests come at once, measure before you choose, as no figure is published for that.
#
# What it costs: which experts a prompt asks for decides how evenly the GPUs work, and the exchange needs all of them in
# one NVLink domain.
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
# The log names the backend of the experts while it loads; a check below reads it there.

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
# Beside readiness and identity: nothing is published on how many tokens fit with this layout, so that check says so.

# %%
run.check_server()
run.examples("prefix_cache")

# %% [markdown]
# ### Expert parallelism, as the log names it
#
# A flag that was taken proves little. The engine says for itself how the experts lie, and which kernel computes them.

# %%
judging.seen_in_log(
    run,
    "expert_parallel",
    "Experts are spread over the GPUs",
    r"EP rank 0(/8)?[],].*|Expert parallelism is enabled",
    expected="expert parallelism is enabled, with its ranks",
    flag="--enable-expert-parallel",
    source="vllm_0_33",
)
judging.seen_in_log(
    run,
    "moe_backend",
    "Experts are computed by MegaMoE",
    r"mega[_ ]?moe",
    expected="MegaMoE is named as the backend",
    flag="--moe-backend",
    source="vllm_0_33",
)

# %% [markdown]
# ### One very long prompt
#
# The published claim is about one prompt of hundreds of thousands of tokens, sent alone. A prompt of that length goes
# first without being counted, since a fresh server compiles kernels for minutes at the first one.

# %%
server, client = experiments.first_tokens(run)
longest = server.points[-1]
title = "First token of the longest prompt"
judging.judge(run, "long_prompt_ttft", title, feature_checks.at_most, longest.values)
judging.against(
    run,
    "b300_tp8",
    "long_prompt_ttft",
    f"{title}, below TP8",
    feature_checks.less_than,
    server,
    name="long_prompt_ttft_tp8",
    at=longest.x,
)
curves = {"Expert parallel": server, "Client alone": client}
run.picture("Time to first token by length of the prompt", curves, claim="long_prompt_ttft", at=340_000, log_x=True)

# %% [markdown]
# ### What it does to decoding
#
# No figure is published. The curve is kept, so that a later run of this or another recipe can be held against it.

# %%
steps = experiments.decode_steps(run)
answers = experiments.answers(run)
judging.same_answers(run, "b300_tp8", answers, flag="--enable-expert-parallel")
run.picture("Decode step by batch, experts spread", {"Expert parallel": steps})

# %% [markdown]
# ## Evidence
#
# The table holds every check with its source. Curves and answers lie in `evidence.json`, where `cookbook evidence
# compare` finds them.

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
# Slow first requests are no fault: look at the second one of the same length. What else is known of this layout:

# %%
run.troubleshooting()

# %% [markdown]
# ## References

# %%
run.references()

# %%
run.finish()
