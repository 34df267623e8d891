# GB300: prefill/decode disaggregation (gb300_pd)
# image: vllm/vllm-openai:kimi-k31 (inferred)
# unverified: The source states the layout for this model, and not its flags: these come from the recipe of Kimi-K3.
# warning: Prefill and decode servers listen on their node's address, so that the router reaches them. Keep that network private: vLLM's API key covers only some of its paths.
# warning: Wrong output without an error was reported for one prefill and one decode server on Kimi-K3 (vllm#52627). Compare with a single deployment.

# Set these first, on every node:
: "${PREFILL_0_IP:?Address of the first node of the prefill pool, on the network between the nodes.}"
: "${DECODE_0_IP:?Address of the first node of the decode pool, on the network between the nodes.}"
: "${DECODE_1_IP:?Address of node 1 of the decode pool, on the network between the nodes.}"
: "${DECODE_2_IP:?Address of node 2 of the decode pool, on the network between the nodes.}"
: "${DECODE_3_IP:?Address of node 3 of the decode pool, on the network between the nodes.}"

# prefill-0, role prefill, node 0 (head)
# inferred from Kimi-K3, not stated for K3.1: --trust-remote-code, --max-model-len, --enable-prefix-caching, --gpu-memory-utilization, --load-format, --no-enable-flashinfer-autotune, --kv-cache-dtype, --no-disable-hybrid-kv-cache-manager, --enable-auto-tool-choice, --tool-call-parser, --reasoning-parser, --max-num-batched-tokens, --kv-transfer-config, --port, --nnodes, --node-rank, --master-addr, VLLM_ENGINE_READY_TIMEOUT_S, VLLM_ALLREDUCE_USE_FLASHINFER, VLLM_USE_V2_MODEL_RUNNER, VLLM_USE_RUST_FRONTEND, NCCL_CUMEM_ENABLE, NCCL_MNNVL_ENABLE, NCCL_NVLS_ENABLE, UCX_NET_DEVICES, UCX_TLS, VLLM_NIXL_SIDE_CHANNEL_HOST, VLLM_NIXL_SIDE_CHANNEL_PORT, VLLM_KIMI_K3_SHARD_SP_SHARED_EXPERT
# our choice: --host
docker run --rm --name kimi-k31-prefill-0 \
  --gpus all \
  --ipc=host \
  --network host \
  --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1 \
  --volume "${HF_HOME:-$HOME/.cache/huggingface}:/root/.cache/huggingface" \
  --env HF_TOKEN \
  --env VLLM_ENGINE_READY_TIMEOUT_S=3600 \
  --env VLLM_ALLREDUCE_USE_FLASHINFER=1 \
  --env VLLM_USE_V2_MODEL_RUNNER=1 \
  --env VLLM_USE_RUST_FRONTEND=1 \
  --env NCCL_CUMEM_ENABLE=1 \
  --env NCCL_MNNVL_ENABLE=1 \
  --env NCCL_NVLS_ENABLE=1 \
  --env UCX_NET_DEVICES=all \
  --env VLLM_SSM_CONV_STATE_LAYOUT=DS \
  --env UCX_TLS=rc,cuda_copy \
  --env "VLLM_NIXL_SIDE_CHANNEL_HOST=${PREFILL_0_IP}" \
  --env VLLM_NIXL_SIDE_CHANNEL_PORT=5557 \
  --env VLLM_KIMI_K3_SHARD_SP_SHARED_EXPERT=1 \
  --entrypoint vllm \
  vllm/vllm-openai:kimi-k31 serve moonshotai/Kimi-K3.1-Pro \
  --trust-remote-code \
  --max-model-len 1048576 \
  --enable-prefix-caching \
  --gpu-memory-utilization 0.95 \
  --load-format fastsafetensors \
  --no-enable-flashinfer-autotune \
  --kv-cache-dtype fp8 \
  --tensor-parallel-size 8 \
  --enable-expert-parallel \
  --no-disable-hybrid-kv-cache-manager \
  --enable-auto-tool-choice \
  --tool-call-parser kimi_k3 \
  --reasoning-parser kimi_k3 \
  --max-num-batched-tokens 16384 \
  --kv-transfer-config '{"kv_connector":"NixlConnector","kv_load_failure_policy":"fail","kv_role":"kv_producer"}' \
  --host "${PREFILL_0_IP}" \
  --port 8001 \
  --nnodes 2 \
  --node-rank 0 \
  --master-addr "${PREFILL_0_IP}"

