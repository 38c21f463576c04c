"""How much of a group's token sequences is one shared prompt."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from art.preprocessing.token_sequence import TokenSequence


def shared_prompt_length(sequences: Sequence[TokenSequence]) -> int:
    """Count the tokens that a row of packed sequences needs to hold only once.

    These are the leading tokens that all sequences have in common, up to the first token that is trained or was
    sampled, less one: the last prompt token is repeated before each completion, because it predicts its first token.
    Images are shared only where they are the same, and whole.
    """
    if not sequences:
        return 0
    reference = sequences[0]
    first_ids = np.asarray(reference.token_ids)
    length = min(_first_sampled(sequence) for sequence in sequences)
    for sequence in sequences[1:]:
        length = min(length, len(sequence.token_ids))
        differs = np.flatnonzero(np.asarray(sequence.token_ids[:length]) != first_ids[:length])
        length = int(differs[0]) if len(differs) else length
        length = min(length, _first_other_image(reference, sequence, length))
    length = max(length - 1, 0)
    for number, start in enumerate(reference.image_starts):
        assert reference.images is not None
        if start < length < start + reference.images.tokens_per_image[number]:
            return start
    return length


def _first_sampled(sequence: TokenSequence) -> int:
    takes_part = np.asarray(sequence.assistant_mask, dtype=bool) | ~np.isnan(sequence.logprobs)
    return int(takes_part.argmax()) if takes_part.any() else len(takes_part)


def _first_other_image(reference: TokenSequence, sequence: TokenSequence, length: int) -> int:
    if reference.images is None or sequence.images is None:
        return length
    pairs = zip(reference.image_starts, reference.images.sources, sequence.images.sources, strict=False)
    return min((start for start, source, other in pairs if source != other), default=length)
