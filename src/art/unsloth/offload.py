"""Move the trainer's tensors off the GPU and back, while the inference engine uses it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import torch


class Offloader:
    """Keeps a trainer's tensors in page-locked memory while they are not on the GPU.

    The buffers stay between steps. What training does not change is copied only once, so taking it off the GPU again is
    free. On a CPU all of this does nothing.

    Args:
        module: The model.
        optimizer: Its optimizer.
        device: The GPU, or a CPU.
    """

    def __init__(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self._module = module
        self._optimizer = optimizer
        self._device = device
        self._buffers: dict[int, torch.Tensor] = {}
        self._away: list[tuple[torch.Tensor, torch.Tensor]] = []

    def offload(self) -> None:
        """Free the GPU memory of the trainer; repeated calls do nothing."""
        if self._device.type == "cpu" or self._away:
            return
        for tensor, is_frozen in self._tensors():
            buffer = self._buffers.get(id(tensor))
            is_known = buffer is not None and buffer.shape == tensor.shape and buffer.dtype == tensor.dtype
            if buffer is None or not is_known:
                buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            if not (is_known and is_frozen):
                buffer.copy_(tensor.data)
            # Only a model's own tensors live as long as this object; ids of others are used again.
            if isinstance(tensor, torch.nn.Parameter):
                self._buffers[id(tensor)] = buffer
            tensor.data = buffer
            self._away.append((tensor, buffer))
        torch.cuda.synchronize(self._device)
        free_cached_memory()

    def onload(self) -> None:
        """Put everything back; does nothing if nothing is away."""
        for tensor, buffer in self._away:
            tensor.data = buffer.to(self._device, non_blocking=True)
        if self._away:
            torch.cuda.synchronize(self._device)
        self._away = []

    def _tensors(self) -> Iterator[tuple[torch.Tensor, bool]]:
        """Yield each tensor on the GPU once, and whether it never changes."""
        for parameter in self._module.parameters():
            if parameter.device.type == "cuda":
                yield parameter, not parameter.requires_grad
        for buffer in self._module.buffers():
            if buffer.device.type == "cuda":
                yield buffer, False
        for state in self._optimizer.state.values():
            for value in state.values():
                # A paged tensor is in managed memory, which moves by itself.
                if _is_on_gpu(value) and not getattr(value, "is_paged", False):
                    yield value, False


def free_cached_memory() -> None:
    """Give back what the allocators keep for later."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def limit_gpu_memory(share: float) -> None:
    """Let this process take no more than a share of each GPU's memory, so that it leaves a server's alone."""
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        torch.cuda.set_per_process_memory_fraction(share, number)


def available_gpu_memory(device: torch.device) -> int:
    """Return how many bytes this process can still allocate on a GPU, those included that it has cached."""
    free, total = torch.cuda.mem_get_info(device)
    allocated = torch.cuda.memory_allocated(device)
    cached = torch.cuda.memory_reserved(device) - allocated
    limit = int(torch.cuda.get_per_process_memory_fraction(device) * total)
    return max(0, min(free + cached, limit - allocated))


def _is_on_gpu(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cuda"
