"""An object in a child process and one in a thread answer alike; the child's faults reach the caller."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from art.errors import TrainerDiedError
from art.processes import ChildProcess
from mp_actors import ActorProxy, ThreadActor, close_proxy, move_to_child_process, move_to_thread
from tests.support.actor_targets import Counter, ReadableIn
from tests.support.waiting import is_running, wait_until


@pytest.fixture
def child(tmp_path: Path) -> Iterator[ActorProxy]:
    proxy = move_to_child_process(Counter(10), log_file=tmp_path / "child.log")
    yield proxy
    close_proxy(proxy)


@pytest.fixture(params=["child", "thread"])
def actor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ActorProxy | ThreadActor]:
    if request.param == "child":
        moved: ActorProxy | ThreadActor = move_to_child_process(Counter(10), log_file=tmp_path / "child.log")
    else:
        moved = move_to_thread(Counter(10))
    yield moved
    moved.close()


@pytest.mark.asyncio
async def test_every_kind_of_method_is_called(actor: ActorProxy | ThreadActor) -> None:
    assert await actor.add(5) == 15
    assert await actor.add_blocking(1) == 16
    assert [number async for number in actor.count_up(3)] == [0, 1, 2]


def test_calls_may_come_from_several_event_loops(actor: ActorProxy | ThreadActor) -> None:
    assert asyncio.run(actor.add(1)) == 11
    assert asyncio.run(actor.add(1)) == 12


@pytest.mark.asyncio
async def test_exceptions_come_back_as_they_are(actor: ActorProxy | ThreadActor) -> None:
    with pytest.raises(ValueError, match="not this one"):
        await actor.fail("not this one")
    with pytest.raises(ValueError, match="after the last"):
        _ = [number async for number in actor.count_and_fail(2)]
    assert await actor.add(0) == 10


@pytest.mark.asyncio
async def test_cancelling_a_call_cancels_it_where_it_runs(actor: ActorProxy | ThreadActor, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    call = asyncio.ensure_future(actor.wait_for_ever(str(marker)))
    await asyncio.to_thread(wait_until, lambda: marker.exists() and marker.read_text() == "started")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.to_thread(wait_until, lambda: marker.read_text() == "cancelled")
    assert await actor.add(0) == 10


@pytest.mark.asyncio
async def test_events_reach_the_owner(actor: ActorProxy | ThreadActor) -> None:
    seen: list[object] = []
    actor.on_event(seen.append)
    await actor.add(7)
    assert seen == [{"value": 17}]


@pytest.mark.asyncio
async def test_what_cannot_be_pickled_is_an_error_and_not_a_wait(child: ActorProxy) -> None:
    with pytest.raises(RuntimeError, match="cannot be sent"):
        await child.give_unpicklable()
    with pytest.raises(RuntimeError, match="cannot travel"):
        await child.fail_oddly()
    with pytest.raises(SystemExit):
        await child.exit_system()
    assert await child.add(0) == 10


@pytest.mark.asyncio
async def test_death_of_the_child_fails_pending_and_later_calls(child: ActorProxy, tmp_path: Path) -> None:
    died = threading.Event()
    child.on_death(lambda error: died.set())
    waiting = asyncio.ensure_future(child.wait_for_ever(str(tmp_path / "marker")))
    await asyncio.to_thread(wait_until, (tmp_path / "marker").exists)
    with pytest.raises(TrainerDiedError, match="killed by SIGKILL") as caught:
        await child.die()
    assert caught.value.exit_code == -9
    with pytest.raises(TrainerDiedError):
        await waiting
    with pytest.raises(TrainerDiedError):
        await child.add(1)
    await asyncio.to_thread(wait_until, died.is_set)


@pytest.mark.asyncio
async def test_closing_takes_grandchildren_along(child: ActorProxy) -> None:
    pid, grandchild = await child.pid(), await child.start_grandchild()
    await asyncio.to_thread(close_proxy, child)
    assert not is_running(pid)
    assert not is_running(grandchild)


@pytest.mark.asyncio
async def test_a_killed_child_leaves_no_grandchild(child: ActorProxy) -> None:
    grandchild = await child.start_grandchild()
    with pytest.raises(TrainerDiedError):
        await child.die()
    await asyncio.to_thread(wait_until, lambda: not is_running(grandchild))


@pytest.mark.asyncio
async def test_only_methods_reach_a_child(child: ActorProxy) -> None:
    with pytest.raises(AttributeError, match="not a method"):
        _ = child.value


@pytest.mark.asyncio
async def test_what_the_other_process_cannot_read_fails_its_own_call_only(child: ActorProxy, tmp_path: Path) -> None:
    waiting = asyncio.ensure_future(child.wait_for_ever(str(tmp_path / "marker")))
    with pytest.raises(RuntimeError, match="not readable here"):
        await child.give_unreadable()
    with pytest.raises(RuntimeError, match="not readable here"):
        await child.fail_unreadably()
    with pytest.raises(RuntimeError, match="not readable here"):
        _ = [value async for value in child.count_unreadably()]
    with pytest.raises(TypeError, match="the arguments of take cannot be read"):
        await child.take(ReadableIn(os.getpid()))
    assert not waiting.done()
    assert await child.add(0) == 10
    waiting.cancel()


@pytest.mark.asyncio
async def test_a_call_cancelled_while_it_is_sent_is_cancelled_in_the_child(
    child: ActorProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await child.ready()
    marker, sending, may_go_on = tmp_path / "marker", threading.Event(), threading.Event()
    send = child._channel.send

    def send_late(frame: object) -> None:
        sending.set()
        may_go_on.wait(10)
        send(frame)

    monkeypatch.setattr(child._channel, "send", send_late)
    call = asyncio.ensure_future(child.wait_for_ever(str(marker)))
    await asyncio.to_thread(sending.wait, 10)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    may_go_on.set()
    assert await child.add(0) == 10  # by now the child has seen the call, and begun it unless it was cancelled first
    await asyncio.to_thread(wait_until, lambda: not marker.exists() or marker.read_text() == "cancelled")


@pytest.mark.asyncio
async def test_a_child_that_does_not_read_holds_up_no_event_loop(child: ActorProxy, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    waiting = asyncio.ensure_future(child.wait_for_ever(str(marker)))
    await asyncio.to_thread(wait_until, marker.exists)
    os.kill(child.process.pid, signal.SIGSTOP)
    try:
        large = asyncio.ensure_future(child.take(b"x" * 10_000_000))
        await asyncio.to_thread(wait_until, child._channel._send_lock.locked)
        began = time.monotonic()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert time.monotonic() - began < 1.0
    finally:
        os.kill(child.process.pid, signal.SIGCONT)
    assert await large == "bytes"
    await asyncio.to_thread(wait_until, lambda: marker.read_text() == "cancelled")


@pytest.mark.asyncio
async def test_closing_ends_calls_with_an_error_that_is_no_cancellation(
    actor: ActorProxy | ThreadActor, tmp_path: Path
) -> None:
    waiting = asyncio.ensure_future(actor.wait_for_ever(str(tmp_path / "marker")))
    await asyncio.to_thread(wait_until, (tmp_path / "marker").exists)
    await asyncio.to_thread(actor.close)
    with pytest.raises(RuntimeError, match="wait_for_ever was cut off"):
        await waiting
    with pytest.raises(RuntimeError, match="Counter is closed"):
        await actor.add(1)


@pytest.mark.asyncio
async def test_giving_up_on_readiness_leaves_it_to_others(tmp_path: Path) -> None:
    child = move_to_child_process(Counter(10), log_file=tmp_path / "child.log")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(child.ready(), 0.001)
    await child.ready()
    await asyncio.to_thread(close_proxy, child)


@pytest.mark.asyncio
async def test_a_death_before_anybody_listens_is_told_to_whoever_does(child: ActorProxy) -> None:
    with pytest.raises(TrainerDiedError):
        await child.die()
    told: list[TrainerDiedError] = []
    child.on_death(told.append)
    assert [error.exit_code for error in told] == [-9]


def test_a_child_that_cannot_be_started_leaves_no_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(ChildProcess, "start", refuse)
    with pytest.raises(OSError, match="no more processes"):
        move_to_child_process(Counter(10), log_file=tmp_path / "child.log")
    gc.collect()  # an open socket would be reported now


def test_calls_that_race_with_closing_end() -> None:
    async def keep_calling(actor: ThreadActor) -> None:
        while True:
            await actor.add(1)

    async def call_until_closed(actor: ThreadActor) -> None:
        with pytest.raises(RuntimeError, match=r"is closed|is being closed"):
            await keep_calling(actor)

    for _ in range(20):
        actor = move_to_thread(Counter())
        callers = [threading.Thread(target=asyncio.run, args=(call_until_closed(actor),)) for _ in range(4)]
        for caller in callers:
            caller.start()
        actor.close()
        for caller in callers:
            caller.join(10)
            assert not caller.is_alive()
