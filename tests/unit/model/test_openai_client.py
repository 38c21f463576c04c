"""The transport of rollouts."""

from __future__ import annotations

import logging
import resource
from typing import Any

import pytest

from art.model import openai_client


def transport_of(url: str) -> Any:
    return openai_client.build_openai_client(url, "key", None)._client


@pytest.fixture
def file_limit(monkeypatch: pytest.MonkeyPatch) -> Any:
    def set_limit(soft_limit: int) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda _: (soft_limit, soft_limit))

    return set_limit


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8000/v1", True),
        ("http://127.3.2.1/v1", True),
        ("http://localhost/v1", True),
        ("http://[::1]:8000/v1", True),
        ("http://0.0.0.0:8000/v1", True),
        ("https://api.example.com/v1", False),
        ("http://10.0.0.1/v1", False),
    ],
)
def test_loopback_addresses(url: str, expected: bool) -> None:
    assert openai_client.is_loopback_url(url) is expected


def test_proxies_are_for_other_machines_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example.com:3128")
    assert transport_of("http://127.0.0.1:8000/v1")._mounts == {}
    assert transport_of("http://api.example.com/v1")._mounts != {}


def test_limits_and_timeouts(file_limit: Any) -> None:
    file_limit(1_000_000)
    transport = transport_of("http://127.0.0.1:8000/v1")
    assert transport._transport._pool._max_connections == 1024
    assert transport._transport._pool._max_keepalive_connections == 1024
    assert (transport.timeout.connect, transport.timeout.read) == (30.0, 1200.0)


def test_connections_keep_within_the_file_limit(file_limit: Any, caplog: pytest.LogCaptureFixture) -> None:
    file_limit(1024)
    with caplog.at_level(logging.INFO):
        assert transport_of("http://127.0.0.1:8000/v1")._transport._pool._max_connections == 768
    assert "ulimit" in caplog.text
