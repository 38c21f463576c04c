"""Serving adapters: the runtime protocol, the registry of live adapters, and the one function that publishes a step."""
