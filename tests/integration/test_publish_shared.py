"""A step counts as served only when the address that rollouts use answers with its weights. Real vLLM, real HTTP."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from art.errors import AdapterLoadError, AdapterNotServedError, CheckpointIncompleteError, StaleAdapterError
from art.inference.adapters import AdapterRegistry
from art.inference.publish import AdapterPublisher
from art.vllm import server, serving_registry
from tests.integration.conftest import Serving, TinyModel
from tests.support.tiny_model import make_adapter

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("default"),  # vLLM runs in this process and warns of its own deprecated fields
]

LONG_PROMPT = "say the word maybe please, and then say it again many times over. " * 12  # more than one cache block


async def complete(serving: Serving, name: str, *, tokens: int = 12, prompt: str = LONG_PROMPT) -> dict[str, Any]:
    body = {
        "model": name,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    headers = {"Authorization": f"Bearer {serving.runtime.api_key}"}
    async with httpx.AsyncClient(timeout=60, trust_env=False, headers=headers) as client:
        response = await client.post(f"{serving.runtime.base_url}/chat/completions", json=body)
    if response.status_code != 200:
        return {"status": response.status_code, "body": response.text}
    choice = response.json()["choices"][0]
    return {"status": 200, "tokens": choice["token_ids"], "finish": choice["finish_reason"], "choice": choice}


async def listed(serving: Serving) -> set[str]:
    async with httpx.AsyncClient(trust_env=False, headers={"Authorization": "Bearer default"}) as client:
        response = await client.get(f"{serving.runtime.base_url}/models")
    return {card["id"] for card in response.json()["data"]}


def publish_first(serving: Serving, tiny: TinyModel, model_name: str) -> tuple[AdapterPublisher, AdapterRegistry]:
    publisher, registry = serving.publisher(model_name)
    serving.loop.run(publisher.publish(1, tiny.adapters[1]))
    return publisher, registry


def expect_step_1_serves_on(serving: Serving, registry: AdapterRegistry, model_name: str) -> None:
    assert registry.served_step == 1
    assert f"{model_name}@2" not in serving.loop.run(listed(serving))
    assert serving.loop.run(complete(serving, f"{model_name}@2"))["status"] == 404
    assert serving.loop.run(complete(serving, f"{model_name}@1"))["status"] == 200


def test_published_step_is_listed_answers_and_agrees_with_the_trainer(serving: Serving, tiny: TinyModel) -> None:
    publisher, registry = serving.publisher("plain")
    for step in range(3):
        publication = serving.loop.run(publisher.publish(step, tiny.adapters[step]))
        assert publication.adapter_name == f"plain@{step}"
        assert publication.logprob_gap is not None
        assert publication.logprob_gap < 1e-4
        assert registry.served_step == step
    assert {"plain@0", "plain@1", "plain@2", str(tiny.base)} <= serving.loop.run(listed(serving))
    replies = [serving.loop.run(complete(serving, f"plain@{step}")) for step in range(3)]
    assert [reply["status"] for reply in replies] == [200, 200, 200], replies
    answers = [reply["tokens"] for reply in replies]
    assert answers[0] == serving.loop.run(complete(serving, str(tiny.base)))["tokens"]
    assert answers[1] != answers[0]
    assert answers[2] not in (answers[0], answers[1])


def test_serving_layer_is_the_one_of_the_app_that_runs(serving: Serving) -> None:
    assert server._openai_serving_models is serving.runtime._server.serving_models


def test_step_that_only_the_engine_knows_is_refused(
    serving: Serving, tiny: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, registry = publish_first(serving, tiny, "unregistered")

    async def engine_only(engine: Any, serving_models: Any, lora_request_type: Any, *, name: str, path: str) -> int:
        request = lora_request_type(lora_name=name, lora_int_id=serving_models.lora_id_counter.inc(1), lora_path=path)
        assert await engine.add_lora(request)
        return int(request.lora_int_id)

    with monkeypatch.context() as patch:
        patch.setattr(serving_registry, "load_adapter", engine_only)
        with pytest.raises(AdapterNotServedError, match=r"unregistered@2 was loaded .* does not list") as caught:
            serving.loop.run(publisher.publish(2, tiny.adapters[2]))
    assert caught.value.step == 2
    assert caught.value.served_steps == [1]
    expect_step_1_serves_on(serving, registry, "unregistered")
    assert serving.loop.run(publisher.publish(2, tiny.adapters[2])).step == 2


def test_previous_weights_under_the_new_name_are_stale(serving: Serving, tiny: TinyModel, tmp_path: Path) -> None:
    publisher, registry = publish_first(serving, tiny, "stale")
    forged = tmp_path / "0002"
    shutil.copytree(tiny.adapters[1], forged)
    shutil.copy(tiny.adapters[2] / "probe.json", forged)
    with pytest.raises(StaleAdapterError, match="step 1") as caught:
        serving.loop.run(publisher.publish(2, forged))
    assert caught.value.adapter_name == "stale@2"
    assert caught.value.logprob_gap > 0.1
    expect_step_1_serves_on(serving, registry, "stale")


def test_colliding_adapter_numbers_are_stale(serving: Serving, tiny: TinyModel) -> None:
    publisher, registry = publish_first(serving, tiny, "collide")
    models, engine = serving.runtime._server.serving_models, serving.runtime._engine
    next_id = int(models.lora_requests["collide@1"].lora_int_id) + 1
    request = serving.runtime._api.LoRARequest("intruder", next_id, str(tiny.adapters[3]))
    serving.loop.run(engine.add_lora(request))  # numbers of our own choosing, as a careless caller would take them
    with pytest.raises(StaleAdapterError):
        serving.loop.run(publisher.publish(2, tiny.adapters[2]))
    expect_step_1_serves_on(serving, registry, "collide")


def test_adapter_without_effect_where_the_trainer_has_one_is_stale(
    serving: Serving, tiny: TinyModel, tmp_path: Path
) -> None:
    publisher, registry = publish_first(serving, tiny, "noeffect")
    forged = tmp_path / "0002"
    shutil.copytree(tiny.adapters[0], forged)
    shutil.copy(tiny.adapters[2] / "probe.json", forged)
    with pytest.raises(StaleAdapterError, match="base model"):
        serving.loop.run(publisher.publish(2, forged))
    expect_step_1_serves_on(serving, registry, "noeffect")


def test_broken_and_unfit_adapters_are_refused_before_the_engine_sees_them(
    serving: Serving, tiny: TinyModel, tmp_path: Path
) -> None:
    publisher, registry = publish_first(serving, tiny, "unfit")
    wide = make_adapter(tiny.base, tmp_path / "wide", seed=9, rank=16)
    with pytest.raises(AdapterLoadError, match="rank 16 is above the engine's max_lora_rank 8"):
        serving.loop.run(publisher.publish(2, wide))
    cut = tmp_path / "cut"
    shutil.copytree(tiny.adapters[2], cut)
    weights = cut / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointIncompleteError):
        serving.loop.run(publisher.publish(2, cut))
    expect_step_1_serves_on(serving, registry, "unfit")


def test_what_the_engine_refuses_carries_its_own_words(
    serving: Serving, tiny: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, registry = publish_first(serving, tiny, "refused")
    wide = make_adapter(tiny.base, tmp_path / "wide", seed=9, rank=16)
    monkeypatch.setattr("art.inference.publish.check_adapter", lambda *args, **kwargs: None)
    with pytest.raises(AdapterLoadError, match="greater than max_lora_rank") as caught:
        serving.loop.run(publisher.publish(2, wide))
    assert caught.value.step == 2
    expect_step_1_serves_on(serving, registry, "refused")


def test_name_that_comes_back_with_other_weights_answers_with_them(serving: Serving, tiny: TinyModel) -> None:
    publisher, _ = publish_first(serving, tiny, "again")
    old = serving.loop.run(complete(serving, "again@1"))
    serving.loop.run(publisher.publish(1, tiny.adapters[2]))
    new = serving.loop.run(complete(serving, "again@1"))
    other, _ = serving.publisher("fresh")
    serving.loop.run(other.publish(1, tiny.adapters[2]))
    assert new["tokens"] != old["tokens"]
    assert new["tokens"] == serving.loop.run(complete(serving, "fresh@1"))["tokens"]


def test_publishing_the_same_files_again_changes_nothing(serving: Serving, tiny: TinyModel) -> None:
    publisher, registry = publish_first(serving, tiny, "same")
    before = registry.live[1]
    serving.loop.run(publisher.publish(1, tiny.adapters[1]))
    assert registry.live[1] is before


def test_deleted_checkpoint_of_a_paged_out_adapter_still_answers(
    serving: Serving, tiny: TinyModel, tmp_path: Path
) -> None:
    publisher, _ = serving.publisher("deleted")
    theirs = tmp_path / "checkpoints" / "0001"
    shutil.copytree(tiny.adapters[1], theirs)
    serving.loop.run(publisher.publish(1, theirs))
    expected = serving.loop.run(complete(serving, "deleted@1"))["tokens"]
    shutil.rmtree(theirs)
    engine, request_type = serving.runtime._engine, serving.runtime._api.LoRARequest
    number = int(serving.runtime._server.serving_models.lora_requests["deleted@1"].lora_int_id)
    for crowd in range(8):  # more than the engine keeps in memory
        request = request_type(f"crowd{crowd}", 10_000 + crowd, str(tiny.adapters[2 + crowd % 4]))
        serving.loop.run(engine.add_lora(request))
    assert number not in serving.loop.run(engine.list_loras())
    assert serving.loop.run(complete(serving, "deleted@1"))["tokens"] == expected


def test_old_steps_are_unloaded_and_leased_ones_stay(serving: Serving, tiny: TinyModel) -> None:
    publisher, registry = serving.publisher("window")
    serving.loop.run(publisher.publish(0, tiny.adapters[0]))
    registry.acquire(0)
    for step in range(1, 6):
        serving.loop.run(publisher.publish(step, tiny.adapters[step]))
    names = {name for name in serving.loop.run(listed(serving)) if name.startswith("window@")}
    assert names == {"window@0", "window@3", "window@4", "window@5"}
    folders = {path.name.split("-")[0] for path in (serving.folder / "window" / "serving").glob("*/*")}
    assert folders == {"0000", "0003", "0004", "0005"}
    registry.release(0)
    assert serving.loop.run(publisher.prune(frozenset({4}))) == [0, 3]
    names = {name for name in serving.loop.run(listed(serving)) if name.startswith("window@")}
    assert names == {"window@4", "window@5"}


def test_files_of_an_unloaded_step_stay_while_a_request_uses_them(serving: Serving, tiny: TinyModel) -> None:
    publisher, registry = publish_first(serving, tiny, "busy")

    async def scenario() -> tuple[int, dict[str, Any]]:
        request = asyncio.create_task(complete(serving, "busy@1", tokens=300))
        while not (await serving.runtime.requests_in_flight()).get("busy@1"):
            await asyncio.sleep(0)
        path = registry.live[1].path
        await publisher.publish(2, tiny.adapters[2])
        await publisher.prune(frozenset())
        kept = len(list(path.iterdir()))
        answer = await request
        await publisher.prune(frozenset())
        assert not path.exists()
        return kept, answer

    kept, answer = serving.loop.run(scenario())
    assert kept > 0
    assert (answer["status"], answer["finish"], len(answer["tokens"])) == (200, "length", 300)


def test_requests_around_a_training_step_are_neither_cut_off_nor_refused(serving: Serving, tiny: TinyModel) -> None:
    publish_first(serving, tiny, "yield")
    expected = serving.loop.run(complete(serving, "yield@1", tokens=400))["tokens"]

    async def scenario() -> tuple[bool, bool, dict[str, Any], dict[str, Any]]:
        running = asyncio.create_task(complete(serving, "yield@1", tokens=400))
        while not (await serving.runtime.requests_in_flight()).get("yield@1"):
            await asyncio.sleep(0)
        async with serving.runtime.yielded_to_trainer():
            late = asyncio.create_task(complete(serving, "yield@1", tokens=4))
            while (await serving.runtime.requests_in_flight()).get("yield@1") != 2:
                await asyncio.sleep(0)
            was_paused = await serving.runtime._engine.is_paused()
            unfinished = not running.done() and not late.done()
        return was_paused, unfinished, await running, await late

    was_paused, unfinished, running, late = serving.loop.run(scenario())
    assert was_paused
    assert unfinished
    assert (running["finish"], running["tokens"]) == ("length", expected)
    assert (late["status"], len(late["tokens"])) == (200, 4)


def test_requests_keep_their_own_weights_while_other_adapters_are_loaded(serving: Serving, tiny: TinyModel) -> None:
    publisher, _ = publish_first(serving, tiny, "mixed")
    serving.loop.run(publisher.publish(2, tiny.adapters[2]))
    names = ["mixed@1", "mixed@2"]
    engine, request_type = serving.runtime._engine, serving.runtime._api.LoRARequest
    late = iter(range(20_000, 20_100))

    async def answer(name: str) -> dict[str, Any]:
        return await complete(serving, name, tokens=500, prompt="say yes")

    async def load_amid_answers() -> list[dict[str, Any]] | None:
        running = [asyncio.create_task(answer(name)) for name in names]
        while set(names) - set(await serving.runtime.requests_in_flight()):
            await asyncio.sleep(0)
        for _ in range(3):  # both are read by then, and no other request changes what the batch is made of
            processed = await serving.runtime.progress_count()
            while await serving.runtime.progress_count() == processed and not all(task.done() for task in running):
                await asyncio.sleep(0)
        for seed in (3, 4):
            number = next(late)
            await engine.add_lora(request_type(f"late{number}", number, str(tiny.adapters[seed])))
        was_amid = not any(task.done() for task in running)
        answers = await asyncio.gather(*running)
        return answers if was_amid else None

    expected = [serving.loop.run(answer(name))["tokens"] for name in names]
    attempts = (serving.loop.run(load_amid_answers()) for _ in range(10))
    answers = next(answers for answers in attempts if answers is not None)
    assert [reply["finish"] for reply in answers] == ["length", "length"]
    assert [reply["tokens"] for reply in answers] == expected


@pytest.mark.parametrize("error", [RuntimeError("training broke"), MemoryError(), asyncio.CancelledError()])
def test_generation_goes_on_whatever_happens_while_yielded(
    serving: Serving, tiny: TinyModel, error: BaseException
) -> None:
    model_name = f"broken{type(error).__name__}"
    publisher, _ = publish_first(serving, tiny, model_name)

    async def scenario() -> None:
        async with serving.runtime.yielded_to_trainer():
            raise error

    async def guarded() -> str:
        try:
            await scenario()
        except BaseException as err:  # noqa: BLE001 - this is what is tested
            return type(err).__name__
        return "nothing raised"

    assert serving.loop.run(guarded()) == type(error).__name__
    assert serving.loop.run(complete(serving, f"{model_name}@1"))["status"] == 200
    assert serving.loop.run(publisher.confirm_served()) is not None


def test_sampled_token_ids_and_logprobs_come_unasked(serving: Serving, tiny: TinyModel) -> None:
    publish_first(serving, tiny, "logprobs")
    choice = serving.loop.run(complete(serving, "logprobs@1", tokens=5))["choice"]
    entries = choice["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == [f"token_id:{token}" for token in choice["token_ids"]]
    assert all(entry["logprob"] <= 0 for entry in entries)


def test_engine_leaves_the_host_process_as_it_was(serving: Serving) -> None:
    for name in (
        "LOCAL_WORLD_SIZE",
        "VLLM_WORKER_MULTIPROC_METHOD",
        "VLLM_CPU_OMP_THREADS_BIND",
        "TORCHDYNAMO_DISABLE",
    ):
        assert name not in os.environ
    # The second where the tests themselves run in the background of a shell.
    assert signal.getsignal(signal.SIGINT) in (signal.default_int_handler, signal.SIG_IGN)
