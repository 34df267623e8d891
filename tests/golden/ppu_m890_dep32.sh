# Zhenwu M890: TP8, DP4, EP32 (ppu_m890_dep32)
# image: none is published or named by a source
# unverified: The source states the layout, the quantisation and that speculative decoding is off. Image, variables and flags beyond these are inferred from the plugin's source.

# Set these first, on every node:
: "${HEAD_IP:?Address of the head, on the network between the nodes.}"

# engine-0, role engine, node 0 (head)
# inferred from Kimi-K3, not stated for K3.1: --trust-remote-code, --max-model-len, --enable-prefix-caching, --enable-auto-tool-choice, --tool-call-parser, --reasoning-parser, VLLM_ENGINE_READY_TIMEOUT_S
# read in vLLM's source: VLLM_PLUGINS
# inferred, stated by nobody: --data-parallel-size-local, --data-parallel-address, VLLM_SAIL_USE_PLA
# our choice: --host
VLLM_ENGINE_READY_TIMEOUT_S=3600 \
VLLM_PLUGINS=ppu \
VLLM_SAIL_USE_PLA=1 \
vllm serve moonshotai/Kimi-K3.1-Pro \
  --trust-remote-code \
  --max-model-len 1048576 \
  --enable-prefix-caching \
  --tensor-parallel-size 8 \
  --enable-expert-parallel \
  --enable-auto-tool-choice \
  --tool-call-parser kimi_k3 \
  --reasoning-parser kimi_k3 \
  --data-parallel-size 4 \
  --data-parallel-size-local 1 \
  --data-parallel-address "${HEAD_IP}" \
  --host 127.0.0.1 \
  --port 8000

# engine-1, role engine, node 1
# inferred from Kimi-K3, not stated for K3.1: --trust-remote-code, --max-model-len, --enable-prefix-caching, --enable-auto-tool-choice, --tool-call-parser, --reasoning-parser, --headless, VLLM_ENGINE_READY_TIMEOUT_S
# read in vLLM's source: VLLM_PLUGINS
# inferred, stated by nobody: --data-parallel-size-local, --data-parallel-address, --data-parallel-start-rank, VLLM_SAIL_USE_PLA
VLLM_ENGINE_READY_TIMEOUT_S=3600 \
VLLM_PLUGINS=ppu \
VLLM_SAIL_USE_PLA=1 \
vllm serve moonshotai/Kimi-K3.1-Pro \
  --trust-remote-code \
  --max-model-len 1048576 \
  --enable-prefix-caching \
  --tensor-parallel-size 8 \
  --enable-expert-parallel \
  --enable-auto-tool-choice \
  --tool-call-parser kimi_k3 \
  --reasoning-parser kimi_k3 \
  --data-parallel-size 4 \
  --data-parallel-size-local 1 \
  --data-parallel-address "${HEAD_IP}" \
  --data-parallel-start-rank 1 \
  --headless

# engine-2, role engine, node 2
# inferred from Kimi-K3, not stated for K3.1: --trust-remote-code, --max-model-len, --enable-prefix-caching, --enable-auto-tool-choice, --tool-call-parser, --reasoning-parser, --headless, VLLM_ENGINE_READY_TIMEOUT_S
# read in vLLM's source: VLLM_PLUGINS
# inferred, stated by nobody: --data-parallel-size-local, --data-parallel-address, --data-parallel-start-rank, VLLM_SAIL_USE_PLA
VLLM_ENGINE_READY_TIMEOUT_S=3600 \
VLLM_PLUGINS=ppu \
VLLM_SAIL_USE_PLA=1 \
vllm serve moonshotai/Kimi-K3.1-Pro \
  --trust-remote-code \
  --max-model-len 1048576 \
  --enable-prefix-caching \
  --tensor-parallel-size 8 \
  --enable-expert-parallel \
  --enable-auto-tool-choice \
  --tool-call-parser kimi_k3 \
  --reasoning-parser kimi_k3 \
  --data-parallel-size 4 \
  --data-parallel-size-local 1 \
  --data-parallel-address "${HEAD_IP}" \
  --data-parallel-start-rank 2 \
  --headless

# engine-3, role engine, node 3
# inferred from Kimi-K3, not stated for K3.1: --trust-remote-code, --max-model-len, --enable-prefix-caching, --enable-auto-tool-choice, --tool-call-parser, --reasoning-parser, --headless, VLLM_ENGINE_READY_TIMEOUT_S
# read in vLLM's source: VLLM_PLUGINS
# inferred, stated by nobody: --data-parallel-size-local, --data-parallel-address, --data-parallel-start-rank, VLLM_SAIL_USE_PLA
VLLM_ENGINE_READY_TIMEOUT_S=3600 \
VLLM_PLUGINS=ppu \
VLLM_SAIL_USE_PLA=1 \
vllm serve moonshotai/Kimi-K3.1-Pro \
  --trust-remote-code \
  --max-model-len 1048576 \
  --enable-prefix-caching \
  --tensor-parallel-size 8 \
  --enable-expert-parallel \
  --enable-auto-tool-choice \
  --tool-call-parser kimi_k3 \
  --reasoning-parser kimi_k3 \
  --data-parallel-size 4 \
  --data-parallel-size-local 1 \
  --data-parallel-address "${HEAD_IP}" \
  --data-parallel-start-rank 3 \
  --headless
