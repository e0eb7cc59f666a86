"""What tests of several rooms share: packages that serve as second oracles."""

import sys
import types
import warnings

import pytest


@pytest.fixture(scope="session")
def byzfl():
    """ByzFL's arithmetic alone: what it trains models with wants torchvision and seaborn.

    Its rules write into what they are given: pass copies.
    """
    pytest.importorskip("torch")
    sys.modules.setdefault("byzfl.benchmark", types.ModuleType("byzfl.benchmark"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("byzfl")
