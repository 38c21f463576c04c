"""Models: what a rollout asks, what a backend trains, and what is recorded about them."""

from art.model.base import Model, ModelConfig, StateType
from art.model.model_file import write_model_json
from art.model.run_log import METRIC_SECTIONS, METRIC_SPLITS
from art.model.state import METRICS_BUILDER_STATE_KEY
from art.model.trainable import TrainableModel

__all__ = [
    "METRICS_BUILDER_STATE_KEY",
    "METRIC_SECTIONS",
    "METRIC_SPLITS",
    "Model",
    "ModelConfig",
    "StateType",
    "TrainableModel",
    "write_model_json",
]
