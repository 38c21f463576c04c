"""What trains and serves one model for `LocalBackend`, as a protocol; `art.unsloth.service` has the one there is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from art import dev
    from art.preprocessing.disk import DiskPackedTensors
    from art.preprocessing.tokenize import SFTBatch
    from art.types import TrainConfig


@runtime_checkable
class ModelService(Protocol):
    """Trains one model and serves each step of it."""

    def __init__(self, model_name: str, base_model: str, config: dev.InternalModelConfig, output_dir: str) -> None:
        """Take the settings; nothing is started yet."""

    async def start_openai_server(self, config: dev.OpenAIServerConfig | None) -> tuple[str, int]:
        """Start trainer and server, once; give the server's host and port."""

    async def vllm_engine_is_sleeping(self) -> bool:
        """Tell whether the engine has given its memory to the trainer."""

    def train(
        self,
        disk_packed_tensors: DiskPackedTensors,
        config: TrainConfig,
        _config: dev.TrainConfig,
        verbose: bool = False,
    ) -> AsyncIterator[dict[str, float]]:
        """Train one step by reinforcement learning and serve it, yielding metrics of each gradient step."""

    def train_sft(self, batches: list[SFTBatch], verbose: bool = False) -> AsyncIterator[dict[str, float]]:
        """Train one step on given answers and serve it, yielding metrics of each batch."""
