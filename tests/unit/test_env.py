import importlib.util
import sys

import pytest

from art import env
from art.errors import ConfigurationError


@pytest.mark.parametrize(
    ("variable", "name", "default"),
    [
        (env.SERVER_TIMEOUT_S, "ART_SERVER_TIMEOUT", 300.0),
        (env.DEDICATED_SERVER_TIMEOUT_S, "ART_DEDICATED_VLLM_TIMEOUT", 1200.0),
        (env.HEALTH_TIMEOUT_S, "ART_SERVER_MONITOR_TIMEOUT", 5.0),
        (env.ADAPTER_RELOAD_TIMEOUT_S, "ART_ADAPTER_RELOAD_TIMEOUT", 120.0),
        (env.TRAIN_STEP_LOG, "ART_TRAIN_STEP_LOG", False),
        (env.IMPORT_UNSLOTH, "IMPORT_UNSLOTH", False),
        (env.SUPPRESS_LITELLM_SERIALIZATION_WARNINGS, "SUPPRESS_LITELLM_SERIALIZATION_WARNINGS", True),
        (env.WANDB_API_KEY, "WANDB_API_KEY", None),
        (env.BACKUP_BUCKET, "BACKUP_BUCKET", None),
    ],
)
def test_unset_or_empty_variable_gives_its_default(variable, name, default):
    assert variable.name == name
    assert variable.read({}) == default
    assert variable.read({name: " "}) == default


def test_variable_is_read_when_asked_and_from_the_process_by_default(monkeypatch):
    monkeypatch.setenv("ART_SERVER_TIMEOUT", "12.5")
    assert env.SERVER_TIMEOUT_S.read() == 12.5
    monkeypatch.setenv("ART_SERVER_TIMEOUT", "30")
    assert env.SERVER_TIMEOUT_S.read() == 30.0


@pytest.mark.parametrize("text", ["soon", "0", "-3", "nan", "inf", "5s"])
def test_bad_number_of_seconds_names_variable_and_value(text):
    with pytest.raises(ConfigurationError) as caught:
        env.SERVER_TIMEOUT_S.read({"ART_SERVER_TIMEOUT": text})
    assert "ART_SERVER_TIMEOUT" in str(caught.value)
    assert repr(text) in str(caught.value)
    assert "above 0" in str(caught.value)


@pytest.mark.parametrize(("text", "value"), [("1", True), ("Yes", True), ("true", True), ("0", False), ("OFF", False)])
def test_switch_is_read_from_the_usual_words(text, value):
    assert env.IMPORT_UNSLOTH.read({"IMPORT_UNSLOTH": text}) is value


def test_bad_switch_names_variable_and_value():
    with pytest.raises(ConfigurationError, match=r"IMPORT_UNSLOTH is 'maybe'"):
        env.IMPORT_UNSLOTH.read({"IMPORT_UNSLOTH": "maybe"})


def test_table_lists_every_variable_once_with_a_meaning():
    defined = [value for value in vars(env).values() if isinstance(value, env.Variable)]
    assert sorted(v.name for v in env.VARIABLES) == sorted(v.name for v in defined)
    assert len({v.name for v in env.VARIABLES}) == len(env.VARIABLES)
    for variable in env.VARIABLES:
        assert variable.meaning.endswith(".")
        assert (variable.unit == "s") == isinstance(variable.default, float)


def test_import_reads_no_variable(monkeypatch):
    monkeypatch.setenv("ART_SERVER_TIMEOUT", "soon")
    again = importlib.util.module_from_spec(env.__spec__)
    monkeypatch.setitem(sys.modules, "art.env", again)
    env.__spec__.loader.exec_module(again)
    with pytest.raises(ConfigurationError):
        again.SERVER_TIMEOUT_S.read()
