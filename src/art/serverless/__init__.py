"""Training on a hosted service, which this package does not do; see `art.serverless.backend`."""

from art.serverless.backend import ServerlessBackend

__all__ = ["ServerlessBackend"]
