"""Starting, closing, and what surrounds the server: ports, proxies, logs, the parent's end."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from art.errors import ConfigurationError, LocalServingUnavailableError, ServerNotReadyError, ServerStartError
from art.inference.supervised import SupervisedRuntime
from tests.support.scripted_faults import Faults, started_pids
from tests.support.scripted_http import bind, free_port
from tests.support.serving import SETTINGS, Rollouts, eventually, server_spec, serving
from tests.support.waiting import is_running, wait_until

pytestmark = pytest.mark.integration

SLOW_START = Faults(start_delay_s=60.0)


async def start_until_spawned(model_dir: Path, *starts: Faults) -> tuple[asyncio.Future[SupervisedRuntime], int]:
    starting = asyncio.ensure_future(SupervisedRuntime.start(server_spec(model_dir, starts), SETTINGS))
    await eventually(lambda: bool(started_pids(model_dir / "script")), 10.0)
    return starting, started_pids(model_dir / "script")[0]


@pytest.mark.asyncio
async def test_cancelling_a_start_leaves_no_process(tmp_path: Path) -> None:
    starting, pid = await start_until_spawned(tmp_path, SLOW_START)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not is_running(pid)


@pytest.mark.parametrize("yields", range(1, 10, 2))
@pytest.mark.asyncio
async def test_cancelling_a_start_at_any_moment_leaves_no_process(
    tmp_path: Path, yields: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("art.inference.supervised_server.START_STOP_GRACE_S", 0.1)
    starting = asyncio.ensure_future(SupervisedRuntime.start(server_spec(tmp_path, [SLOW_START]), SETTINGS))
    for _ in range(yields):
        await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not any(map(is_running, started_pids(tmp_path / "script")))
    wait_until(lambda: not children_running("tests.support.scripted_server"))


def children_running(module: str) -> list[str]:
    listing = subprocess.run(["ps", "--no-headers", "-o", "pid,args", "--ppid", str(os.getpid())], capture_output=True)
    return [line for line in listing.stdout.decode().splitlines() if module in line]


@pytest.mark.asyncio
async def test_a_start_that_fails_says_why_at_once(tmp_path: Path) -> None:
    spec = server_spec(tmp_path, [Faults(start_exit_code=4)])
    with pytest.raises(ServerStartError, match="exited with code 4; cause: ValueError: scripted failure") as caught:
        await SupervisedRuntime.start(spec, SETTINGS)
    assert caught.value.exit_code == 4
    assert "scripted failure of a start" in caught.value.log_tail


@pytest.mark.asyncio
async def test_a_start_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    spec = server_spec(tmp_path, [SLOW_START], start_timeout_s=1.0)
    with pytest.raises(ServerNotReadyError, match="was not ready after 1 s") as caught:
        await SupervisedRuntime.start(spec, SETTINGS)
    assert caught.value.waited_s < 2.0
    assert not any(map(is_running, started_pids(tmp_path / "script")))


@pytest.mark.asyncio
async def test_closing_during_a_recovery_leaves_no_process(tmp_path: Path) -> None:
    async with serving(tmp_path, starts=(Faults(), SLOW_START)) as stand:
        os.kill(stand.runtime.process.pid, signal.SIGKILL)
        await eventually(lambda: len(stand.started_pids) == 2)
        publishing = asyncio.ensure_future(stand.publish(1))
        began = time.monotonic()
        await stand.runtime.close()
        assert time.monotonic() - began < 6.0
        with pytest.raises(LocalServingUnavailableError, match="was closed"):
            await publishing
    assert not any(map(is_running, stand.started_pids))


@pytest.mark.asyncio
async def test_closing_twice_and_at_once_and_cancelled_ends_it_all_the_same(tmp_path: Path) -> None:
    async with serving(tmp_path, starts=[Faults(grandchild=True)]) as stand:
        grandchild = int(stand.log.partition("grandchild: ")[2].split()[0])
        first, second = (asyncio.ensure_future(stand.runtime.close()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await second
        await stand.runtime.close()
        assert not is_running(stand.started_pids[0])
        assert not is_running(grandchild)
        with pytest.raises(LocalServingUnavailableError, match="was closed"):
            await stand.runtime.load_adapter(stand.registry.live[0])


@pytest.mark.asyncio
async def test_a_server_that_ignores_being_asked_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("art.inference.supervised_server.STOP_GRACE_S", 0.5)
    async with serving(tmp_path, starts=[Faults(ignore_sigterm=True)]) as stand:
        pass
    assert not is_running(stand.started_pids[0])


def test_a_killed_parent_leaves_nothing_running(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys; from pathlib import Path\n"
        "from tests.support.scripted_faults import Faults\n"
        "from tests.support.serving import serving\n"
        "async def main():\n"
        "    async with serving(Path(sys.argv[1]), starts=[Faults(grandchild=True, ignore_sigterm=True)]):\n"
        "        print('serving', flush=True); await asyncio.Event().wait()\n"
        "asyncio.run(main())"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.getcwd()})
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"serving\n"
    (server,) = started_pids(tmp_path / "script")
    log = (tmp_path / "logs" / "vllm-dedicated.log").read_text()
    grandchild = int(log.partition("grandchild: ")[2].split()[0])
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not is_running(server) and not is_running(grandchild), timeout_s=5.0)


@pytest.mark.asyncio
async def test_a_taken_port_is_a_clear_error_and_a_free_one_is_kept(tmp_path: Path) -> None:
    with bind("127.0.0.1", free_port()) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigurationError, match=f"cannot listen on 127.0.0.1:{port}: .*in use; another program uses it"
        ):
            await SupervisedRuntime.start(server_spec(tmp_path, port=port), SETTINGS)
    with pytest.raises(ConfigurationError, match=r"cannot listen on 127\.0\.0\.1:99999"):
        await SupervisedRuntime.start(server_spec(tmp_path, port=99999), SETTINGS)
    async with serving(tmp_path, port=0) as stand:
        port = stand.runtime.address[1]
        os.kill(stand.runtime.process.pid, signal.SIGKILL)
        with pytest.raises(OSError, match="in use"):
            bind("127.0.0.1", port)
        await stand.publish(1)
        assert stand.runtime.address == ("127.0.0.1", port)


@pytest.mark.asyncio
async def test_proxy_variables_catch_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    async with serving(tmp_path) as stand, Rollouts(stand, 2) as rollouts:
        await stand.publish(1)
        await rollouts.go_on()


@pytest.mark.asyncio
async def test_an_unwritable_log_is_a_clear_error_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    with pytest.raises(ConfigurationError, match=r"logs/vllm-dedicated.log cannot be written: .*choose another path"):
        await SupervisedRuntime.start(server_spec(tmp_path), SETTINGS)
    assert started_pids(tmp_path / "script") == []


@pytest.mark.asyncio
async def test_restarts_long_ago_do_not_count(tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, inference_restarts=1, restart_window_s=0.01)
    async with serving(tmp_path, settings=settings) as stand:
        for restarts in (1, 2, 3):
            os.kill(stand.runtime.process.pid, signal.SIGKILL)
            await eventually(lambda restarts=restarts: len(stand.events) == 2 * restarts, timeout_s=20.0)  # type: ignore[misc]
        assert stand.gate.is_open


@pytest.mark.asyncio
async def test_every_start_keeps_its_log(tmp_path: Path) -> None:
    async with serving(tmp_path) as stand:
        os.kill(stand.runtime.process.pid, signal.SIGKILL)
        await eventually(lambda: len(stand.events) == 2, timeout_s=20.0)
    async with serving(tmp_path) as later:
        pass
    logs = [tmp_path / "logs" / f"vllm-dedicated{number}.log" for number in (".1", ".2", "")]
    for log, pid in zip(logs, later.started_pids, strict=True):
        assert f"serving: pid={pid}" in log.read_text()
