"""The file that describes a model."""

from __future__ import annotations

import json
import stat
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from art.model import Model, TrainableModel, write_model_json


class Settings(BaseModel):
    started: datetime = datetime(2025, 1, 2, 3, 4, 5)
    judge_api_key: str = "sk-judge"
    max_tokens: int = 5


def write_and_read(model: Model[Any, Any], folder: Path) -> dict[str, Any]:
    write_model_json(model, folder)
    loaded: dict[str, Any] = json.loads((folder / "model.json").read_text())
    return loaded


def test_secrets_are_left_out_and_the_rest_is_kept(tmp_path: Path) -> None:
    options: Any = {"engine_args": {"hf_token": "hf-secret", "enforce_eager": True}}
    model = TrainableModel(
        name="agent",
        project="mail",
        base_model="tiny",
        config=Settings(),
        inference_api_key="sk-inference",
        inference_base_url="http://127.0.0.1:8000/v1",
        _internal_config=options,
    )
    fields = write_and_read(model, tmp_path / "new")
    assert "inference_api_key" not in fields
    assert fields["config"] == {"started": "2025-01-02T03:04:05", "max_tokens": 5}
    assert fields["_internal_config"] == {"engine_args": {"enforce_eager": True}}
    assert fields["base_model"] == "tiny"
    assert fields["inference_base_url"] == "http://127.0.0.1:8000/v1"
    text = (tmp_path / "new" / "model.json").read_text()
    assert "sk-" not in text
    assert "hf-secret" not in text


@pytest.mark.parametrize(
    ("section", "name"),
    [
        ("init_args", "token"),
        ("trainer_args", "hub_token"),
        ("trainer_args", "push_to_hub_token"),
        ("engine_args", "hf_token"),
        ("headers", "Authorization"),
        ("headers", "X-Api-Key"),
        ("headers", "Cookie"),
        ("env", "AWS_SECRET_ACCESS_KEY"),
        ("env", "WANDB_API_KEY"),
        ("db", "password"),
        ("db", "client_secret"),
    ],
)
def test_names_that_say_secret_are_left_out_at_any_depth(section: str, name: str, tmp_path: Path) -> None:
    kept = {"eos_token": "</s>", "max_tokens": 5, "sort_key": "a", "tokenizer": "t"}
    model = Model(name="agent", project="mail", config={"list": [{section: {name: "hush", **kept}}]})  # type: ignore[type-var]
    assert write_and_read(model, tmp_path)["config"] == {"list": [{section: kept}]}


@pytest.mark.parametrize(
    ("address", "written"),
    [
        ("https://user:hush@host:8/v1?api-key=hush&version=2#part", "https://host:8/v1?version=2#part"),
        ("https://hush@host/v1", "https://host/v1"),
        ("https://host/v1?version=2&x=", "https://host/v1?version=2&x="),
        ("postgres://u:hush@db/x", "postgres://db/x"),
        ("see http://[ for more", "see http://[ for more"),
        ("mail me@host", "mail me@host"),
    ],
)
def test_addresses_lose_their_secrets(address: str, written: str, tmp_path: Path) -> None:
    model = Model(name="agent", project="mail", inference_base_url=address)
    assert write_and_read(model, tmp_path)["inference_base_url"] == written
    assert model.inference_base_url == address


def test_only_the_owner_reads_it(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text("old")
    write_model_json(Model(name="agent", project="mail"), tmp_path)
    assert stat.S_IMODE((tmp_path / "model.json").stat().st_mode) == 0o600


def test_values_without_json_form_become_text(tmp_path: Path) -> None:
    class Dtype:
        def __repr__(self) -> str:
            return "torch.bfloat16"

    options: Any = {"init_args": {"dtype": Dtype()}}
    model = TrainableModel(name="agent", project="mail", base_model="tiny", _internal_config=options)
    assert write_and_read(model, tmp_path)["_internal_config"] == {"init_args": {"dtype": "torch.bfloat16"}}


def test_model_can_be_made_again_from_it(tmp_path: Path) -> None:
    model = TrainableModel(name="agent", project="mail", base_model="tiny", _internal_config={"peft_args": {"r": 4}})
    again: TrainableModel[Any, Any] = TrainableModel.model_validate(write_and_read(model, tmp_path))
    assert again.model_dump() == model.model_dump()
