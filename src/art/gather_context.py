"""The state that rollouts of one gather call share: progress, running means, and how many may fail.

Who runs the rollouts is in `art.gather`, `art.batches` and `art.pending_group`.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from tqdm import tqdm

from art.env import ROLLOUT_TIMEOUT_S
from art.errors import LocalServingUnavailableError, ServerDiedError, TrainerDiedError
from art.types import Choice

logger = logging.getLogger(__name__)

FATAL_ROLLOUT_ERRORS: tuple[type[Exception], ...] = (
    LocalServingUnavailableError,
    ServerDiedError,
    TrainerDiedError,
)
"""What no rollout can recover from: these end a gather at once, whatever its allowance."""

_COMPLETION_TOKENS = "completion_tokens"


class _Conversation(Protocol):
    @property
    def messages_and_choices(self) -> Sequence[Any]: ...


class _ScoredConversation(_Conversation, Protocol):
    @property
    def additional_histories(self) -> Sequence[_Conversation]: ...
    @property
    def reward(self) -> float: ...
    @property
    def metrics(self) -> dict[str, float | int | bool]: ...


@dataclass
class GatherContext:
    """Progress and failure tolerance of one gather call.

    Attributes:
        pbar: The bar to advance, or None for no bar.
        metric_sums: Sum of each metric over finished trajectories.
        metric_divisors: Number of trajectories in each sum.
        max_metrics: How many trajectory metrics the bar shows beside the reward; None for all.
        max_exceptions: Failures allowed: a number, or a share of the bar's total when below 1.
        increment_pbar: Whether rollouts count themselves. False inside an awaitable that counts as one.
        rollout_timeout_s: How long one rollout may take, in seconds; `ART_ROLLOUT_TIMEOUT` where nobody says.
    """

    pbar: tqdm[Any] | None = None
    metric_sums: Counter[str] = field(default_factory=Counter)
    metric_divisors: Counter[str] = field(default_factory=Counter)
    max_metrics: int | None = None
    max_exceptions: int | float = 0
    increment_pbar: bool = True
    rollout_timeout_s: float = field(default_factory=ROLLOUT_TIMEOUT_S.read)
    _failures: Counter[str] = field(default_factory=Counter, repr=False)

    def update_pbar(self, n: int) -> None:
        """Advance the bar by n trajectories and show the current means."""
        if self.pbar is None or not self.increment_pbar:
            return
        self.pbar.set_postfix(self._postfix(), refresh=False)
        self.pbar.update(n)

    def too_many_exceptions(self) -> bool:
        """Say whether more rollouts have failed than allowed."""
        failures = self._failures.total()
        if 0 < self.max_exceptions < 1 and failures:
            total = self.pbar.total if self.pbar is not None else None
            return not total or failures / total > self.max_exceptions
        return failures > self.max_exceptions

    def reset(self) -> None:
        """Forget means and failures; the bar and the allowance stay."""
        for counter in (self.metric_sums, self.metric_divisors, self._failures):
            counter.clear()

    def count_failure(self, error: BaseException) -> None:
        """Count a failed rollout, and raise its error when it is fatal or one too many.

        Raises:
            BaseException: `error` itself, or the fatal error that caused it.
        """
        fatal = find_fatal_error(error)
        if fatal is not None:
            raise fatal
        self._failures[type(error).__name__] += 1
        if self.too_many_exceptions():
            raise error
        logger.warning("a rollout failed, within the allowance: failures=%d error=%r", self._failures.total(), error)

    def nested(self) -> GatherContext:
        """Give a context for the inside of an awaitable that counts as one: it shares the allowance, not the bar."""
        return replace(self, increment_pbar=False)

    def _postfix(self) -> dict[str, float]:
        means = {name: self.metric_sums[name] / count for name, count in self.metric_divisors.items()}
        tokens = {_COMPLETION_TOKENS: means.pop(_COMPLETION_TOKENS)} if _COMPLETION_TOKENS in means else {}
        reward = {"reward": means.pop("reward")} if "reward" in means else {}
        failures = {"exceptions": self._failures.total()} if self._failures else {}
        return reward | dict(list(means.items())[: self.max_metrics]) | failures | tokens


gather_context_var: contextvars.ContextVar[GatherContext | None] = contextvars.ContextVar(
    "gather_context", default=None
)


def get_gather_context() -> GatherContext:
    """Give the context of the gather call that this code runs in; outside any, a fresh one that allows no failure."""
    return gather_context_var.get() or GatherContext()


@contextlib.contextmanager
def set_gather_context(context: GatherContext) -> Iterator[None]:
    """Make a context current for the block and for the tasks started in it."""
    token = gather_context_var.set(context)
    try:
        yield
    finally:
        gather_context_var.reset(token)


def record_metrics(context: GatherContext, trajectory: _ScoredConversation) -> None:
    """Add a finished trajectory to the context's running means.

    Sets `trajectory.metrics["completion_tokens"]` to the mean number of sampled tokens per Choice that has
    logprobs, if there is one.

    Raises:
        TypeError: Its reward or a metric is no number.
    """
    set_completion_tokens(trajectory)
    if (complaint := find_non_number(trajectory)) is not None:
        raise complaint
    for name, value in {**trajectory.metrics, "reward": trajectory.reward}.items():
        context.metric_sums[name] += float(value)  # type: ignore[assignment]  # Counter is typed for integers only
        context.metric_divisors[name] += 1


def find_non_number(trajectory: _ScoredConversation) -> TypeError | None:
    """Give the error for a reward or metric that is no number, as a script may have assigned one; None if all are."""
    for name, value in {**trajectory.metrics, "reward": trajectory.reward}.items():
        try:
            if isinstance(value, str):
                raise TypeError("text")
            float(value)
        except (TypeError, ValueError, OverflowError) as cause:
            what = "the reward" if name == "reward" else f"the metric {name!r}"
            error = TypeError(f"{what} of a trajectory must be a number, got {value!r}")
            error.__cause__ = cause
            return error
    return None


def set_completion_tokens(trajectory: _ScoredConversation) -> None:
    """Set the trajectory's metric `completion_tokens`, the mean number of sampled tokens per Choice with logprobs."""
    lengths = [
        len(entry.logprobs.content or entry.logprobs.refusal or [])
        for history in (trajectory, *trajectory.additional_histories)
        for entry in history.messages_and_choices
        if isinstance(entry, Choice) and entry.logprobs is not None
    ]
    if lengths:
        trajectory.metrics[_COMPLETION_TOKENS] = sum(lengths) / len(lengths)


def find_fatal_error(error: BaseException) -> BaseException | None:
    """Find an error of `FATAL_ROLLOUT_ERRORS` in an error, its causes, or its group members; None if there is none.

    Clients wrap what their transport raises, so a dead server often reaches a rollout as the cause of another error.
    """
    pending: list[BaseException | None] = [error]
    seen: set[int] = set()
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        if isinstance(current, FATAL_ROLLOUT_ERRORS):
            return current
        seen.add(id(current))
        if isinstance(current, BaseExceptionGroup):
            pending.extend(current.exceptions)
        pending.extend((current.__context__, current.__cause__))
    return None


@contextlib.contextmanager
def progress_bar(description: str | None, total: int) -> Iterator[tqdm[Any]]:
    """Open a bar over `total` trajectories that is closed whatever happens; no description means no visible bar."""
    bar = _ProgressBar(desc=description, total=total, miniters=1, disable=description is None)
    with contextlib.closing(bar):
        yield bar


class _ProgressBar(tqdm):  # type: ignore[type-arg]  # not subscriptable at run time
    """A bar without the background thread that tqdm starts for bars which advance irregularly."""

    monitor_interval = 0
