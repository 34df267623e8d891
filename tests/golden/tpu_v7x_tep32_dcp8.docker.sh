# TPU v7x: TEP32 with DCP8, as validated (tpu_v7x_tep32_dcp8)
# image: registry.example/vllm:your-build (chosen)
# warning: Text only. Speculative decoding is off until vllm-torchtpu#2770 merges. Chat and tool-call parsers are on and were not exercised on TPU.
# unverified: The flags come from the plugin's scripts for Kimi-K3; the source states layout, features and results.

# Set these first, on every node:
: "${HEAD_IP:?Address of the head, on the network between the nodes.}"

# engine-0, role engine, node 0 (head)
# inferred from Kimi-K3, not stated for K3.1: --trust-remote-code, --enable-prefix-caching, --limit-mm-per-prompt, --attention-backend, --load-format, --model-loader-extra-config, --block-size, --gpu-memory-utilization, --mamba-cache-mode, --enable-ep-weight-filter, --enable-auto-tool-choice, --tool-call-parser, --reasoning-parser, --language-model-only, --nnodes, --node-rank, --master-addr, VLLM_ENGINE_READY_TIMEOUT_S, TPU_MULTIHOST_BACKEND, TPU_VLLM_ENABLE_UNIFIED_BLOCK_POOL
# inferred, stated by nobody: --max-model-len, --compilation-config
# our choice: --host
docker run --rm --name kimi-k31-engine-0 \
  --privileged \
  --ipc=host \
  --network host \
  --volume "${HF_HOME:-$HOME/.cache/huggingface}:/root/.cache/huggingface" \
  --env HF_TOKEN \
  --env VLLM_ENGINE_READY_TIMEOUT_S=14400 \
  --env TPU_MULTIHOST_BACKEND=mp \
  --env TPU_VLLM_ENABLE_UNIFIED_BLOCK_POOL=1 \
  --entrypoint vllm \
  registry.example/vllm:your-build serve moonshotai/Kimi-K3.1-Pro \
  --trust-remote-code \
  --max-model-len 10240 \
  --enable-prefix-caching \
  --limit-mm-per-prompt '{"image":0,"video":0}' \
  --attention-backend CUSTOM \
  --load-format runai_streamer \
  --model-loader-extra-config '{"memory_limit":17179869184}' \
  --block-size 256 \
  --kv-cache-dtype fp8 \
  --gpu-memory-utilization 0.7 \
  --mamba-cache-mode align \
  --enable-ep-weight-filter \
  --tensor-parallel-size 32 \
  --enable-expert-parallel \
  --enable-auto-tool-choice \
  --tool-call-parser kimi_k3 \
  --reasoning-parser kimi_k3 \
  --language-model-only \
  --decode-context-parallel-size 8 \
  --nnodes 4 \
  --node-rank 0 \
  --master-addr "${HEAD_IP}" \
  --host 127.0.0.1 \
  --port 8000 \
  --max-num-seqs 16 \
  --compilation-config '{"compile_sizes":[16]}'

# engine-1, role engine, node 1
# inferred from Kimi-K3, not stated for K3.1: --trust-remote-code, --enable-prefix-caching, --limit-mm-per-prompt, --attention-backend, --load-format, --model-loader-extra-config, --block-size, --gpu-memory-utilization, --mamba-cache-mode, --enable-ep-weight-filter, --enable-auto-tool-choice, --tool-call-parser, --reasoning-parser, --language-model-only, --nnodes, --node-rank, --master-addr, --headless, VLLM_ENGINE_READY_TIMEOUT_S, TPU_MULTIHOST_BACKEND, TPU_VLLM_ENABLE_UNIFIED_BLOCK_POOL
# inferred, stated by nobody: --max-model-len, --compilation-config
docker run --rm --name kimi-k31-engine-1 \
  --privileged \
  --ipc=host \
  --network host \
  --volume "${HF_HOME:-$HOME/.cache/huggingface}:/root/.cache/huggingface" \
  --env HF_TOKEN \
  --env VLLM_ENGINE_READY_TIMEOUT_S=14400 \
  --env TPU_MULTIHOST_BACKEND=mp \
  --env TPU_VLLM_ENABLE_UNIFIED_BLOCK_POOL=1 \
  --entrypoint vllm \
  registry.example/vllm:your-build serve moonshotai/Kimi-K3.1-Pro \
  --trust-remote-code \
  --max-model-len 10240 \
  --enable-prefix-caching \
  --limit-mm-per-prompt '{"image":0,"video":0}' \
  --attention-backend CUSTOM \
  --load-format runai_streamer \
  --model-loader-extra-config '{"memory_limit":17179869184}' \
  --block-size 256 \
  --kv-cache-dtype fp8 \
  --gpu-memory-utilization 0.7 \
  --mamba-cache-mode align \
  --enable-ep-weight-filter \
  --tensor-parallel-size 32 \
  --enable-expert-parallel \
  --enable-auto-tool-choice \
  --tool-call-parser kimi_k3 \
  --reasoning-parser kimi_k3 \
  --language-model-only \
  --decode-context-parallel-size 8 \
  --nnodes 4 \
  --node-rank 1 \
  --master-addr "${HEAD_IP}" \
  --headless \
  --max-num-seqs 16 \
  --compilation-config '{"compile_sizes":[16]}'

