"""Commands held against vLLM itself: its argument parser, and the tables that the parser does not look into.

The parser of vLLM 0.32.0 takes an unknown attention backend, KV connector, tool or reasoning parser, load format and
speculative method, and any key of `--speculative-config`; the server dies of these later, some only after the weights
are loaded. They are looked up here in the tables that vLLM itself looks them up in.
"""

from __future__ import annotations

from cookbook.deployment import Deployment
from cookbook.parser.engine import Engine
from cookbook.parser.load import load_engine
from cookbook.parser.problem import Problem

__all__ = ["Engine", "Problem", "check", "load_engine"]

SERVE = ("vllm", "serve")


def check(deployment: Deployment, engine: Engine) -> list[Problem]:
    """All that is wrong with the `vllm serve` commands of a deployment; a router is not vLLM's."""
    return [
        problem
        for process in deployment.processes
        if process.program[: len(SERVE)] == SERVE
        for problem in engine.check(process)
    ]
