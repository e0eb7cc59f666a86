"""What a round costs the aggregator: one mean over n rows of d numbers."""

import numpy as np
import pytest

from aggregator.rules import Rows, bind

pytestmark = pytest.mark.bench

SIZES = ((8, 5_760), (64, 5_760), (1_000, 5_760), (8, 42_181), (64, 42_181), (500, 42_181))


def test_mean(best, copied, tell):
    rule, rows = bind("mean"), []
    for n, d in SIZES:
        vectors = np.random.default_rng(n).standard_normal((n, d))
        stack = Rows(tuple(f"meter-{i:04}" for i in range(n)), vectors)
        shares = np.full(n, 1 / n)
        ours = best(lambda stack=stack, shares=shares: rule(stack, shares))
        product = best(lambda vectors=vectors, shares=shares: shares @ vectors)
        rows.append(
            (
                f"{n} x {d}",
                f"{1e3 * ours:.3f}",
                f"{vectors.nbytes / ours / copied:.2f}",
                f"{ours / product:.1f}",
            )
        )
        assert np.allclose(rule(stack, shares).value, vectors.mean(0))
    title = f"mean of n x d, one thread; a copy moves {copied / 1e9:.1f} GB/s here"
    tell(title, ("n x d", "ms", "rows read / copy", "time / BLAS product"), rows)
