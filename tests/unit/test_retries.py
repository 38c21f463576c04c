from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from art.errors import ConfigurationError
from art.retries import retry


class Flaky:
    """Fails as often as told, and notes its calls."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.calls: list[str] = []

    def __call__(self, text: str) -> str:
        self.calls.append(text)
        if self.errors:
            raise self.errors.pop(0)
        return text.upper()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Make waiting instant in the test's thread, and note the seconds; other threads wait as ever."""
    seconds: list[float] = []
    here, sleep, sleep_async = threading.get_ident(), time.sleep, asyncio.sleep

    def note(duration: float) -> None:
        if threading.get_ident() == here:
            seconds.append(duration)
        else:
            sleep(duration)

    async def note_async(duration: float, result: Any = None) -> Any:
        if threading.get_ident() == here:
            seconds.append(duration)
            return result
        return await sleep_async(duration, result)

    monkeypatch.setattr(time, "sleep", note)
    monkeypatch.setattr(asyncio, "sleep", note_async)
    return seconds


def call_sync(decorate: Callable[[Any], Any], flaky: Flaky) -> str:
    @decorate
    def function(text: str) -> str:
        return flaky(text)

    result: str = function("a")
    return result


def call_async(decorate: Callable[[Any], Any], flaky: Flaky) -> str:
    @decorate
    async def function(text: str) -> str:
        return flaky(text)

    result: str = asyncio.run(function("a"))
    return result


both_kinds = pytest.mark.parametrize("call", [call_sync, call_async])


@both_kinds
def test_waits_grow_by_the_factor_until_a_call_succeeds(call: Any, waits: list[float]) -> None:
    flaky = Flaky(ValueError(), KeyError(), OSError())
    assert call(retry(max_attempts=4, delay=0.5, backoff_factor=3.0), flaky) == "A"
    assert flaky.calls == ["a"] * 4
    assert waits == [0.5, 1.5, 4.5]


@both_kinds
def test_last_error_is_raised_as_it_is(call: Any, waits: list[float]) -> None:
    last = ValueError("third")
    flaky = Flaky(ValueError("first"), ValueError("second"), last)
    with pytest.raises(ValueError, match="third") as caught:
        call(retry(), flaky)
    assert caught.value is last
    assert waits == [0.25, 0.5]


@both_kinds
def test_other_errors_pass_at_once(call: Any, waits: list[float]) -> None:
    flaky = Flaky(KeyError())
    with pytest.raises(KeyError):
        call(retry(exceptions=(ValueError, OSError)), flaky)
    assert waits == []


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit()], ids=repr)
@both_kinds
def test_cancellation_and_interrupts_pass_whatever_is_listed(
    call: Any, error: BaseException, waits: list[float]
) -> None:
    flaky = Flaky(error)
    with pytest.raises(type(error)):
        call(retry(exceptions=(BaseException,)), flaky)
    assert waits == []


@both_kinds
def test_on_retry_gets_error_and_attempt_in_place_of_the_warning(
    call: Any, waits: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[Exception, int]] = []
    first, second = ValueError(), KeyError()
    call(retry(on_retry=lambda error, attempt: seen.append((error, attempt))), Flaky(first, second))
    assert seen == [(first, 1), (second, 2)]
    assert caplog.records == []


@both_kinds
def test_warning_names_function_attempt_and_cause(
    call: Any, waits: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    call(retry(), Flaky(ValueError("busy")))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "function failed, attempt 1 of 3: ValueError('busy')" in record.getMessage()


def test_wrapped_function_keeps_its_name_and_calls_do_not_share_attempts(waits: list[float]) -> None:
    errors = [ValueError(), ValueError()]

    @retry(max_attempts=3)
    def function() -> str:
        """What it does."""
        if errors:
            raise errors.pop()
        errors.extend([ValueError(), ValueError()])
        return "done"

    assert (function.__name__, function.__doc__) == ("function", "What it does.")
    assert [function(), function()] == ["done", "done"]


def test_no_attempt_at_all_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_attempts=0"):
        retry(max_attempts=0)


def test_other_path_gives_the_same_decorator() -> None:
    from art.utils.retry import retry as other

    assert other is retry
