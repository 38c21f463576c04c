"""A loaded model as the trainer uses it: hidden states of packed rows, the adapter's parameters, the adapter off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.nn.attention.flex_attention import BlockMask

from art.preprocessing.packed_tensors import PackedTensors
from art.unsloth.attention_mask import AttentionMask, MaskForm, build_attention
from art.unsloth.block_attention import SHORTEST_ROW_TOKENS
from art.unsloth.logprobs import OutputHead, scatter_predictions, token_logprobs, wanted_predictions
from art.unsloth.offload import available_gpu_memory

ADAPTER_NAME = "default"

# Share of the free memory that activations may take before they are recomputed instead.
_CPU_ACTIVATION_SHARE = 0.25
_GPU_ACTIVATION_SHARE = 0.6


@dataclass
class LanguageModel:
    """A base model with LoRA layers in it.

    Attributes:
        peft_model: The PEFT wrapper.
        causal_lm: The base model, whose layers hold the adapter.
        backbone: The part of it that makes hidden states.
        head: What makes logits of them.
        device: Where it computes.
        dtype: What it computes in.
        may_checkpoint: Whether activations may be recomputed in the backward pass; rows that need it are.
        is_quantized: Whether the base model's weights are stored in 4 or 8 bits, which moves its logprobs.
        is_fast: Whether the layers are Unsloth's, which bring their own way to recompute activations.
        mask_form: How packed rows are masked.
        activation_bytes_per_token: What a forward pass keeps for the backward pass; None: to be estimated.
    """

    peft_model: Any
    causal_lm: Any
    backbone: Any
    head: OutputHead
    device: torch.device
    dtype: torch.dtype
    may_checkpoint: bool
    is_quantized: bool = False
    is_fast: bool = False
    mask_form: MaskForm = "dense"
    activation_bytes_per_token: float | None = None

    @property
    def text_config(self) -> Any:
        """Configuration of the language part."""
        return self.causal_lm.config.get_text_config()

    def adapter_parameters(self) -> dict[str, torch.nn.Parameter]:
        """Return what is trained, by name, always in the same order."""
        return {name: value for name, value in self.peft_model.named_parameters() if value.requires_grad}

    def hidden_states(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        attention: AttentionMask | None,
        **images: torch.Tensor,
    ) -> torch.Tensor:
        """Return the last hidden states (B, S, H).

        Args:
            tokens: (B, S)
            positions: Rotary position of each token, (B, S).
            attention: From `build_attention`; None: plainly causal, which fits rows that hold one sequence from its
                start.
            images: What the vision part takes, such as `pixel_values`.
        """
        if _has_multimodal_positions(self.text_config):
            positions = positions.unsqueeze(0).expand(3, -1, -1)
        with torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32):
            output = self.backbone(
                input_ids=tokens,
                position_ids=positions,
                use_cache=False,
                **self._mask_arguments(tokens, attention),
                **images,
            )
        hidden: torch.Tensor = output.last_hidden_state
        return hidden

    def form_for(self, row: PackedTensors) -> MaskForm:
        """Return how a row is masked: one that is shorter than a block is not worth compiling kernels for."""
        return self.mask_form if row["tokens"].shape[1] >= SHORTEST_ROW_TOKENS else "dense"

    def recompute_activations(self, recompute: bool) -> None:
        """Switch recomputing of activations on or off in Unsloth's layers, where its loader has prepared it."""
        for module in self.causal_lm.modules():
            if hasattr(module, "_gradient_checkpointing_func"):
                module.gradient_checkpointing = recompute

    def score_row(self, row: PackedTensors, chunk_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Score the tokens of packed rows that a loss looks at; with gradient if that is switched on.

        Args:
            row: Tensors of shape (B, S), on the model's device.
            chunk_tokens: Tokens whose logits are made at once.

        Returns:
            Logprobs and entropies, prediction-aligned, (B, S), float32; 0 where no loss looks.
        """
        if torch.is_grad_enabled():
            self._choose_checkpointing(row["tokens"].shape[1])
        attention = build_attention(
            self.text_config, row["group_ids"], row["parent_ids"], row["input_pos"], self.dtype, self.form_for(row)
        )
        hidden = self.hidden_states(row["tokens"], row["input_pos"], attention, **self._images(row))
        is_wanted = wanted_predictions(row["assistant_mask"], row["logprobs"])
        next_tokens = torch.roll(row["tokens"], -1, dims=1)
        with torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32):
            logprobs, entropies = token_logprobs(hidden[is_wanted], next_tokens[is_wanted], self.head, chunk_tokens)
        return scatter_predictions(logprobs, is_wanted), scatter_predictions(entropies, is_wanted)

    def score_tokens(self, tokens: torch.Tensor, is_wanted: torch.Tensor, chunk_tokens: int) -> torch.Tensor:
        """Score tokens of sequences that begin at the first place of their row; with gradient if that is switched on.

        Args:
            tokens: (B, S), on the model's device, padded at the end if at all.
            is_wanted: (B, S), True for the N tokens to score; the first of a row never counts.
            chunk_tokens: Tokens whose logits are made at once.

        Returns:
            Logprobs (N,), float32.
        """
        if torch.is_grad_enabled():
            self._choose_checkpointing(tokens.numel())
        positions = torch.arange(tokens.shape[1], device=self.device).expand_as(tokens).contiguous()  # for kernels
        hidden = self.hidden_states(tokens, positions, None)
        with torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32):
            is_wanted = is_wanted[:, 1:]
            logprobs, _ = token_logprobs(hidden[:, :-1][is_wanted], tokens[:, 1:][is_wanted], self.head, chunk_tokens)
        return logprobs

    def score_sequence(self, token_ids: list[int]) -> torch.Tensor:
        """Return the float32 logprobs (T - 1,) of the tokens of one sequence, from the second on; no gradient."""
        tokens = torch.tensor([token_ids], device=self.device)
        positions = torch.arange(len(token_ids), device=self.device).unsqueeze(0)
        with self.evaluating(), torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32):
            hidden = self.hidden_states(tokens, positions, None)
            logprobs, _ = token_logprobs(hidden[0, :-1], tokens[0, 1:], self.head, len(token_ids))
        return logprobs

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """No gradients, no dropout; afterwards in training mode again if it was before."""
        was_training = self.peft_model.training
        self.peft_model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.peft_model.train(was_training)

    def _images(self, row: PackedTensors) -> dict[str, torch.Tensor]:
        keys: tuple[Literal["pixel_values", "image_grid_thw"], ...] = ("pixel_values", "image_grid_thw")
        present = {key: [part for part in row[key] if part is not None] for key in keys}
        return {key: torch.cat(parts).to(self.device) for key, parts in present.items() if parts}

    def _mask_arguments(self, tokens: torch.Tensor, attention: AttentionMask | None) -> dict[str, Any]:
        if self.is_fast and isinstance(attention, BlockMask):
            # With a mask of ones, positions that start again are not taken for rows packed in Unsloth's own way.
            return {"causal_mask": attention, "attention_mask": torch.ones_like(tokens)}
        return {"attention_mask": attention}

    def _choose_checkpointing(self, num_tokens: int) -> None:
        wanted = self.may_checkpoint and self._is_too_long_for_memory(num_tokens)
        if self.is_fast:
            self.recompute_activations(wanted)
        elif wanted and not self.causal_lm.is_gradient_checkpointing:
            self.causal_lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        elif not wanted and self.causal_lm.is_gradient_checkpointing:
            self.causal_lm.gradient_checkpointing_disable()

    def _is_too_long_for_memory(self, num_tokens: int) -> bool:
        """Estimate the activations of a row. Recomputing gives the same numbers and takes half as long again."""
        per_token = self.activation_bytes_per_token
        if per_token is None:
            # Measured on Llama-shaped models with adapters on all projections: 120 kB a token and layer at 576 and
            # 1,536.
            config = self.text_config
            width = 20 * config.hidden_size + 12 * getattr(config, "intermediate_size", 4 * config.hidden_size)
            per_token = config.num_hidden_layers * width * self.dtype.itemsize
        if self.device.type == "cuda":
            return bool(per_token * num_tokens > _GPU_ACTIVATION_SHARE * available_gpu_memory(self.device))
        import psutil

        return bool(per_token * num_tokens > _CPU_ACTIVATION_SHARE * psutil.virtual_memory().available)


def _has_multimodal_positions(text_config: Any) -> bool:
    return "mrope_section" in (getattr(text_config, "rope_parameters", None) or {})
