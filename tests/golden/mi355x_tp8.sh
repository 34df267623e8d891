# MI355X: tensor parallel 8 (mi355x_tp8)
# image: vllm/vllm-openai-rocm:kimi-k31
# unverified: The source states tensor parallel 8 with AMD's AITER environment and this image, and not the flags: these come from the recipe of Kimi-K3. Only the tuned AgentX configuration is said to have run.

# engine-0, role engine, node 0
# inferred from Kimi-K3, not stated for K3.1: --trust-remote-code, --max-model-len, --enable-prefix-caching, --load-format, --gpu-memory-utilization, --mm-encoder-tp-mode, --max-num-seqs, --max-num-batched-tokens, --compilation-config, --enable-auto-tool-choice, --tool-call-parser, --reasoning-parser, VLLM_ENGINE_READY_TIMEOUT_S, VLLM_ROCM_USE_AITER, SAFETENSORS_FAST_GPU, AITER_BF16_FP8_MOE_BOUND, VLLM_USE_BREAKABLE_CUDAGRAPH, VLLM_ROCM_USE_AITER_MOE_SITUV2
# our choice: --host
VLLM_ENGINE_READY_TIMEOUT_S=3600 \
VLLM_ROCM_USE_AITER=1 \
SAFETENSORS_FAST_GPU=1 \
AITER_BF16_FP8_MOE_BOUND=0 \
VLLM_USE_BREAKABLE_CUDAGRAPH=0 \
VLLM_ROCM_USE_AITER_MOE_SITUV2=a8w4 \
vllm serve moonshotai/Kimi-K3.1-Pro \
  --trust-remote-code \
  --max-model-len 1048576 \
  --enable-prefix-caching \
  --load-format auto \
  --gpu-memory-utilization 0.95 \
  --mm-encoder-tp-mode data \
  --max-num-seqs 128 \
  --max-num-batched-tokens 4096 \
  --compilation-config '{"cudagraph_mode":"FULL_DECODE_ONLY","custom_ops":["+fused_rms_norm_gated"]}' \
  --tensor-parallel-size 8 \
  --enable-auto-tool-choice \
  --tool-call-parser kimi_k3 \
  --reasoning-parser kimi_k3 \
  --host 127.0.0.1 \
  --port 8000
