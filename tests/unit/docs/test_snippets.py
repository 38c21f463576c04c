from pathlib import Path

import pytest

from dev.docs.snippets import Snippet, faults, snippets

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
SNIPPETS = list(snippets(PAGES))


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda s: f"{s.path.relative_to(ROOT)}:{s.line}")
def test_example_uses_what_there_is(snippet: Snippet) -> None:
    assert faults(snippet.code) == []


def test_no_example_is_missed() -> None:
    fences = sum(page.read_text(encoding="utf-8").count("```python") for page in PAGES)
    assert len(SNIPPETS) == fences > 10


def test_examples_are_found_with_their_lines_also_when_indented(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n\n```python\nx = 1\n```\n\n1. b\n\n    ```python\n    if x:\n        y = 2\n    ```\n\n```bash\nls\n```\n"
    )
    assert [(s.line, s.code) for s in snippets([page])] == [(4, "x = 1\n"), (10, "if x:\n    y = 2\n")]


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("x = =", "line 1: invalid syntax"),
        ("import art\nart.Nope", "line 2: art has no 'Nope'"),
        ("from art.local import Nope", "line 1: art.local has no 'Nope'"),
        ("from art.nope import x", "line 1: there is no module art.nope"),
        ("import art.nope", "line 1: there is no module art.nope"),
        ("art.TrainConfig(lr=1)", "got an unexpected keyword argument 'lr'"),
        ("art.Trajectory([])", "Trajectory: too many positional arguments"),
        (
            "art.TrainableModel(name='a', project='p', base_model='b', bse_path='c')",
            "unexpected keyword argument 'bse_path'",
        ),
        ("await backend.train(model, groups, learning_rat=1)", "got an unexpected keyword argument 'learning_rat'"),
        ("await model.registr(backend)", "line 1: TrainableModel has no 'registr'"),
        ("def f(model: art.Model): model.train(groups)", "line 1: Model has no 'train'"),
        ("with art.local.LocalBackend() as b:\n    b.trian(model, [])", "line 2: LocalBackend has no 'trian'"),
        ("t = art.Trajectory()\nt.rewards", "line 2: Trajectory has no 'rewards'"),
        (
            "art.TrainableModel(name='a', project='p', base_model='b', _internal_config={'servin': {}})",
            "did you mean 'serving'",
        ),
        (
            "art.TrainableModel(name='a', project='p', base_model='b', _internal_config={'trainer_gpu_ids': [0]})",
            "inference_gpu_ids is not",
        ),
        ("await model.register(backend, _openai_client_config={'prot': 1})", "unknown key"),
    ],
)
def test_mistake_in_an_example_is_named(code: str, fault: str) -> None:
    found = faults(code)
    assert len(found) == 1
    assert fault in found[0]


@pytest.mark.parametrize(
    "code",
    [
        "model = load()\nprint(model.name, model.inference_model_name)",
        "import numpy as np\nnp.nope(a=1)",
        "import art\ngroup = art.TrajectoryGroup([], metadata={'a': 1})\nprint(group.trajectories, group.metadata)",
        "import art.utils.sft\nart.utils.sft.iterate_file('rows.jsonl')",
        "async with art.local.LocalBackend(path='x') as backend:\n    await backend.train(model, *groups, **options)",
        "art.TrainableModel(name='a', project='p', base_model='b', _internal_config=config)",
    ],
)
def test_what_is_right_or_not_known_is_no_fault(code: str) -> None:
    assert faults(code) == []
