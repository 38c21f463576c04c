"""An object in a child process and one in a thread answer alike; the child's faults reach the caller."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from art.errors import TrainerDiedError
from mp_actors import ActorProxy, ThreadActor, close_proxy, move_to_child_process, move_to_thread
from tests.support.actor_targets import Counter
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