# prefill-1, role prefill, node 1
# inferred from Kimi-K3, not stated for K3.1: --trust-remote-code, --max-model-len, --enable-prefix-caching, --gpu-memory-utilization, --load-format, --no-enable-flashinfer-autotune, --kv-cache-dtype, --no-disable-hybrid-kv-cache-manager, --enable-auto-tool-choice, --tool-call-parser, --reasoning-parser, --max-num-batched-tokens, --kv-transfer-config, --nnodes, --node-rank, --master-addr, --headless, VLLM_ENGINE_READY_TIMEOUT_S, VLLM_ALLREDUCE_USE_FLASHINFER, VLLM_USE_V2_MODEL_RUNNER, VLLM_USE_RUST_FRONTEND, NCCL_CUMEM_ENABLE, NCCL_MNNVL_ENABLE, NCCL_NVLS_ENABLE, UCX_NET_DEVICES, UCX_TLS, VLLM_NIXL_SIDE_CHANNEL_HOST, VLLM_NIXL_SIDE_CHANNEL_PORT, VLLM_KIMI_K3_SHARD_SP_SHARED_EXPERT
docker run --rm --name kimi-k31-prefill-1 \
  --gpus all \
  --ipc=host \
  --network host \
  --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1 \
  --volume "${HF_HOME:-$HOME/.cache/huggingface}:/root/.cache/huggingface" \
  --env HF_TOKEN \
  --env VLLM_ENGINE_READY_TIMEOUT_S=3600 \
  --env VLLM_ALLREDUCE_USE_FLASHINFER=1 \
  --env VLLM_USE_V2_MODEL_RUNNER=1 \
  --env VLLM_USE_RUST_FRONTEND=1 \
  --env NCCL_CUMEM_ENABLE=1 \
  --env NCCL_MNNVL_ENABLE=1 \
  --env NCCL_NVLS_ENABLE=1 \
  --env UCX_NET_DEVICES=all \
  --env VLLM_SSM_CONV_STATE_LAYOUT=DS \
  --env UCX_TLS=rc,cuda_copy \
  --env "VLLM_NIXL_SIDE_CHANNEL_HOST=${PREFILL_0_IP}" \
  --env VLLM_NIXL_SIDE_CHANNEL_PORT=5557 \
  --env VLLM_KIMI_K3_SHARD_SP_SHARED_EXPERT=1 \
  --entrypoint vllm \
  vllm/vllm-openai:kimi-k31 serve moonshotai/Kimi-K3.1-Pro \
  --trust-remote-code \
  --max-model-len 1048576 \
  --enable-prefix-caching \
  --gpu-memory-utilization 0.95 \
  --load-format fastsafetensors \
  --no-enable-flashinfer-autotune \
  --kv-cache-dtype fp8 \
  --tensor-parallel-size 8 \
  --enable-expert-parallel \
  --no-disable-hybrid-kv-cache-manager \
  --enable-auto-tool-choice \
  --tool-call-parser kimi_k3 \
  --reasoning-parser kimi_k3 \
  --max-num-batched-tokens 16384 \
  --kv-transfer-config '{"kv_connector":"NixlConnector","kv_load_failure_policy":"fail","kv_role":"kv_producer"}' \
  --nnodes 2 \
  --node-rank 1 \
  --master-addr "${PREFILL_0_IP}" \
  --headless

