"""Executable recipes that serve moonshotai/Kimi-K3.1-Pro with vLLM.

This module stays empty of imports: the supervisor and `cookbook list` load it, and both must start fast.
"""
