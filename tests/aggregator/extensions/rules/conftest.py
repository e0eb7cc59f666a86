"""Share the rows of the core's tests of rules."""

from tests.aggregator.rules.conftest import rows_of

__all__ = ["rows_of"]