# decode-0, role decode, node 2
# inferred from Kimi-K3, not stated for K3.1: --trust-remote-code, --max-model-len, --gpu-memory-utilization, --load-format, --no-enable-flashinfer-autotune, --kv-cache-dtype, --no-disable-hybrid-kv-cache-manager, --enable-auto-tool-choice, --tool-call-parser, --reasoning-parser, --port, --data-parallel-start-rank, --data-parallel-address, --data-parallel-hybrid-lb, --no-enable-prefix-caching, --max-num-seqs, --max-num-batched-tokens, --compilation-config, --moe-backend, VLLM_ENGINE_READY_TIMEOUT_S, VLLM_ALLREDUCE_USE_FLASHINFER, VLLM_USE_V2_MODEL_RUNNER, VLLM_USE_RUST_FRONTEND, NCCL_CUMEM_ENABLE, NCCL_MNNVL_ENABLE, NCCL_NVLS_ENABLE, UCX_NET_DEVICES, UCX_TLS, VLLM_NIXL_SIDE_CHANNEL_HOST, VLLM_NIXL_SIDE_CHANNEL_PORT
# inferred, stated by nobody: --data-parallel-size-local
# our choice: --host
docker run --rm --name kimi-k31-decode-0 \
  --gpus all \
  --ipc=host \
  --network host \
  --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1 \
  --volume "${HF_HOME:-$HOME/.cache/huggingface}:/root/.cache/huggingface" \
  --env HF_TOKEN \
  --env VLLM_ENGINE_READY_TIMEOUT_S=3600 \
  --env VLLM_ALLREDUCE_USE_FLASHINFER=1 \
  --env VLLM_USE_V2_MODEL_RUNNER=1 \
  --env VLLM_USE_RUST_FRONTEND=1 \
  --env NCCL_CUMEM_ENABLE=1 \
  --env NCCL_MNNVL_ENABLE=1 \
  --env NCCL_NVLS_ENABLE=1 \
  --env UCX_NET_DEVICES=all \
  --env VLLM_SSM_CONV_STATE_LAYOUT=DS \
  --env UCX_TLS=rc,cuda_copy \
  --env "VLLM_NIXL_SIDE_CHANNEL_HOST=${DECODE_0_IP}" \
  --env VLLM_NIXL_SIDE_CHANNEL_PORT=5558 \
  --entrypoint vllm \
  vllm/vllm-openai:kimi-k31 serve moonshotai/Kimi-K3.1-Pro \
  --trust-remote-code \
  --max-model-len 1048576 \
  --gpu-memory-utilization 0.95 \
  --load-format fastsafetensors \
  --no-enable-flashinfer-autotune \
  --kv-cache-dtype fp8 \
  --tensor-parallel-size 1 \
  --enable-expert-parallel \
  --no-disable-hybrid-kv-cache-manager \
  --enable-auto-tool-choice \
  --tool-call-parser kimi_k3 \
  --reasoning-parser kimi_k3 \
  --host "${DECODE_0_IP}" \
  --port 8002 \
  --data-parallel-size 16 \
  --data-parallel-size-local 4 \
  --data-parallel-start-rank 0 \
  --data-parallel-address "${DECODE_0_IP}" \
  --data-parallel-hybrid-lb \
  --no-enable-prefix-caching \
  --max-num-seqs 8 \
  --max-num-batched-tokens 32 \
  --kv-transfer-config '{"kv_connector":"NixlConnector","kv_load_failure_policy":"fail","kv_role":"kv_consumer"}' \
  --compilation-config '{"cudagraph_mode":"FULL_DECODE_ONLY"}' \
  --moe-backend deep_gemm_mega_moe

