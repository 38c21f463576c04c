"""Note which names of the inference server answered a block of code."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


class Answers:
    """How many answers each name gave.

    Attributes:
        counts: Answers by name.
    """

    def __init__(self, on_answer: Callable[[], None] | None, outer: Answers | None) -> None:
        self.counts: Counter[str] = Counter()
        self._on_answer = on_answer
        self._outer = outer

    def add(self, name: str) -> None:
        """Count an answer, here and in the blocks around this one."""
        self.counts[name] += 1
        if self._on_answer is not None:
            self._on_answer()
        if self._outer is not None:
            self._outer.add(name)


_answers: ContextVar[Answers | None] = ContextVar("art_answers", default=None)


@contextmanager
def noting_answers(on_answer: Callable[[], None] | None = None) -> Iterator[Answers]:
    """Note what answers the block, and the tasks started in it, through clients of `Model.openai_client()`.

    Args:
        on_answer: Called with every answer.
    """
    answers = Answers(on_answer, _answers.get())
    token = _answers.set(answers)
    try:
        yield answers
    finally:
        _answers.reset(token)


async def note_answer(response: Any) -> None:
    """Count a response that is about to be handed out; an event hook of HTTP clients."""
    answers = _answers.get()
    if answers is None or response.is_error:
        return
    try:
        body = json.loads(response.request.content)
    except (ValueError, RuntimeError):  # not JSON, or a stream that is gone
        return
    if isinstance(body, dict) and isinstance(name := body.get("model"), str):
        answers.add(name)
