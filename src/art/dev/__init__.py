"""Configuration of training and serving: typed dictionaries for scripts, and the settings that they become."""

from __future__ import annotations

from art.dev.engine import EngineArgs
from art.dev.model import (
    InitArgs,
    InternalModelConfig,
    PeftArgs,
    TinkerArgs,
    TinkerNativeArgs,
    TinkerTrainingClientArgs,
)
from art.dev.openai_server import (
    OpenAIServerConfig,
    ServerArgs,
    get_openai_server_config,
)
from art.dev.serving import ServingArgs
from art.dev.train import TrainConfig, TrainSFTConfig
from art.dev.trainer_args import TrainerArgs
from art.dev.validate import (
    is_dedicated_mode,
    validate_dedicated_config,
    validate_internal_config,
)

__all__ = [
    "EngineArgs",
    "InitArgs",
    "InternalModelConfig",
    "OpenAIServerConfig",
    "PeftArgs",
    "ServerArgs",
    "ServingArgs",
    "TinkerArgs",
    "TinkerNativeArgs",
    "TinkerTrainingClientArgs",
    "TrainConfig",
    "TrainSFTConfig",
    "TrainerArgs",
    "get_openai_server_config",
    "is_dedicated_mode",
    "validate_dedicated_config",
    "validate_internal_config",
]
