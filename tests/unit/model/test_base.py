"""A prompted model: fields, copies, names, its client."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from art.metrics import MetricsBuilder
from art.model import Model
from tests.support.fake_backend import FakeBackend, FakeLocalBackend


class Settings(BaseModel):
    temperature: float = 0.5


def prompted(**fields: Any) -> Model[Any, Any]:
    keywords: dict[str, Any] = {"name": "agent", "project": "mail", **fields}
    return Model(**keywords)


def with_server(**fields: Any) -> Model[Any, Any]:
    return prompted(inference_base_url="http://127.0.0.1:9/v1", inference_api_key="key", **fields)


def test_every_field_is_kept() -> None:
    model = prompted(entity="me", id="i-1", run_id="r-1", config=Settings(temperature=1.0), report_metrics=["wandb"])
    assert model.model_dump() == {
        "name": "agent",
        "project": "mail",
        "entity": "me",
        "id": "i-1",
        "run_id": "r-1",
        "config": {"temperature": 1.0},
        "inference_api_key": None,
        "inference_base_url": None,
        "inference_model_name": None,
        "base_path": ".art",
        "report_metrics": ["wandb"],
        "trainable": False,
    }
    assert isinstance(model.config, Settings)
    assert model.safe_model_dump()["config"] is None
    assert Model.model_validate(model.safe_model_dump()).id == "i-1"


def test_unknown_and_positional_arguments_are_type_errors() -> None:
    with pytest.raises(TypeError, match="tempreature"):
        prompted(tempreature=1)
    with pytest.raises(TypeError):
        Model("agent", "mail")  # type: ignore[call-overload]


def test_subclasses_may_add_fields() -> None:
    class Tagged(Model[Any, Any]):
        tag: str = "none"

    keywords: dict[str, Any] = {"name": "agent", "project": "mail", "tag": "x"}
    assert Tagged(**keywords).tag == "x"


def test_config_in_a_dict_is_kept_or_made_into_the_type_that_the_class_names() -> None:
    typed = Model[Settings, dict[str, Any]](name="m", project="p", config={"temperature": 0.25})  # type: ignore[arg-type]
    loose = prompted(config={"temperature": 0.25})
    asyncio.run(loose.register(FakeBackend()))

    assert [loose.config, typed.config] == [{"temperature": 0.25}, Settings(temperature=0.25)]
    assert loose.model_dump()["config"] == typed.model_dump()["config"] == {"temperature": 0.25}


@pytest.mark.parametrize("name", ["", " ", ".", "..", "a/b", "a\\b", "agent@7", "a\0b"])
@pytest.mark.parametrize("field", ["name", "project"])
def test_names_that_cannot_be_folders_are_refused(name: str, field: str) -> None:
    with pytest.raises(ValueError, match=r"(model name|project) "):
        prompted(**{field: name})


def test_name_changed_later_is_checked_before_it_becomes_a_path() -> None:
    model = prompted()
    model.name = "../elsewhere"
    with pytest.raises(ValueError, match="elsewhere"):
        model.read_state()


def test_key_is_not_shown() -> None:
    assert "s3cret" not in repr(prompted(inference_api_key="s3cret"))


def test_copies_share_the_backend_but_not_what_is_accumulated(tmp_path: Any) -> None:
    model = with_server(base_path=str(tmp_path))
    asyncio.run(model.register(FakeBackend()))
    model.update_wandb_config({"a": 1})
    model.metrics_builder().add_cost("x", 1.0)
    client = model.openai_client()
    for copied in (model.model_copy(update={"name": "other"}), copy.deepcopy(model), model.model_copy(deep=True)):
        assert copied.backend() is model.backend()
        assert copied.metrics_builder() is not model.metrics_builder()
        assert copied.openai_client() is not client
        with pytest.raises(ValueError, match="'a'"):
            copied.update_wandb_config({"a": 2})
        copied.update_wandb_config({"b": 1})
    model.update_wandb_config({"b": 2})


def test_inference_name_without_backend() -> None:
    assert prompted().get_inference_name() == "agent"
    assert prompted(inference_model_name="gpt-4o").get_inference_name() == "gpt-4o"
    assert prompted(inference_model_name="gpt-4o").get_inference_name(step=3) == "gpt-4o@3"


def test_inference_name_comes_from_the_backend() -> None:
    model = prompted()
    asyncio.run(model.register(FakeBackend(step=4)))
    assert model.get_inference_name() == "agent@4"
    assert model.get_inference_name(2) == "agent@2"


def test_litellm_parameters() -> None:
    assert with_server(inference_model_name="gpt-4o").litellm_completion_params() == {
        "model": "gpt-4o",
        "base_url": "http://127.0.0.1:9/v1",
        "api_key": "key",
        "temperature": 1,
    }


def test_backend_is_needed_and_forgotten_when_it_refuses() -> None:
    model = prompted()
    with pytest.raises(ValueError, match="register"):
        model.backend()
    backend = FakeBackend()
    backend.register_error = RuntimeError("no room")
    with pytest.raises(RuntimeError, match="no room"):
        asyncio.run(model.register(backend))
    with pytest.raises(ValueError, match="register"):
        model.backend()


def test_config_that_is_not_json_is_refused_before_registering() -> None:
    class Odd(BaseModel):
        thing: Any

    backend = FakeBackend()
    with pytest.raises(ValueError, match="config"):
        asyncio.run(prompted(config=Odd(thing=object())).register(backend))
    assert backend.calls == []


def test_prompted_model_is_at_step_0() -> None:
    assert asyncio.run(prompted().get_step()) == 0


def test_client_needs_address_and_key() -> None:
    with pytest.raises(ValueError, match="inference_base_url"):
        prompted().openai_client()
    with pytest.raises(ValueError, match="inference_api_key"):
        prompted(inference_base_url="http://127.0.0.1:9/v1").openai_client()


def test_client_is_kept_until_address_or_key_changes() -> None:
    model = with_server()
    client = model.openai_client()
    assert model.openai_client() is client
    model.inference_base_url = "http://127.0.0.1:10/v1"
    moved = model.openai_client()
    assert moved is not client
    assert str(moved.base_url) == "http://127.0.0.1:10/v1/"
    model.inference_api_key = "new"
    assert model.openai_client().api_key == "new"


def test_closed_client_is_replaced_and_a_foreign_one_stays() -> None:
    model = with_server()
    client = model.openai_client()
    asyncio.run(client.close())
    assert model.openai_client() is not client
    other = with_server()
    other._openai_client = client
    assert other.openai_client() is client


def test_client_uses_the_transport_of_the_backend() -> None:
    seen = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.path)
        return httpx.Response(200, json={"object": "list", "data": [{"id": "agent@0", "object": "model"}]})

    async def run() -> list[str]:
        backend = FakeLocalBackend()
        backend.http_client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
        model = with_server()
        await model.register(backend)
        client = model.openai_client()
        models = await client.models.list()
        await client.close()
        return [served.id for served in models.data]

    assert asyncio.run(run()) == ["agent@0"]
    assert seen == ["/v1/models"]


def test_active_metrics_context_belongs_to_the_model(tmp_path: Any) -> None:
    model = prompted(base_path=str(tmp_path))
    token = model.activate_metrics_context("eval")
    MetricsBuilder.get_active().add_cost("x", 1.0)
    token.var.reset(token)
    row = asyncio.run(model.metrics_builder("eval").flush())
    assert row["costs/x"] == 1.0


def test_looking_at_metrics_or_state_makes_no_folder(tmp_path: Any) -> None:
    model = prompted(base_path=str(tmp_path / "none"))
    model.metrics_builder()
    assert model.read_state() is None
    assert list(tmp_path.iterdir()) == []
