"""What names a model in a comparison."""

from __future__ import annotations

DEFAULT_SPLIT = "val"


class BenchmarkModelKey:
    """A model on one part of the data.

    Attributes:
        name: The model.
        display_name: What charts call it.
        split: The part of the data.
    """

    name: str
    display_name: str
    split: str

    def __init__(self, name: str, display_name: str | None = None, split: str | None = None) -> None:
        """Keep the names; `display_name` is `name` by default, `split` is "val"."""
        self.name = name
        self.display_name = name if display_name is None else display_name
        self.split = DEFAULT_SPLIT if split is None else split

    def __str__(self) -> str:
        return self.display_name

    def __repr__(self) -> str:
        return f"BenchmarkModelKey({self.name!r}, {self.display_name!r}, {self.split!r})"
