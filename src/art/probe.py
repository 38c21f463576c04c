"""The probe of an adapter: what a fixed, short token sequence scores under it.

The trainer takes it when it saves a checkpoint; whoever publishes the checkpoint compares it with what the server
answers under the new name. Data only: no tensors, no HTTP.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

PROBE_FILE = "probe.json"
# Every other token is a comma in most vocabularies: the server is asked for the logprob of one token at many places.
PROBE_TEXT = "yes, no, maybe, never, always, often, here, there, now"
PROBE_TOKENS = 16


@dataclass(frozen=True)
class AdapterProbe:
    """Logprobs of a fixed token sequence under one adapter.

    Attributes:
        token_ids: The sequence, length T (2 to 16 tokens).
        logprobs: Natural logprob of token t + 1 given tokens 0..t, length T - 1.
        base_logprobs: The same with the adapter switched off, length T - 1.
        dtype: Computation type of the trainer's forward pass, such as "float32" or "bfloat16"; "quantized" where the
            base model's weights are stored in 4 or 8 bits.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    base_logprobs: tuple[float, ...]
    dtype: str

    @property
    def target(self) -> int:
        """The token whose logprob the server is asked for: the most frequent one that has something before it."""
        counts = Counter(self.token_ids[1:])
        return max(counts, key=lambda token: (counts[token], -self.token_ids.index(token, 1)))

    @property
    def positions(self) -> tuple[int, ...]:
        """Where the target stands, as indices into `logprobs`: it is predicted from `token_ids[: index + 1]`."""
        return tuple(index for index, token in enumerate(self.token_ids[1:]) if token == self.target)

    def at_positions(self, logprobs: tuple[float, ...]) -> tuple[float, ...]:
        """Pick the values at `positions` from T - 1 values."""
        return tuple(logprobs[index] for index in self.positions)

    def write(self, checkpoint_dir: Path) -> None:
        """Write `probe.json` into a checkpoint folder that is still being staged."""
        (checkpoint_dir / PROBE_FILE).write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, checkpoint_dir: Path) -> AdapterProbe | None:
        """Read the probe of a checkpoint; None where it has none (it was made by another program)."""
        path = checkpoint_dir / PROBE_FILE
        if not path.exists():
            return None
        fields = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            token_ids=tuple(fields["token_ids"]),
            logprobs=tuple(fields["logprobs"]),
            base_logprobs=tuple(fields["base_logprobs"]),
            dtype=fields["dtype"],
        )
