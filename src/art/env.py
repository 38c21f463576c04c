"""Every environment variable that this package reads or sets, with its type, default, unit and meaning.

Nothing is read on import: `Variable.read` looks when it is called. A value that does not parse is a
`ConfigurationError`, never a silent default; an empty value counts as unset.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from art.errors import ConfigurationError

T = TypeVar("T")

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


def _text(value: str) -> str:
    return value


def _seconds(value: str) -> float:
    seconds = float(value)
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(value)
    return seconds


def _flag(value: str) -> bool:
    word = value.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError(value)


_EXPECTED: dict[Callable[[str], object], str] = {
    _text: "text",
    _seconds: "a number of seconds above 0",
    _flag: "1 or 0 (or true, yes, on; false, no, off)",
}


@dataclass(frozen=True)
class Variable(Generic[T]):
    """One environment variable.

    Attributes:
        name: Its name in the environment.
        parse: Turns its text into a value, or raises ValueError.
        default: The value when it is unset or empty.
        meaning: What it does, in a sentence.
        unit: Unit of the value, or None.
    """

    name: str
    parse: Callable[[str], T]
    default: T
    meaning: str
    unit: str | None = None

    def read(self, environ: Mapping[str, str] | None = None) -> T:
        """Return its value now.

        Args:
            environ: Where to look; None for the process's own environment.

        Raises:
            ConfigurationError: Its text does not parse.
        """
        text = (os.environ if environ is None else environ).get(self.name, "")
        if not text.strip():
            return self.default
        try:
            return self.parse(text)
        except ValueError:
            expected = _EXPECTED.get(self.parse, "another value")
            raise ConfigurationError(
                f"the environment variable {self.name} is {text!r}: it must be {expected}. Correct or unset it."
            ) from None


def _optional_text(name: str, meaning: str) -> Variable[str | None]:
    return Variable(name, _text, None, meaning)


# Serving ----------------------------------------------------------------------------------------------------

SERVER_TIMEOUT_S = Variable(
    "ART_SERVER_TIMEOUT",
    _seconds,
    300.0,
    "How long the server of shared mode may take until it lists the newest adapter. An engine that starts on a "
    "cold machine compiles and loads for minutes.",
    "s",
)
DEDICATED_SERVER_TIMEOUT_S = Variable(
    "ART_DEDICATED_VLLM_TIMEOUT",
    _seconds,
    1200.0,
    "The same for the server of dedicated mode, which may have to load a large model from a slow disk.",
    "s",
)
HEALTH_TIMEOUT_S = Variable(
    "ART_SERVER_MONITOR_TIMEOUT",
    _seconds,
    5.0,
    "How long the one-token completion of a health check may take.",
    "s",
)
ADAPTER_RELOAD_TIMEOUT_S = Variable(
    "ART_ADAPTER_RELOAD_TIMEOUT",
    _seconds,
    120.0,
    "How long loading an adapter into the server may take, retries included.",
    "s",
)
VLLM_ALLOW_RUNTIME_LORA_UPDATING = Variable(
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING",
    _flag,
    False,
    "vLLM's: offers the routes that load and unload adapters. Set to 1 for our servers.",
)
VLLM_SERVER_DEV_MODE = Variable(
    "VLLM_SERVER_DEV_MODE",
    _flag,
    False,
    "vLLM's: offers routes that sleep, wake, pause and reset. Not needed here: our servers do without them.",
)
CUDA_VISIBLE_DEVICES = _optional_text(
    "CUDA_VISIBLE_DEVICES",
    "CUDA's: which GPUs a process sees. Set for the child processes of dedicated mode, never for the caller.",
)


def _set_for_engines(name: str, meaning: str) -> Variable[str | None]:
    return _optional_text(name, f"{meaning} Set for the start of an engine, where you have not set it.")


VLLM_NO_USAGE_STATS = _set_for_engines("VLLM_NO_USAGE_STATS", "vLLM's: 1 keeps it from reporting its use.")
VLLM_RPC_BASE_PATH = _set_for_engines("VLLM_RPC_BASE_PATH", "vLLM's: folder of the sockets between its processes.")
VLLM_CPU_OMP_THREADS_BIND = _set_for_engines(
    "VLLM_CPU_OMP_THREADS_BIND", "vLLM's: `nobind` leaves an engine's threads on a CPU where the system puts them."
)
OMP_NUM_THREADS = _set_for_engines("OMP_NUM_THREADS", "OpenMP's: threads of an engine on a CPU, half of the cores.")
OMP_WAIT_POLICY = _set_for_engines(
    "OMP_WAIT_POLICY", "OpenMP's: `PASSIVE` keeps waiting threads from spinning. For the trainer, too."
)
TORCHDYNAMO_DISABLE = _set_for_engines("TORCHDYNAMO_DISABLE", "PyTorch's: 1 compiles nothing, for an engine on a CPU.")

# Rollouts ---------------------------------------------------------------------------------------------------

ROLLOUT_TIMEOUT_S = Variable(
    "ART_ROLLOUT_TIMEOUT",
    _seconds,
    21600.0,
    "How long one rollout of a gather may take; one that takes longer is cancelled and has failed. Far above what a "
    "rollout needs: a single request may wait 20 minutes, and is sent three times.",
    "s",
)

# Training ---------------------------------------------------------------------------------------------------

TRAIN_STEP_LOG = Variable(
    "ART_TRAIN_STEP_LOG",
    _flag,
    False,
    "Makes the pipeline trainer report each train call.",
)
IMPORT_UNSLOTH = Variable(
    "IMPORT_UNSLOTH",
    _flag,
    False,
    "Of other releases: accepted, has no effect. The trainer imports Unsloth by itself, where it is used.",
)
PYTORCH_CUDA_ALLOC_CONF = _optional_text(
    "PYTORCH_CUDA_ALLOC_CONF",
    "PyTorch's: its allocator. Never changed here; vLLM sees to it that `expandable_segments` and its sleep agree.",
)
ACCELERATE_MIXED_PRECISION = _optional_text(
    "ACCELERATE_MIXED_PRECISION",
    "accelerate's: `bf16` makes the trainer compute in bfloat16, else float16.",
)
UNSLOTH_FORCE_FLOAT32 = Variable(
    "UNSLOTH_FORCE_FLOAT32",
    _flag,
    False,
    "Unsloth's: set by it for models that overflow in float16.",
)
UNSLOTH_RETURN_HIDDEN_STATES = Variable(
    "UNSLOTH_RETURN_HIDDEN_STATES",
    _flag,
    False,
    "Unsloth's: its models return hidden states in place of logits. Not needed here.",
)

# Other services ---------------------------------------------------------------------------------------------

WANDB_API_KEY = _optional_text("WANDB_API_KEY", "Turns Weights & Biases on.")
BACKUP_BUCKET = _optional_text("BACKUP_BUCKET", "S3 bucket to use when a call names none.")
OPENROUTER_API_KEY = _optional_text("OPENROUTER_API_KEY", "Key for generating scenarios from MCP tools.")
SUPPRESS_LITELLM_SERIALIZATION_WARNINGS = Variable(
    "SUPPRESS_LITELLM_SERIALIZATION_WARNINGS",
    _flag,
    True,
    "Hide pydantic's warnings about answers that litellm made.",
)

VARIABLES: tuple[Variable[Any], ...] = (
    ROLLOUT_TIMEOUT_S,
    SERVER_TIMEOUT_S,
    DEDICATED_SERVER_TIMEOUT_S,
    HEALTH_TIMEOUT_S,
    ADAPTER_RELOAD_TIMEOUT_S,
    VLLM_ALLOW_RUNTIME_LORA_UPDATING,
    VLLM_SERVER_DEV_MODE,
    CUDA_VISIBLE_DEVICES,
    VLLM_NO_USAGE_STATS,
    VLLM_RPC_BASE_PATH,
    VLLM_CPU_OMP_THREADS_BIND,
    OMP_NUM_THREADS,
    OMP_WAIT_POLICY,
    TORCHDYNAMO_DISABLE,
    TRAIN_STEP_LOG,
    IMPORT_UNSLOTH,
    PYTORCH_CUDA_ALLOC_CONF,
    ACCELERATE_MIXED_PRECISION,
    UNSLOTH_FORCE_FLOAT32,
    UNSLOTH_RETURN_HIDDEN_STATES,
    WANDB_API_KEY,
    BACKUP_BUCKET,
    OPENROUTER_API_KEY,
    SUPPRESS_LITELLM_SERIALIZATION_WARNINGS,
)
