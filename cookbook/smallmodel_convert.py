"""Turns the small model's GGUF file into safetensors: `python -m cookbook.smallmodel_convert GGUF FOLDER`.

A process of its own, so that torch never enters the one that runs a recipe.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HEAD_SIZE = 64
EXTRA_QUERY_HEADS = 3
EXTRA_KV_HEADS = 1


def padded(name: str, weight: Any, zeros: Any) -> Any:
    """A weight with one more group of attention heads, all zero.

    SmolLM2-135M has 9 query and 3 KV heads, which no even number of workers divides; with one more group of 3 query
    heads and a KV head, 2 and 4 do. The output projection ignores the new heads (their columns are zero), so the model
    computes what it did before.

    Args:
        name: The weight's name in the checkpoint.
        weight: A tensor of shape (out, in).
        zeros: Makes a tensor of zeros of a shape, of the weight's type.
    """
    import torch  # noqa: PLC0415

    if name.endswith("q_proj.weight"):
        return torch.cat([weight, zeros((EXTRA_QUERY_HEADS * HEAD_SIZE, weight.shape[1]))])
    if name.endswith(("k_proj.weight", "v_proj.weight")):
        return torch.cat([weight, zeros((EXTRA_KV_HEADS * HEAD_SIZE, weight.shape[1]))])
    if name.endswith("o_proj.weight"):
        return torch.cat([weight, zeros((weight.shape[0], EXTRA_QUERY_HEADS * HEAD_SIZE))], dim=1).contiguous()
    return weight


def convert(gguf: Path, folder: Path) -> None:
    """Write the model and its tokenizer as vLLM loads them."""
    import torch  # noqa: PLC0415
    from safetensors.torch import load_file, save_file  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # noqa: PLC0415

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(gguf_file=gguf.name, dequantize=True),
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)

    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        weights[name] = padded(name, weight, lambda shape, kind=weight.dtype: torch.zeros(shape, dtype=kind))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    config = json.loads((folder / "config.json").read_text())
    config["num_attention_heads"] += EXTRA_QUERY_HEADS
    config["num_key_value_heads"] += EXTRA_KV_HEADS
    config.pop("_model_name_or_path", None)
    (folder / "config.json").write_text(json.dumps(config, indent=2))


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