# engine-2, role engine, node 2
# inferred from Kimi-K3, not stated for K3.1: --trust-remote-code, --enable-prefix-caching, --limit-mm-per-prompt, --attention-backend, --load-format, --model-loader-extra-config, --block-size, --gpu-memory-utilization, --mamba-cache-mode, --enable-ep-weight-filter, --enable-auto-tool-choice, --tool-call-parser, --reasoning-parser, --language-model-only, --nnodes, --node-rank, --master-addr, --headless, VLLM_ENGINE_READY_TIMEOUT_S, TPU_MULTIHOST_BACKEND, TPU_VLLM_ENABLE_UNIFIED_BLOCK_POOL
# inferred, stated by nobody: --max-model-len, --compilation-config
docker run --rm --name kimi-k31-engine-2 \
  --privileged \
  --ipc=host \
  --network host \
  --volume "${HF_HOME:-$HOME/.cache/huggingface}:/root/.cache/huggingface" \
  --env HF_TOKEN \
  --env VLLM_ENGINE_READY_TIMEOUT_S=14400 \
  --env TPU_MULTIHOST_BACKEND=mp \
  --env TPU_VLLM_ENABLE_UNIFIED_BLOCK_POOL=1 \
  --entrypoint vllm \
  registry.example/vllm:your-build serve moonshotai/Kimi-K3.1-Pro \
  --trust-remote-code \
  --max-model-len 10240 \
  --enable-prefix-caching \
  --limit-mm-per-prompt '{"image":0,"video":0}' \
  --attention-backend CUSTOM \
  --load-format runai_streamer \
  --model-loader-extra-config '{"memory_limit":17179869184}' \
  --block-size 256 \
  --kv-cache-dtype fp8 \
  --gpu-memory-utilization 0.7 \
  --mamba-cache-mode align \
  --enable-ep-weight-filter \
  --tensor-parallel-size 32 \
  --enable-expert-parallel \
  --enable-auto-tool-choice \
  --tool-call-parser kimi_k3 \
  --reasoning-parser kimi_k3 \
  --language-model-only \
  --decode-context-parallel-size 8 \
  --nnodes 4 \
  --node-rank 2 \
  --master-addr "${HEAD_IP}" \
  --headless \
  --max-num-seqs 16 \
  --compilation-config '{"compile_sizes":[16]}'

# engine-3, role engine, node 3
# inferred from Kimi-K3, not stated for K3.1: --trust-remote-code, --enable-prefix-caching, --limit-mm-per-prompt, --attention-backend, --load-format, --model-loader-extra-config, --block-size, --gpu-memory-utilization, --mamba-cache-mode, --enable-ep-weight-filter, --enable-auto-tool-choice, --tool-call-parser, --reasoning-parser, --language-model-only, --nnodes, --node-rank, --master-addr, --headless, VLLM_ENGINE_READY_TIMEOUT_S, TPU_MULTIHOST_BACKEND, TPU_VLLM_ENABLE_UNIFIED_BLOCK_POOL
# inferred, stated by nobody: --max-model-len, --compilation-config
docker run --rm --name kimi-k31-engine-3 \
  --privileged \
  --ipc=host \
  --network host \
  --volume "${HF_HOME:-$HOME/.cache/huggingface}:/root/.cache/huggingface" \
  --env HF_TOKEN \
  --env VLLM_ENGINE_READY_TIMEOUT_S=14400 \
  --env TPU_MULTIHOST_BACKEND=mp \
  --env TPU_VLLM_ENABLE_UNIFIED_BLOCK_POOL=1 \
  --entrypoint vllm \
  registry.example/vllm:your-build serve moonshotai/Kimi-K3.1-Pro \
  --trust-remote-code \
  --max-model-len 10240 \
  --enable-prefix-caching \
  --limit-mm-per-prompt '{"image":0,"video":0}' \
  --attention-backend CUSTOM \
  --load-format runai_streamer \
  --model-loader-extra-config '{"memory_limit":17179869184}' \
  --block-size 256 \
  --kv-cache-dtype fp8 \
  --gpu-memory-utilization 0.7 \
  --mamba-cache-mode align \
  --enable-ep-weight-filter \
  --tensor-parallel-size 32 \
  --enable-expert-parallel \
  --enable-auto-tool-choice \
  --tool-call-parser kimi_k3 \
  --reasoning-parser kimi_k3 \
  --language-model-only \
  --decode-context-parallel-size 8 \
  --nnodes 4 \
  --node-rank 3 \
  --master-addr "${HEAD_IP}" \
  --headless \
  --max-num-seqs 16 \
  --compilation-config '{"compile_sizes":[16]}'
