"""Errors of the export of a model."""

from __future__ import annotations


class ExportError(Exception):
    """A model that cannot be exported; the message names the remedy."""


class UnsupportedOperator(ExportError):  # noqa: N818 - a fact about the model, named as one
    """A traced operator that the emitter has no rule for."""

    def __init__(self, operator: str, where: str) -> None:
        super().__init__(
            f"operator {operator} (in {where}) cannot be exported; "
            "docs/models.md lists what can, and how to replace the rest"
        )
        self.operator = operator  # name of the operator, such as ``aten.sort.default``
        self.where = where  # path of the calling module, or the best known place