# decode-1, role decode, node 3
# inferred from Kimi-K3, not stated for K3.1: --trust-remote-code, --max-model-len, --gpu-memory-utilization, --load-format, --no-enable-flashinfer-autotune, --kv-cache-dtype, --no-disable-hybrid-kv-cache-manager, --enable-auto-tool-choice, --tool-call-parser, --reasoning-parser, --port, --data-parallel-start-rank, --data-parallel-address, --data-parallel-hybrid-lb, --no-enable-prefix-caching, --max-num-seqs, --max-num-batched-tokens, --compilation-config, --moe-backend, VLLM_ENGINE_READY_TIMEOUT_S, VLLM_ALLREDUCE_USE_FLASHINFER, VLLM_USE_V2_MODEL_RUNNER, VLLM_USE_RUST_FRONTEND, NCCL_CUMEM_ENABLE, NCCL_MNNVL_ENABLE, NCCL_NVLS_ENABLE, UCX_NET_DEVICES, UCX_TLS, VLLM_NIXL_SIDE_CHANNEL_HOST, VLLM_NIXL_SIDE_CHANNEL_PORT
# inferred, stated by nobody: --data-parallel-size-local
# our choice: --host
docker run --rm --name kimi-k31-decode-1 \
  --gpus all \
  --ipc=host \
  --network host \
  --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1 \
  --volume "${HF_HOME:-$HOME/.cache/huggingface}:/root/.cache/huggingface" \
  --env HF_TOKEN \
  --env VLLM_ENGINE_READY_TIMEOUT_S=3600 \
  --env VLLM_ALLREDUCE_USE_FLASHINFER=1 \
  --env VLLM_USE_V2_MODEL_RUNNER=1 \
  --env VLLM_USE_RUST_FRONTEND=1 \
  --env NCCL_CUMEM_ENABLE=1 \
  --env NCCL_MNNVL_ENABLE=1 \
  --env NCCL_NVLS_ENABLE=1 \
  --env UCX_NET_DEVICES=all \
  --env VLLM_SSM_CONV_STATE_LAYOUT=DS \
  --env UCX_TLS=rc,cuda_copy \
  --env "VLLM_NIXL_SIDE_CHANNEL_HOST=${DECODE_1_IP}" \
  --env VLLM_NIXL_SIDE_CHANNEL_PORT=5558 \
  --entrypoint vllm \
  vllm/vllm-openai:kimi-k31 serve moonshotai/Kimi-K3.1-Pro \
  --trust-remote-code \
  --max-model-len 1048576 \
  --gpu-memory-utilization 0.95 \
  --load-format fastsafetensors \
  --no-enable-flashinfer-autotune \
  --kv-cache-dtype fp8 \
  --tensor-parallel-size 1 \
  --enable-expert-parallel \
  --no-disable-hybrid-kv-cache-manager \
  --enable-auto-tool-choice \
  --tool-call-parser kimi_k3 \
  --reasoning-parser kimi_k3 \
  --host "${DECODE_1_IP}" \
  --port 8002 \
  --data-parallel-size 16 \
  --data-parallel-size-local 4 \
  --data-parallel-start-rank 4 \
  --data-parallel-address "${DECODE_0_IP}" \
  --data-parallel-hybrid-lb \
  --no-enable-prefix-caching \
  --max-num-seqs 8 \
  --max-num-batched-tokens 32 \
  --kv-transfer-config '{"kv_connector":"NixlConnector","kv_load_failure_policy":"fail","kv_role":"kv_consumer"}' \
  --compilation-config '{"cudagraph_mode":"FULL_DECODE_ONLY"}' \
  --moe-backend deep_gemm_mega_moe

