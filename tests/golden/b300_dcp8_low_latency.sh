# B300: low-latency decode with DCP8 (b300_dcp8_low_latency)
# image: vllm/vllm-openai:kimi-k31 (inferred)
# unverified: The source states the layout for this model, and not its flags: these come from the recipe of Kimi-K3.
# unverified: No source says which sparse attention backend vLLM picks under DCP: read it in the log. Should it refuse, try --attention-backend FLASHINFER_MLA_SPARSE.

# engine-0, role engine, node 0
# inferred from Kimi-K3, not stated for K3.1: --trust-remote-code, --max-model-len, --enable-prefix-caching, --gpu-memory-utilization, --load-format, --no-enable-flashinfer-autotune, --kv-cache-dtype, --enable-auto-tool-choice, --tool-call-parser, --reasoning-parser, VLLM_ENGINE_READY_TIMEOUT_S, VLLM_ALLREDUCE_USE_FLASHINFER, VLLM_USE_V2_MODEL_RUNNER, VLLM_USE_RUST_FRONTEND
# inferred, stated by nobody: --dcp-comm-backend, --additional-config
# our choice: --host
VLLM_ENGINE_READY_TIMEOUT_S=3600 \
VLLM_ALLREDUCE_USE_FLASHINFER=1 \
VLLM_USE_V2_MODEL_RUNNER=1 \
VLLM_USE_RUST_FRONTEND=1 \
vllm serve moonshotai/Kimi-K3.1-Pro \
  --trust-remote-code \
  --max-model-len 1048576 \
  --enable-prefix-caching \
  --gpu-memory-utilization 0.95 \
  --load-format fastsafetensors \
  --no-enable-flashinfer-autotune \
  --kv-cache-dtype fp8 \
  --tensor-parallel-size 8 \
  --enable-auto-tool-choice \
  --tool-call-parser kimi_k3 \
  --reasoning-parser kimi_k3 \
  --decode-context-parallel-size 8 \
  --dcp-comm-backend a2a \
  --additional-config '{"decode_backend":"latency_specialized"}' \
  --host 127.0.0.1 \
  --port 8000
