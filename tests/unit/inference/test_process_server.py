"""The socket of a server, and what its log says about a failed start."""

from __future__ import annotations

import socket

import pytest

from art.errors import ConfigurationError
from art.inference.process_server import connectable_url, open_listener, root_cause


def test_answers_do_not_wait_for_acknowledgements() -> None:
    with open_listener("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_an_address_that_cannot_be_had_is_named_with_what_helps() -> None:
    with open_listener("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigurationError, match=f"127.0.0.1:{port}: .*another program uses it; choose another port"
        ):
            open_listener("127.0.0.1", port)
    for host, port in (("192.0.2.1", 0), ("127.0.0.1", 99_999)):
        with pytest.raises(ConfigurationError, match=f"{host}:{port}: .*; choose another host or port"):
            open_listener(host, port)


def test_connections_wait_while_nobody_accepts() -> None:
    with open_listener("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()) as client:
        client.sendall(b"asked before the server was up")
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.recv(100) == b"asked before the server was up"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000/v1"),
        ("0.0.0.0", "http://127.0.0.1:8000/v1"),
        ("::", "http://[::1]:8000/v1"),
        ("some-host", "http://some-host:8000/v1"),
    ],
)
def test_an_address_to_listen_on_becomes_one_to_connect_to(host: str, url: str) -> None:
    assert connectable_url(host, 8000) == url


def test_the_first_exception_of_a_log_is_the_cause() -> None:
    log = (
        "INFO 01-01 starting: all well\n"
        "(EngineCore pid=7) ERROR 01-01 12:00:00 [core.py:1] Traceback (most recent call last):\n"
        "(EngineCore pid=7) ERROR 01-01 12:00:00 [core.py:1] torch.OutOfMemoryError: CUDA out of memory\n"
        "RuntimeError: Engine core initialization failed\n"
    )
    assert root_cause(log) == "torch.OutOfMemoryError: CUDA out of memory"
    assert root_cause("INFO nothing to see: here\n") == ""