# decode-2, role decode, node 4
# inferred from Kimi-K3, not stated for K3.1: --trust-remote-code, --max-model-len, --gpu-memory-utilization, --load-format, --no-enable-flashinfer-autotune, --kv-cache-dtype, --no-disable-hybrid-kv-cache-manager, --enable-auto-tool-choice, --tool-call-parser, --reasoning-parser, --port, --data-parallel-start-rank, --data-parallel-address, --data-parallel-hybrid-lb, --no-enable-prefix-caching, --max-num-seqs, --max-num-batched-tokens, --compilation-config, --moe-backend, VLLM_ENGINE_READY_TIMEOUT_S, VLLM_ALLREDUCE_USE_FLASHINFER, VLLM_USE_V2_MODEL_RUNNER, VLLM_USE_RUST_FRONTEND, NCCL_CUMEM_ENABLE, NCCL_MNNVL_ENABLE, NCCL_NVLS_ENABLE, UCX_NET_DEVICES, UCX_TLS, VLLM_NIXL_SIDE_CHANNEL_HOST, VLLM_NIXL_SIDE_CHANNEL_PORT
# inferred, stated by nobody: --data-parallel-size-local
# our choice: --host
docker run --rm --name kimi-k31-decode-2 \
  --gpus all \
  --ipc=host \
  --network host \
  --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1 \
  --volume "${HF_HOME:-$HOME/.cache/huggingface}:/root/.cache/huggingface" \
  --env HF_TOKEN \
  --env VLLM_ENGINE_READY_TIMEOUT_S=3600 \
  --env VLLM_ALLREDUCE_USE_FLASHINFER=1 \
  --env VLLM_USE_V2_MODEL_RUNNER=1 \
  --env VLLM_USE_RUST_FRONTEND=1 \
  --env NCCL_CUMEM_ENABLE=1 \
  --env NCCL_MNNVL_ENABLE=1 \
  --env NCCL_NVLS_ENABLE=1 \
  --env UCX_NET_DEVICES=all \
  --env VLLM_SSM_CONV_STATE_LAYOUT=DS \
  --env UCX_TLS=rc,cuda_copy \
  --env "VLLM_NIXL_SIDE_CHANNEL_HOST=${DECODE_2_IP}" \
  --env VLLM_NIXL_SIDE_CHANNEL_PORT=5558 \
  --entrypoint vllm \
  vllm/vllm-openai:kimi-k31 serve moonshotai/Kimi-K3.1-Pro \
  --trust-remote-code \
  --max-model-len 1048576 \
  --gpu-memory-utilization 0.95 \
  --load-format fastsafetensors \
  --no-enable-flashinfer-autotune \
  --kv-cache-dtype fp8 \
  --tensor-parallel-size 1 \
  --enable-expert-parallel \
  --no-disable-hybrid-kv-cache-manager \
  --enable-auto-tool-choice \
  --tool-call-parser kimi_k3 \
  --reasoning-parser kimi_k3 \
  --host "${DECODE_2_IP}" \
  --port 8002 \
  --data-parallel-size 16 \
  --data-parallel-size-local 4 \
  --data-parallel-start-rank 8 \
  --data-parallel-address "${DECODE_0_IP}" \
  --data-parallel-hybrid-lb \
  --no-enable-prefix-caching \
  --max-num-seqs 8 \
  --max-num-batched-tokens 32 \
  --kv-transfer-config '{"kv_connector":"NixlConnector","kv_load_failure_policy":"fail","kv_role":"kv_consumer"}' \
  --compilation-config '{"cudagraph_mode":"FULL_DECODE_ONLY"}' \
  --moe-backend deep_gemm_mega_moe

