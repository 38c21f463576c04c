import ast
import builtins
import re
from pathlib import Path
from typing import Any

import pytest

from art import dev, env
from art.dev.settings import ServingSettings
from dev.docs import meanings, reference

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
CONFIGURATION = reference.fill_in((DOCS / "reference" / "configuration.md").read_text(encoding="utf-8"))
PAGES = {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *DOCS.rglob("*.md")]}
SECTIONS = {
    "The model's configuration": dev.InternalModelConfig,
    "serving": dev.ServingArgs,
    "init_args": dev.InitArgs,
    "peft_args": dev.PeftArgs,
    "trainer_args": dev.TrainerArgs,
    "engine_args": dev.EngineArgs,
    "The server's configuration": dev.OpenAIServerConfig,
    "server_args": dev.ServerArgs,
    "dev.TrainConfig": dev.TrainConfig,
}
ERRORS_OF_LIBRARIES = {"OutOfMemoryError"}
WITH_TEXTS: list[tuple[Any, dict[str, str]]] = [
    (dev.InternalModelConfig, meanings.MODEL),
    (dev.InitArgs, meanings.INIT),
    (dev.PeftArgs, meanings.PEFT),
    (dev.TrainerArgs, meanings.TRAINER),
    (dev.EngineArgs, meanings.ENGINE),
    (dev.OpenAIServerConfig, meanings.SERVER_CONFIG),
    (dev.ServerArgs, meanings.SERVER),
]


def section_of(page: str, title: str) -> str:
    """Return what stands below a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no heading {title!r}"
    return found[1]


def constant_in(path: str, name: str) -> set[str]:
    """Read a constant collection of names from a module that is too heavy to import here."""
    for node in ast.parse((ROOT / "src" / "art" / path).read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return {str(part.value) for part in ast.walk(node) if isinstance(part, ast.Constant)}
    raise AssertionError(f"{path} has no {name}")


@pytest.mark.parametrize("title", SECTIONS)
def test_every_key_of_the_configuration_is_on_its_page(title: str) -> None:
    text = section_of(CONFIGURATION, title)
    assert [key for key in SECTIONS[title].__annotations__ if f"`{key}`" not in text] == []


@pytest.mark.parametrize(("section", "texts"), WITH_TEXTS, ids=lambda value: getattr(value, "__name__", ""))
def test_texts_are_about_keys_that_exist(section: Any, texts: dict[str, str]) -> None:
    assert set(texts) - set(section.__annotations__) == set()


@pytest.mark.parametrize(
    ("section", "texts"),
    [(dev.InternalModelConfig, meanings.MODEL), (dev.OpenAIServerConfig, meanings.SERVER_CONFIG)],
    ids=["model", "server"],
)
def test_sections_without_a_list_of_others_are_described_whole(section: Any, texts: dict[str, str]) -> None:
    assert set(texts) == set(section.__annotations__)


def test_texts_describe_exactly_what_the_trainer_reads() -> None:
    assert set(meanings.TRAINER) == constant_in("unsloth/optimizer.py", "_READ")
    lora = constant_in("unsloth/state.py", "_LORA_KEYS")
    assert set(meanings.PEFT) == lora | {"random_state", "use_gradient_checkpointing", "modules_to_save"}


def test_every_environment_variable_is_on_the_page() -> None:
    text = section_of(CONFIGURATION, "Environment variables")
    assert [variable.name for variable in env.VARIABLES if f"`{variable.name}`" not in text] == []
    assert "| `ART_DEDICATED_VLLM_TIMEOUT` | `number, s` | 1200 | The same for the server of dedicated mode" in text
    assert "| `WANDB_API_KEY` | `text` | unset | Turns Weights & Biases on. |" in text


def test_row_has_type_default_and_meaning_from_the_code() -> None:
    row = (
        "`inference_restarts` | `int` | `2` | "
        "How often the server may be restarted within `restart_window_s`; 0: never. |"
    )
    assert row in section_of(CONFIGURATION, "serving")
    assert "`r` | `int` | `8` | Rank of the adapter." in section_of(CONFIGURATION, "peft_args")
    assert "| `path` | `str | None` | `None` | Where runs are kept" in section_of(CONFIGURATION, "LocalBackend")


def test_guide_to_serving_names_every_setting() -> None:
    text = section_of(PAGES[Path("docs/modes.md")], "Settings of serving")
    assert [name for name in ServingSettings.__annotations__ if f"`{name}`" not in text] == []


def test_every_error_has_an_entry_and_every_entry_an_error() -> None:
    page = PAGES[Path("docs/troubleshooting.md")]
    names = [error.__name__ for error in reference.public_errors()]
    assert len(names) > 30
    assert sorted(re.findall(r"^### (\w+)$", page, re.MULTILINE)) == sorted(names)
    assert [name for name in names if f"<!-- generated: error {name} -->" not in section_of(page, name)] == []


def test_error_says_what_it_is_what_else_catches_it_and_what_it_carries() -> None:
    text = reference.PARTS["error TokenizationError"]()
    assert text.startswith("A trajectory cannot be turned into tokens.\n")
    assert "Caught by: `DataError`, `ARTError`, `ValueError`." in text
    assert "- `message_index`: Index of the message within its history, or None." in text


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_names_in_the_text_exist(path: Path) -> None:
    text = PAGES[path]
    errors = {error.__name__ for error in reference.public_errors()} | set(dir(builtins)) | ERRORS_OF_LIBRARIES
    assert set(re.findall(r"`(?:art\.errors\.)?(\w+Error)`", text)) - errors == set()
    variables = {variable.name for variable in env.VARIABLES}
    assert set(re.findall(r"\bART_[A-Z_]+\b", text)) - variables == set()
    assert set(re.findall(r"serving\[[\"'](\w+)", text)) - set(dev.ServingArgs.__annotations__) == set()
    assert set(re.findall(r"engine_args\[[\"'](\w+)", text)) - set(dev.EngineArgs.__annotations__) == set()
    assert set(re.findall(r"trainer_args\[[\"'](\w+)", text)) - set(dev.TrainerArgs.__annotations__) == set()
    files = re.findall(r"`(?:python )?((?:dev|docs|examples|requirements|tests)/[\w./-]+)[^`]*`", text)
    assert [name for name in files if not (ROOT / name).exists()] == []


def test_part_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(KeyError, match="nonsense"):
        reference.fill_in("# A\n\n<!-- generated: nonsense -->\n")
