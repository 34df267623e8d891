# MI355X: AgentX (mi355x_agentx)
# image: vllm/vllm-openai-rocm:kimi-k31
# unverified: The source states tensor parallel 8 with AMD's AITER environment and this image, and not the flags: these come from the recipe of Kimi-K3. Only the tuned AgentX configuration is said to have run.
# warning: An MLA draft under DCP was refused by vLLM 0.28 and allowed later, by the attention backend.
# unverified: The parts of this configuration and its concurrency of 48 are stated; its values are not, and are those of a benchmark of Kimi-K3 or inferred.

# engine-0, role engine, node 0
# inferred from Kimi-K3, not stated for K3.1: --trust-remote-code, --max-model-len, --enable-prefix-caching, --load-format, --gpu-memory-utilization, --mm-encoder-tp-mode, --max-num-batched-tokens, --compilation-config, --enable-auto-tool-choice, --tool-call-parser, --reasoning-parser, --speculative-config, --kv-cache-dtype, VLLM_ENGINE_READY_TIMEOUT_S, VLLM_ROCM_USE_AITER, SAFETENSORS_FAST_GPU, AITER_BF16_FP8_MOE_BOUND, VLLM_USE_BREAKABLE_CUDAGRAPH, VLLM_ROCM_USE_AITER_MOE_SITUV2, PYTHONHASHSEED, VLLM_ROCM_AITER_MLA_ASM_PADDING, VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS
# inferred, stated by nobody: --max-num-seqs, --dcp-comm-backend
# our choice: --host
VLLM_ENGINE_READY_TIMEOUT_S=3600 \
VLLM_ROCM_USE_AITER=1 \
SAFETENSORS_FAST_GPU=1 \
AITER_BF16_FP8_MOE_BOUND=0 \
VLLM_USE_BREAKABLE_CUDAGRAPH=0 \
VLLM_ROCM_USE_AITER_MOE_SITUV2=a8w4 \
PYTHONHASHSEED=42 \
VLLM_ROCM_AITER_MLA_ASM_PADDING=asm \
VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=1200 \
vllm serve moonshotai/Kimi-K3.1-Pro \
  --trust-remote-code \
  --max-model-len 1048576 \
  --enable-prefix-caching \
  --load-format auto \
  --gpu-memory-utilization 0.9 \
  --mm-encoder-tp-mode data \
  --max-num-seqs 96 \
  --max-num-batched-tokens 4096 \
  --compilation-config '{"cudagraph_mode":"FULL_DECODE_ONLY","custom_ops":["+fused_rms_norm_gated"]}' \
  --tensor-parallel-size 8 \
  --enable-auto-tool-choice \
  --tool-call-parser kimi_k3 \
  --reasoning-parser kimi_k3 \
  --decode-context-parallel-size 8 \
  --dcp-comm-backend a2a \
  --speculative-config '{"attention_backend":"TRITON_MLA","method":"dspark","model":"Inferact/Kimi-K3.1-Pro-DSpark-preview","num_speculative_tokens":2}' \
  --kv-transfer-config '{"kv_connector":"SimpleCPUOffloadConnector","kv_connector_extra_config":{"cpu_bytes_to_use_per_rank":137438953472,"lazy_offload":false},"kv_role":"kv_both"}' \
  --host 127.0.0.1 \
  --port 8000 \
  --kv-cache-dtype fp8
