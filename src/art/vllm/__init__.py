"""The vLLM engine: in this process (shared mode) or in a server process of its own (dedicated mode).

vLLM itself is imported only when an engine is started.
"""
