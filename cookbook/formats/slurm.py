"""A deployment as one sbatch file, which starts every role on its nodes and ends when the first of them ends."""

from __future__ import annotations

from collections.abc import Iterator

from cookbook.catalog import Catalog
from cookbook.deployment import Deployment, Process
from cookbook.formats.words import argument_words, comment, header, quote, unsure

__all__ = ["render"]

PREAMBLE = """\
set -euo pipefail

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
logs=${COOKBOOK_LOGS:-$PWD/$SLURM_JOB_NAME-$SLURM_JOB_ID}
mkdir -p "$logs"

# The address by which Slurm reaches a node. To take another network, set the variables below before sbatch.
address() { scontrol show node --oneliner "$1" | tr ' ' '\\n' | sed -n 's/^NodeAddr=//p'; }

# The steps by the pid of their srun.
declare -A names

# start NAME NODE OPTIONS -- VARIABLE=VALUE … COMMAND …: one step on one node, its output in a file of its own.
start() {
    local name=$1 node=${nodes[$2]} options=()
    shift 2
    while [[ $1 != -- ]]; do options+=("$1"); shift; done
    shift
    srun --job-name="$name" --nodes=1 --ntasks=1 --nodelist="$node" --overlap --kill-on-bad-exit=1 \\
        --output="$logs/$name.log" "${options[@]}" ${container[@]+"${container[@]}"} env "$@" &
    names[$!]=$name
    echo "$name: on $node, log $logs/$name.log"
}

# With CONTAINER_IMAGE set, every step runs in it (pyxis and enroot).
container=()
if [[ -n ${CONTAINER_IMAGE-} ]]; then
    cache=${HF_HOME:-$HOME/.cache/huggingface}
    container=(--container-image="$CONTAINER_IMAGE" --container-mounts="$cache:/root/.cache/huggingface")
fi

# Whatever ends this script ends its steps.
trap 'trap - EXIT; kill $(jobs -p) 2> /dev/null || true; wait' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
"""

END = """\

# The first step that ends, ends the job: a deployment of which a part is gone serves nobody.
code=0
wait -n || code=$?
for pid in "${!names[@]}"; do
    kill -0 "$pid" 2> /dev/null || echo "${names[$pid]} ended with code $code; its log says why." >&2
done
exit "$code"
"""


def render(catalog: Catalog, deployment: Deployment) -> str:
    """The text of a file for sbatch. Partition, account and time limit are given on its command line."""
    vendor = catalog.vendors[catalog.hardware[deployment.hardware].vendor]
    devices = max(process.devices for process in deployment.processes)
    lines = [
        "#!/usr/bin/env bash",
        f"#SBATCH --job-name=kimi-k31-{deployment.recipe}",
        f"#SBATCH --nodes={deployment.nodes}",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --exclusive",
        "#SBATCH --no-requeue",
    ]
    if vendor.slurm and devices:
        lines.append(f"#SBATCH --gres={vendor.slurm.name}:{devices}")
    lines += [
        "#SBATCH --output=%x-%j.log",
        comment("Partition, account and time are yours to add: sbatch --partition=… --time=… FILE"),
        *header(deployment),
        *(comment(f"on every node, once: {step.command}") for step in deployment.install),
        PREAMBLE,
    ]
    for address in deployment.addresses:
        lines.append(comment(address.meaning))
        lines.append(f': "${{{address.name}:=$(address "${{nodes[{address.node}]}}")}}"')
    for process in deployment.processes:
        lines += ["", comment(f"{process.name}, role {process.role}, node {process.node}"), *unsure(process)]
        lines += _start(process, resource=vendor.slurm.name if vendor.slurm and devices else "")
    return "\n".join(lines) + "\n" + END


def _start(process: Process, *, resource: str) -> Iterator[str]:
    # A router has no devices, and its step must not wait for those of the server beside it.
    options = ["--gres=none"] if resource and not process.devices else []
    lines = [" ".join(["start", quote(process.name), str(process.node), *options, "--"])]
    lines += [f"  {variable.name}={quote(variable.value, variable.variables)}" for variable in process.environment]
    lines.append("  " + " ".join(map(quote, process.program)))
    for argument in process.arguments:
        lines.append("  " + " ".join(quote(word, variables) for word, variables in argument_words(argument)))
    last = len(lines) - 1
    for index, line in enumerate(lines):
        yield line if index == last else f"{line} \\"
