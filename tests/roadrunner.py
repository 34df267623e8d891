"""A made-up accelerator in a folder of its own: YAML and a notebook, and nothing else."""

from __future__ import annotations

from pathlib import Path

from cookbook import notebook

__all__ = ["write"]

VENDORS = """
acme:
  title: ACME
  seen: [{command: [acme-smi, --list], line: ^Roadrunner, why: One line a device., basis: chosen}]
  container:
    docker: [--device=/dev/acme]
    compose: {devices: [/dev/acme]}
    why: Its one device node.
    basis: chosen
  kubernetes: {name: acme.example/accelerator, why: Its device plugin., basis: chosen}
  slurm: {name: acme, why: As in our gres.conf., basis: chosen}
"""
HARDWARE = """
roadrunner:
  title: ACME Roadrunner, node of 8
  vendor: acme
  family: coyote
  devices_per_node: 8
  nvlink_nodes: 0
  memory: {gib: 300, why: By its data sheet., basis: stated, source: acme}
  image: {tag: registry.acme.example/vllm:k31, why: Our own build., basis: chosen}
  notices: [{kind: unverified, text: Never run before.}]
  strategies:
    single_node_tp: {nodes: {engine: 1}, why: It fits., basis: chosen}
    pd_cluster: {nodes: {prefill: 1, decode: 2}, why: Ours., basis: chosen}
  kubernetes: {labels: {acme.example/kind: roadrunner}, why: Our labels., basis: chosen}
  args:
    --attention-backend: {value: TRITON_MLA, why: It has Triton., basis: chosen}
  env:
    ACME_TURBO: {value: "1", why: Faster., basis: stated, source: acme}
"""
RECIPES = """
roadrunner_tp8:
  title: "Roadrunner: tensor parallel 8"
  summary: One node.
  hardware: roadrunner
  strategy: single_node_tp
  features: [tool_calling, reasoning]
"""
FILES = {
    "vendors.yaml": VENDORS,
    "hardware.yaml": HARDWARE,
    "recipes.yaml": RECIPES,
    "sources.yaml": "acme:\n  title: ACME handbook\n  url: https://acme.example/handbook\n",
    "rehearsal.yaml": "env:\n  ACME_TURBO: {drop: true, reason: There is no Roadrunner here.}\n",
    "names.yaml": "foreign:\n  - {subject: environment, value: ACME_TURBO, hardware: [roadrunner], owner: ACME, why: Theirs., source: acme}\n",  # noqa: E501
    "problems.yaml": (
        "- symptom: Beep beep.\n  cause: Dust.\n  fix: Paint a tunnel.\n  source_title: ACME handbook\n"
        "  url: https://acme.example/handbook\n  hardware: [roadrunner]\n"
    ),
}


def write(folder: Path) -> Path:
    """Write the folder that is laid over the catalog, with the notebook of its one recipe."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "recipes").mkdir()
    text = (notebook.RECIPES / "b300_tp8.py").read_text().replace("b300_tp8", "roadrunner_tp8")
    (folder / "recipes" / "roadrunner_tp8.py").write_text(text)
    return folder
