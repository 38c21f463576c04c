"""The one object that a service drives: a model's adapter, trained, saved, probed, rolled back.

Synchronous, for one thread. Nothing here knows of an inference engine.
"""

from __future__ import annotations

import copy
import logging
import math
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from art.checkpoints import ADAPTER_CONFIG_FILE, checkpoint_dir, newest_step, next_step
from art.dev.model import InternalModelConfig
from art.dev.settings import INIT_DEFAULTS, SFT_TRAINER_DEFAULTS, TRAINER_DEFAULTS, TrainSettings
from art.errors import MissingDependencyError, NonFiniteLossError, TrainingError
from art.preprocessing.disk import DiskPackedTensors, packed_tensors_from_dir
from art.preprocessing.sft_store import SFTBatches
from art.probe import PROBE_TEXT, PROBE_TOKENS, AdapterProbe
from art.unsloth.language_model import LanguageModel
from art.unsloth.offload import Offloader, free_cached_memory
from art.unsloth.optimizer import log_ignored_arguments, make_optimizer
from art.unsloth.save_adapter import save_adapter
from art.unsloth.self_check import check_model
from art.unsloth.sft import SFTTrainer
from art.unsloth.state import build_model
from art.unsloth.train import RowTrainer
from art.unsloth.training_state import (
    RandomStates,
    TrainingMode,
    forget_training_state,
    load_training_state,
    save_training_state,
    to_cpu,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainerSnapshot:
    """All that training changes, copied to the CPU."""

    adapter: dict[str, torch.Tensor]
    optimizer: dict[str, Any]
    mode: TrainingMode | None
    random_states: RandomStates


@dataclass
class _Loaded:
    model: LanguageModel
    optimizer: torch.optim.Optimizer
    offloader: Offloader
    base_logprobs: tuple[float, ...]


class LoraTrainer:
    """Trains a LoRA adapter on packed batches.

    Args:
        base_model: Hub id or path of the base model.
        config: The model's configuration, complete (from `get_model_config`).
        output_dir: The model's folder, which holds `checkpoints/`.
        sft_args: Trainer arguments of supervised fine-tuning that differ from its defaults.
    """

    def __init__(
        self,
        *,
        base_model: str,
        config: InternalModelConfig,
        output_dir: Path,
        sft_args: Mapping[str, Any] | None = None,
    ) -> None:
        self._config = config
        self._sft_args = {**SFT_TRAINER_DEFAULTS, **(sft_args or {})}
        self._output_dir = Path(output_dir)
        start: str = config["init_args"].get("model_name") or base_model
        self._starts_from_adapter = (Path(start) / ADAPTER_CONFIG_FILE).is_file()
        self._base_model = base_model if self._starts_from_adapter else start
        self._loaded: _Loaded | None = None
        self._mode: TrainingMode | None = None

    def load(self) -> None:
        """Load the model with the newest checkpoint's adapter, or a fresh one, and make the optimizer.

        A fresh adapter changes nothing yet, and is the same every time for one `random_state`. The optimizer and
        torch's random generators go on where the newest checkpoint left them, if that holds their state. Repeated calls
        do nothing.

        Raises:
            ConfigurationError: A setting does not fit the model.
            DependencyError: A package is absent, or does not do what packed rows need.
            CheckpointError: The newest checkpoint cannot be used.
        """
        if self._loaded is not None:
            return
        adapter_dir = self._adapter_dir()
        model = build_model(self._base_model, self._config, adapter_dir)
        model.peft_model.train()
        check_model(model, self._probe_tokens())
        log_ignored_arguments(dict(self._config["trainer_args"]))
        parameters = model.adapter_parameters()
        optimizer = make_optimizer(parameters.values(), dict(self._config["trainer_args"]), model.device)
        with model.peft_model.disable_adapter():
            base_logprobs = tuple(model.score_sequence(self._probe_tokens()).tolist())
        offloader = Offloader(model.peft_model, optimizer, model.device)
        if adapter_dir is not None:
            self._mode = load_training_state(adapter_dir, optimizer=optimizer, parameter_names=list(parameters))
        self._loaded = _Loaded(model, optimizer, offloader, base_logprobs)
        logger.info(
            "trainer loaded: base_model=%s adapter=%s device=%s dtype=%s",
            self._base_model,
            adapter_dir or "fresh",
            model.device,
            model.dtype,
        )

    @cached_property
    def tokenizer(self) -> Any:
        """The base model's tokenizer."""
        return _import_transformers().AutoTokenizer.from_pretrained(self._base_model, **self._origin())

    @cached_property
    def image_processor(self) -> Any | None:
        """The base model's image processor; None for a model without a vision part."""
        transformers = _import_transformers()
        model_config = transformers.AutoConfig.from_pretrained(self._base_model, **self._origin())
        if not hasattr(model_config, "vision_config"):
            return None
        return transformers.AutoImageProcessor.from_pretrained(self._base_model, use_fast=True, **self._origin())

    @property
    def max_sequence_tokens(self) -> int:
        """The longest packed row that may be trained, in tokens."""
        return int(self._config["init_args"].get("max_seq_length") or INIT_DEFAULTS["max_seq_length"])

    @property
    def vocabulary_tokens(self) -> int:
        """How many token ids the model knows; a tokenizer may know fewer."""
        return int(self._require_loaded().model.causal_lm.get_input_embeddings().num_embeddings)

    @property
    def max_conversation_tokens(self) -> int:
        """The longest single conversation that may be trained, in tokens."""
        positions = getattr(self._require_loaded().model.text_config, "max_position_embeddings", None)
        return min(self.max_sequence_tokens, int(positions)) if positions else self.max_sequence_tokens

    def train(
        self, disk_packed_tensors: DiskPackedTensors, settings: TrainSettings, *, verbose: bool = False
    ) -> Iterator[dict[str, float]]:
        """Train on a packed batch; a generator that yields the metrics of each optimizer step.

        Work is done while the caller asks for the next dictionary. All or nothing: if this raises, or is closed before
        it has ended, the trainer is exactly as it was before the call. Counts over the whole call
        (`data/step_num_skipped_nonfinite`) are in the last dictionary only, so that averaging by key keeps them.

        Raises:
            DataError: The folder does not hold that batch, or the batch has nothing to train.
            NonFiniteLossError: No optimizer step could be taken.
            torch.OutOfMemoryError: The GPU's memory was not enough; cached memory has been freed.
            MemoryError: The host's memory was not enough.
        """
        loaded = self._require_loaded()
        trainer_args = self._config["trainer_args"]
        accumulated = trainer_args.get("gradient_accumulation_steps", TRAINER_DEFAULTS["gradient_accumulation_steps"])
        packed = packed_tensors_from_dir(**disk_packed_tensors)
        rows = RowTrainer(
            model=loaded.model,
            optimizer=loaded.optimizer,
            settings=settings,
            max_grad_norm=float(trainer_args.get("max_grad_norm", TRAINER_DEFAULTS["max_grad_norm"]) or 0.0),
            rows_per_step=settings.grad_accumulation_sequences or int(accumulated),
            step=next_step(self._output_dir),
        )
        yield from self._all_or_nothing("rl", rows.train(packed, verbose=verbose))

    def train_sft(self, batches: SFTBatches, *, verbose: bool = False) -> Iterator[dict[str, float]]:
        """Train on given answers; a generator that yields the metrics of each optimizer step, one for each batch.

        Batches without a token to train are left out. All or nothing, as `train`.

        Raises:
            NoTrainableTokensError: There is nothing to train.
            NonFiniteLossError: No optimizer step could be taken.
            torch.OutOfMemoryError: The GPU's memory was not enough; cached memory has been freed.
            MemoryError: The host's memory was not enough.
        """
        loaded = self._require_loaded()
        trainer = SFTTrainer(
            model=loaded.model,
            optimizer=loaded.optimizer,
            weight_decay=float(self._sft_args["weight_decay"]),
            max_grad_norm=float(self._sft_args["max_grad_norm"] or 0.0),
            step=next_step(self._output_dir),
        )
        yield from self._all_or_nothing("sft", trainer.train(batches, verbose=verbose))

    def _all_or_nothing(
        self, mode: TrainingMode, optimizer_steps: Iterator[dict[str, float]]
    ) -> Iterator[dict[str, float]]:
        before = self.snapshot()
        try:
            self.enter_mode(mode)
            yield from optimizer_steps
        except BaseException as err:
            # The frames hold activations, for which there may be no room beside the copies that come back.
            traceback.clear_frames(err.__traceback__)
            self.restore(before)
            if isinstance(err, torch.OutOfMemoryError | MemoryError):
                free_cached_memory()
            raise

    def save(self, path: Path, include_optimizer: bool = True) -> None:
        """Write adapter, tokenizer, probe and, if wanted, the optimizer's state into an existing empty folder.

        Raises:
            NonFiniteLossError: Training has made the weights unusable.
            CheckpointError: The inference engine would not apply the adapter as it is.
            OSError: The file system refused.
        """
        loaded = self._require_loaded()
        probe = self.probe()
        if not all(math.isfinite(logprob) for logprob in probe.logprobs):
            step = next_step(self._output_dir)
            raise NonFiniteLossError(
                f"step {step} is not saved: with its weights the model's logprobs are no finite numbers any more. A "
                "lower learning rate may help; the weights are those of the step before",
                step=step,
            )
        save_adapter(loaded.model.peft_model, self.tokenizer, path)
        probe.write(path)
        if include_optimizer:
            save_training_state(
                path,
                optimizer=loaded.optimizer,
                parameter_names=list(loaded.model.adapter_parameters()),
                mode=self._mode,
                device=loaded.model.device,
            )

    def enter_mode(self, mode: TrainingMode) -> None:
        """Note what the optimizer serves from now on; where it has served the other kind of training, it starts anew.

        Called within a step, so that a step that fails undoes it.
        """
        if self._mode not in (None, mode):
            forget_training_state(self._require_loaded().optimizer)
        self._mode = mode

    def probe(self) -> AdapterProbe:
        """Score the first 16 tokens of a fixed text, adapter on and off (the latter once, when the model is loaded)."""
        loaded = self._require_loaded()
        token_ids = self._probe_tokens()
        return AdapterProbe(
            token_ids=tuple(token_ids),
            logprobs=tuple(loaded.model.score_sequence(token_ids).tolist()),
            base_logprobs=loaded.base_logprobs,
            dtype="quantized" if loaded.model.is_quantized else str(loaded.model.dtype).removeprefix("torch."),
        )

    def snapshot(self) -> TrainerSnapshot:
        """Copy what training changes: the adapter, the optimizer's state, and torch's random generators."""
        loaded = self._require_loaded()
        return TrainerSnapshot(
            adapter=to_cpu({name: value.data for name, value in loaded.model.adapter_parameters().items()}),
            optimizer=to_cpu(loaded.optimizer.state_dict()),
            mode=self._mode,
            random_states=RandomStates.take(loaded.model.device),
        )

    def restore(self, snapshot: TrainerSnapshot) -> None:
        """Put the trainer back to a snapshot, bit for bit."""
        loaded = self._require_loaded()
        loaded.optimizer.zero_grad(set_to_none=True)
        for name, value in loaded.model.adapter_parameters().items():
            value.data.copy_(snapshot.adapter[name])
        # A copy, since the optimizer keeps tensors that need no move, and would then train the snapshot.
        loaded.optimizer.load_state_dict(copy.deepcopy(snapshot.optimizer))
        self._mode = snapshot.mode
        snapshot.random_states.restore()

    def offload(self) -> None:
        """Take the trainer off the GPU; does nothing on a CPU."""
        self._require_loaded().offloader.offload()

    def onload(self) -> None:
        """Put the trainer on the GPU again; does nothing on a CPU."""
        self._require_loaded().offloader.onload()

    def close(self) -> None:
        """Free the model; repeated calls do nothing."""
        self._loaded = None
        free_cached_memory()

    def _require_loaded(self) -> _Loaded:
        if self._loaded is None:
            raise TrainingError("the trainer is not loaded, or closed: call load() first")
        return self._loaded

    def _adapter_dir(self) -> Path | None:
        step = newest_step(self._output_dir)
        if step is not None:
            return checkpoint_dir(self._output_dir, step)
        return Path(self._config["init_args"]["model_name"]) if self._starts_from_adapter else None

    def _origin(self) -> dict[str, Any]:
        init_args = self._config["init_args"]
        return {
            "token": init_args.get("token"),
            "revision": init_args.get("revision"),
            "trust_remote_code": bool(init_args.get("trust_remote_code")),
        }

    def _probe_tokens(self) -> list[int]:
        token_ids: list[int] = self.tokenizer(PROBE_TEXT, add_special_tokens=False)["input_ids"]
        return token_ids[:PROBE_TOKENS]


def _import_transformers() -> Any:
    try:
        import transformers
    except ImportError as err:
        raise MissingDependencyError("transformers", needed_for="training", extra="train") from err
    return transformers