# decode-3, role decode, node 5
# inferred from Kimi-K3, not stated for K3.1: --trust-remote-code, --max-model-len, --gpu-memory-utilization, --load-format, --no-enable-flashinfer-autotune, --kv-cache-dtype, --no-disable-hybrid-kv-cache-manager, --enable-auto-tool-choice, --tool-call-parser, --reasoning-parser, --port, --data-parallel-start-rank, --data-parallel-address, --data-parallel-hybrid-lb, --no-enable-prefix-caching, --max-num-seqs, --max-num-batched-tokens, --compilation-config, --moe-backend, VLLM_ENGINE_READY_TIMEOUT_S, VLLM_ALLREDUCE_USE_FLASHINFER, VLLM_USE_V2_MODEL_RUNNER, VLLM_USE_RUST_FRONTEND, NCCL_CUMEM_ENABLE, NCCL_MNNVL_ENABLE, NCCL_NVLS_ENABLE, UCX_NET_DEVICES, UCX_TLS, VLLM_NIXL_SIDE_CHANNEL_HOST, VLLM_NIXL_SIDE_CHANNEL_PORT
# inferred, stated by nobody: --data-parallel-size-local
# our choice: --host
docker run --rm --name kimi-k31-decode-3 \
  --gpus all \
  --ipc=host \
  --network host \
  --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1 \
  --volume "${HF_HOME:-$HOME/.cache/huggingface}:/root/.cache/huggingface" \
  --env HF_TOKEN \
  --env VLLM_ENGINE_READY_TIMEOUT_S=3600 \
  --env VLLM_ALLREDUCE_USE_FLASHINFER=1 \
  --env VLLM_USE_V2_MODEL_RUNNER=1 \
  --env VLLM_USE_RUST_FRONTEND=1 \
  --env NCCL_CUMEM_ENABLE=1 \
  --env NCCL_MNNVL_ENABLE=1 \
  --env NCCL_NVLS_ENABLE=1 \
  --env UCX_NET_DEVICES=all \
  --env VLLM_SSM_CONV_STATE_LAYOUT=DS \
  --env UCX_TLS=rc,cuda_copy \
  --env "VLLM_NIXL_SIDE_CHANNEL_HOST=${DECODE_3_IP}" \
  --env VLLM_NIXL_SIDE_CHANNEL_PORT=5558 \
  --entrypoint vllm \
  vllm/vllm-openai:kimi-k31 serve moonshotai/Kimi-K3.1-Pro \
  --trust-remote-code \
  --max-model-len 1048576 \
  --gpu-memory-utilization 0.95 \
  --load-format fastsafetensors \
  --no-enable-flashinfer-autotune \
  --kv-cache-dtype fp8 \
  --tensor-parallel-size 1 \
  --enable-expert-parallel \
  --no-disable-hybrid-kv-cache-manager \
  --enable-auto-tool-choice \
  --tool-call-parser kimi_k3 \
  --reasoning-parser kimi_k3 \
  --host "${DECODE_3_IP}" \
  --port 8002 \
  --data-parallel-size 16 \
  --data-parallel-size-local 4 \
  --data-parallel-start-rank 12 \
  --data-parallel-address "${DECODE_0_IP}" \
  --data-parallel-hybrid-lb \
  --no-enable-prefix-caching \
  --max-num-seqs 8 \
  --max-num-batched-tokens 32 \
  --kv-transfer-config '{"kv_connector":"NixlConnector","kv_load_failure_policy":"fail","kv_role":"kv_consumer"}' \
  --compilation-config '{"cudagraph_mode":"FULL_DECODE_ONLY"}' \
  --moe-backend deep_gemm_mega_moe

# router-0, role router, node 0 (head)
# inferred from Kimi-K3, not stated for K3.1: --vllm-pd-disaggregation, --prefill, --decode, --policy, --intra-node-data-parallel-size
# our choice: --worker-startup-timeout-secs, --host
# The image holds no router: pip install vllm-router==0.1.17
vllm-router \
  --vllm-pd-disaggregation \
  --prefill "http://${PREFILL_0_IP}:8001" \
  --decode "http://${DECODE_0_IP}:8002" \
  --decode "http://${DECODE_1_IP}:8002" \
  --decode "http://${DECODE_2_IP}:8002" \
  --decode "http://${DECODE_3_IP}:8002" \
  --policy round_robin \
  --intra-node-data-parallel-size 1 \
  --worker-startup-timeout-secs 3600 \
  --host 127.0.0.1 \
  --port 8000
