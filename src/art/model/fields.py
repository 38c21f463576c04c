"""The keywords that models are made with, for type checkers, and how they are checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Required, TypedDict

from pydantic import BaseModel, ValidatorFunctionWrapHandler

if TYPE_CHECKING:
    import art.dev as dev


class ModelKeywords(TypedDict, total=False):
    """Keywords of `Model`, but for `config`."""

    name: Required[str]
    project: Required[str]
    entity: str | None
    id: str | None
    run_id: str | None
    inference_api_key: str | None
    inference_base_url: str | None
    inference_model_name: str | None
    base_path: str
    report_metrics: list[str] | None


class TrainableModelKeywords(ModelKeywords, total=False):
    """Keywords of `TrainableModel`, but for `config`."""

    base_model: Required[str]
    _internal_config: dev.InternalModelConfig | None


def refuse_unknown_keywords(model_type: type[BaseModel], keywords: dict[str, Any]) -> None:
    """Refuse keywords that are no fields of a model class.

    Raises:
        TypeError: There is one.
    """
    unknown = sorted(set(keywords) - set(model_type.model_fields))
    if unknown:
        raise TypeError(
            f"{model_type.__name__}() got unexpected keyword arguments {', '.join(unknown)}; "
            f"it knows {', '.join(sorted(model_type.model_fields))}"
        )


def keep_dict(config: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Keep a `config` that is a dict where the model's class names no type for it: pydantic would make it empty."""
    validated = validate(config)
    return config if type(validated) is BaseModel else validated
