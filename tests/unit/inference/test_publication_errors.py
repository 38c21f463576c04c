"""Errors of asking a server become ours, and say whether another try may help."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from art.errors import AdapterNotServedError, LocalServingUnavailableError
from art.inference.publication_errors import about_step, translated
from art.inference.runtime import AdapterFiles

ADAPTER = AdapterFiles(step=7, name="policy@7", path=Path("/serving/0007"))


def answered(status: int) -> httpx.HTTPStatusError:
    response = httpx.Response(
        status, json={"error": {"message": "own words"}}, request=httpx.Request("GET", "http://x")
    )
    return httpx.HTTPStatusError("status", request=response.request, response=response)


@pytest.mark.parametrize(
    "error", [answered(404), answered(422), KeyError("choices"), json.JSONDecodeError("no", "", 0)]
)
def test_a_refusal_or_a_strange_answer_is_final(error: Exception) -> None:
    with (
        pytest.raises(AdapterNotServedError, match="policy@7 could not be confirmed at http://x") as caught,
        translated(ADAPTER, "http://x"),
    ):
        raise error
    assert caught.value.step == 7
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [answered(503), httpx.ReadTimeout("slow"), httpx.ConnectError("refused")])
def test_a_busy_or_silent_server_may_answer_another_time(error: Exception) -> None:
    with pytest.raises(LocalServingUnavailableError, match="policy@7") as caught, translated(ADAPTER, "http://x"):
        raise error
    assert caught.value.facts == {"url": "http://x", "adapter_name": "policy@7", "step": 7}


def test_a_server_that_fails_may_have_a_dead_engine() -> None:
    with (
        pytest.raises(LocalServingUnavailableError, match=r"policy@7 .* answered 500 \(own words\)") as caught,
        translated(ADAPTER, "http://x"),
    ):
        raise answered(500)
    assert caught.value.facts["status"] == 500


def test_other_errors_pass() -> None:
    with pytest.raises(ZeroDivisionError), translated(ADAPTER, "http://x"):
        raise ZeroDivisionError


def test_an_error_about_the_server_alone_is_told_the_step() -> None:
    alone = LocalServingUnavailableError("gone", facts={"pid": 3})
    told = about_step(alone, "policy@7", 7, Path("/checkpoints/0007"))
    assert told.facts == {"pid": 3, "adapter_name": "policy@7", "step": 7, "path": "/checkpoints/0007"}
    assert about_step(told, "policy@8", 8, Path("/elsewhere")) is told
