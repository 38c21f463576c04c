"""The trainer, and the service that couples it with an inference engine."""
