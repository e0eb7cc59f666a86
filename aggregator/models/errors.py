"""Why a model could not be exported."""

from __future__ import annotations


class ExportError(Exception):
    """A model that cannot become a bundle; the message says what to change."""


class UnsupportedOperator(ExportError):  # noqa: N818 - a fact about the model, named as one
    """A traced operator that the emitter has no rule for.

    Attributes:
        operator: Its name, such as ``aten.sort.default``.
        where: Path of the module that called it, or what is known instead.
    """

    def __init__(self, operator: str, where: str) -> None:
        """Name the operator and its place."""
        super().__init__(
            f"operator {operator} (in {where}) cannot be exported; "
            "docs/models.md lists what can, and how to replace the rest"
        )
        self.operator = operator
        self.where = where
