"""Names that transformers gives to optimisers, schedules and strategies, as string enums.

Copied by value, so that a script can use them without transformers installed.
"""

from __future__ import annotations

from enum import StrEnum


class DebugOption(StrEnum):
    """What to debug."""

    TPU_METRICS_DEBUG = "tpu_metrics_debug"
    UNDERFLOW_OVERFLOW = "underflow_overflow"


class FSDPOption(StrEnum):
    """How to shard a model."""

    AUTO_WRAP = "auto_wrap"
    FULL_SHARD = "full_shard"
    HYBRID_SHARD = "hybrid_shard"
    HYBRID_SHARD_ZERO2 = "hybrid_shard_zero2"
    NO_SHARD = "no_shard"
    OFFLOAD = "offload"
    SHARD_GRAD_OP = "shard_grad_op"


class HubStrategy(StrEnum):
    """When to push to a hub."""

    ALL_CHECKPOINTS = "all_checkpoints"
    CHECKPOINT = "checkpoint"
    END = "end"
    EVERY_SAVE = "every_save"


class IntervalStrategy(StrEnum):
    """When to do something that recurs; also called `SaveStrategy`."""

    EPOCH = "epoch"
    NO = "no"
    STEPS = "steps"


class OptimizerNames(StrEnum):
    """Optimisers."""

    ADAFACTOR = "adafactor"
    ADAGRAD = "adagrad"
    ADALOMO = "adalomo"
    ADAMW_8BIT = "adamw_8bit"
    ADAMW_ANYPRECISION = "adamw_anyprecision"
    ADAMW_APEX_FUSED = "adamw_apex_fused"
    ADAMW_BNB = "adamw_bnb_8bit"
    ADAMW_TORCH = "adamw_torch"
    ADAMW_TORCH_4BIT = "adamw_torch_4bit"
    ADAMW_TORCH_8BIT = "adamw_torch_8bit"
    ADAMW_TORCH_FUSED = "adamw_torch_fused"
    ADAMW_TORCH_NPU_FUSED = "adamw_torch_npu_fused"
    ADAMW_TORCH_XLA = "adamw_torch_xla"
    ADEMAMIX = "ademamix"
    ADEMAMIX_8BIT = "ademamix_8bit"
    APOLLO_ADAMW = "apollo_adamw"
    APOLLO_ADAMW_LAYERWISE = "apollo_adamw_layerwise"
    GALORE_ADAFACTOR = "galore_adafactor"
    GALORE_ADAFACTOR_LAYERWISE = "galore_adafactor_layerwise"
    GALORE_ADAMW = "galore_adamw"
    GALORE_ADAMW_8BIT = "galore_adamw_8bit"
    GALORE_ADAMW_8BIT_LAYERWISE = "galore_adamw_8bit_layerwise"
    GALORE_ADAMW_LAYERWISE = "galore_adamw_layerwise"
    GROKADAMW = "grokadamw"
    LION = "lion_32bit"
    LION_8BIT = "lion_8bit"
    LOMO = "lomo"
    PAGED_ADAMW = "paged_adamw_32bit"
    PAGED_ADAMW_8BIT = "paged_adamw_8bit"
    PAGED_ADEMAMIX = "paged_ademamix_32bit"
    PAGED_ADEMAMIX_8BIT = "paged_ademamix_8bit"
    PAGED_LION = "paged_lion_32bit"
    PAGED_LION_8BIT = "paged_lion_8bit"
    RMSPROP = "rmsprop"
    RMSPROP_32BIT = "rmsprop_bnb_32bit"
    RMSPROP_8BIT = "rmsprop_bnb_8bit"
    RMSPROP_BNB = "rmsprop_bnb"
    SCHEDULE_FREE_ADAMW = "schedule_free_adamw"
    SCHEDULE_FREE_RADAM = "schedule_free_radam"
    SCHEDULE_FREE_SGD = "schedule_free_sgd"
    SGD = "sgd"


class SchedulerType(StrEnum):
    """Learning-rate schedules."""

    CONSTANT = "constant"
    CONSTANT_WITH_WARMUP = "constant_with_warmup"
    COSINE = "cosine"
    COSINE_WITH_MIN_LR = "cosine_with_min_lr"
    COSINE_WITH_RESTARTS = "cosine_with_restarts"
    INVERSE_SQRT = "inverse_sqrt"
    LINEAR = "linear"
    POLYNOMIAL = "polynomial"
    REDUCE_ON_PLATEAU = "reduce_lr_on_plateau"
    WARMUP_STABLE_DECAY = "warmup_stable_decay"
    WORMHOLE = "wormhole"


SaveStrategy = IntervalStrategy
