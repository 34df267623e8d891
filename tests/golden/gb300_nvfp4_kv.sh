# GB300: NVFP4 KV cache (gb300_nvfp4_kv)
# image: vllm/vllm-openai:kimi-k31 (inferred)
# unverified: The source states the layout for this model, and not its flags: these come from the recipe of Kimi-K3.
# warning: Accuracy was published for GSM8K only; long contexts were not measured.

# Set these first, on every node:
: "${HEAD_IP:?Address of the head, on the network between the nodes.}"

# engine-0, role engine, node 0 (head)
# inferred from Kimi-K3, not stated for K3.1: --trust-remote-code, --max-model-len, --enable-prefix-caching, --gpu-memory-utilization, --load-format, --no-enable-flashinfer-autotune, --enable-auto-tool-choice, --tool-call-parser, --reasoning-parser, --nnodes, --node-rank, --master-addr, VLLM_ENGINE_READY_TIMEOUT_S, VLLM_ALLREDUCE_USE_FLASHINFER, VLLM_USE_V2_MODEL_RUNNER, VLLM_USE_RUST_FRONTEND, NCCL_CUMEM_ENABLE, NCCL_MNNVL_ENABLE, NCCL_NVLS_ENABLE
# read in vLLM's source: --kv-cache-dtype, --attention-config
# our choice: --host
VLLM_ENGINE_READY_TIMEOUT_S=3600 \
VLLM_ALLREDUCE_USE_FLASHINFER=1 \
VLLM_USE_V2_MODEL_RUNNER=1 \
VLLM_USE_RUST_FRONTEND=1 \
NCCL_CUMEM_ENABLE=1 \
NCCL_MNNVL_ENABLE=1 \
NCCL_NVLS_ENABLE=1 \
vllm serve moonshotai/Kimi-K3.1-Pro \
  --trust-remote-code \
  --max-model-len 1048576 \
  --enable-prefix-caching \
  --gpu-memory-utilization 0.95 \
  --load-format fastsafetensors \
  --no-enable-flashinfer-autotune \
  --kv-cache-dtype nvfp4_ds_mla \
  --tensor-parallel-size 8 \
  --enable-auto-tool-choice \
  --tool-call-parser kimi_k3 \
  --reasoning-parser kimi_k3 \
  --attention-config '{"indexer_kv_dtype":"fp8"}' \
  --nnodes 2 \
  --node-rank 0 \
  --master-addr "${HEAD_IP}" \
  --host 127.0.0.1 \
  --port 8000

# engine-1, role engine, node 1
# inferred from Kimi-K3, not stated for K3.1: --trust-remote-code, --max-model-len, --enable-prefix-caching, --gpu-memory-utilization, --load-format, --no-enable-flashinfer-autotune, --enable-auto-tool-choice, --tool-call-parser, --reasoning-parser, --nnodes, --node-rank, --master-addr, --headless, VLLM_ENGINE_READY_TIMEOUT_S, VLLM_ALLREDUCE_USE_FLASHINFER, VLLM_USE_V2_MODEL_RUNNER, VLLM_USE_RUST_FRONTEND, NCCL_CUMEM_ENABLE, NCCL_MNNVL_ENABLE, NCCL_NVLS_ENABLE
# read in vLLM's source: --kv-cache-dtype, --attention-config
VLLM_ENGINE_READY_TIMEOUT_S=3600 \
VLLM_ALLREDUCE_USE_FLASHINFER=1 \
VLLM_USE_V2_MODEL_RUNNER=1 \
VLLM_USE_RUST_FRONTEND=1 \
NCCL_CUMEM_ENABLE=1 \
NCCL_MNNVL_ENABLE=1 \
NCCL_NVLS_ENABLE=1 \
vllm serve moonshotai/Kimi-K3.1-Pro \
  --trust-remote-code \
  --max-model-len 1048576 \
  --enable-prefix-caching \
  --gpu-memory-utilization 0.95 \
  --load-format fastsafetensors \
  --no-enable-flashinfer-autotune \
  --kv-cache-dtype nvfp4_ds_mla \
  --tensor-parallel-size 8 \
  --enable-auto-tool-choice \
  --tool-call-parser kimi_k3 \
  --reasoning-parser kimi_k3 \
  --attention-config '{"indexer_kv_dtype":"fp8"}' \
  --nnodes 2 \
  --node-rank 1 \
  --master-addr "${HEAD_IP}" \
  --headless
