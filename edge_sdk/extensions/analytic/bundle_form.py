"""Run a bundle in closed form on a device: solve its model, and add new windows to it."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.bundle import Bundle, BundleError
from edge_sdk.errors import EdgeError
from edge_sdk.extensions.analytic.bundle_functions import AnalyticModel
from edge_sdk.extensions.analytic.bundle_section import AnalyticSection
from edge_sdk.extensions.analytic.half import coefficients_of, solved_alone
from edge_sdk.extensions.analytic.online_vector import OnlineVector, TrainedVector
from edge_sdk.forecasting.calendar_features import Ints
from edge_sdk.forecasting.windows import ChannelFrame, Drawable
from edge_sdk.limits.resource_governor import data_limit
from edge_sdk.methods.training_context import Graph, TrainingContext
from edge_sdk.protocol.contract.manifest import HIDDEN, Manifest
from edge_sdk.protocol.contract.method import Array
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.runtime import GraphError
from edge_sdk.training.model_runtime import ModelRuntime
from edge_sdk.training.run_role import BundleForm

CHUNK = 128
"""Windows whose inputs are in memory at once."""
_BLAS = 34 * 2**20  # bytes that OpenBLAS takes at its first product, on x86-64


def functions_of(manifest: Manifest, graphs: Mapping[str, Graph]) -> Mapping[str, Graph]:
    """Return the functions that are computed for a bundle in place of graphs."""
    if not isinstance(manifest.analytic, AnalyticSection):
        from edge_sdk.extensions.analytic.profile_sums import functions_of_profiles  # noqa: PLC0415 - as needed

        return functions_of_profiles(manifest)
    return AnalyticModel(manifest, graphs.get(HIDDEN)).functions()


def check_golden(bundle: Bundle) -> None:
    """Compare the golden design row: a first vector of zeros forecasts 0 from any features.

    Raises:
        BundleError: It comes out differently here.
    """
    golden, section = bundle.manifest.golden, bundle.manifest.analytic
    assert section is not None
    x = np.array([golden.x], np.float32)
    try:
        row = bundle.graphs["design"](p=bundle.initial, x=x)[0][0, 0]
    except GraphError as error:
        raise BundleError(f"bundle {bundle.manifest.name}: {error}") from error
    if not np.allclose(row, section.design, rtol=0, atol=golden.tolerance):
        raise BundleError(
            f"bundle {bundle.manifest.name}: the golden design row comes out differently",
            hint="numpy on this device computes something else; report its version",
        )


def form_of(learner: ModelRuntime) -> BundleForm:
    """Return the form of a bundle in closed form, for the runtime of its model."""
    if isinstance(learner.manifest.analytic, AnalyticSection):
        return AnalyticForm(learner)
    from edge_sdk.extensions.analytic.profile_runtime import ProfileForm  # noqa: PLC0415 - as needed

    return ProfileForm(learner)


def reserve(name: str) -> None:
    """Reserve the memory of the linear algebra of a bundle.

    Raises:
        EdgeError: The limit of memory leaves too little.
    """
    try:
        reserve_blas()
    except MemoryError as error:
        raise EdgeError(
            f"bundle {name} is in closed form, and limits.memory_mb leaves {error}",
            hint="raise limits.memory_mb; `gridfed-edge check CONFIG` finds how much is needed",
        ) from error


class AnalyticForm(BundleForm):
    """A bundle in closed form on one device."""

    def __init__(self, learner: ModelRuntime) -> None:
        """Reserve the memory of the linear algebra.

        Raises:
            EdgeError: The limit of memory leaves too little.
        """
        name = learner.manifest.name
        reserve(name)
        self.why_not_tuned = f"bundle {name} is solved for this device in closed form"
        self._learner = learner
        self._online = _online_vector(learner)

    def forget(self) -> None:
        if self._online is not None:
            self._online.reset()

    def renewal(self, model: Mapping[str, Array]) -> Callable[[Drawable], Vector] | None:
        trained = TrainedVector.of(model)
        if self._online is None or trained is None:
            return None
        return partial(self._online.updated, trained)

    def latest(self, trained: Vector) -> Vector:
        return trained if self._online is None else self._online.latest(trained)

    def solved_alone(self, local: TrainingContext, p: Vector) -> Vector:
        return solved_alone(local, p)

    def solved(
        self,
        frame: ChannelFrame,
        p: Vector,
        common: Vector | None,
        origins: Ints,
        *,
        is_alone: bool,
    ) -> Vector:
        if is_alone:
            common = p.copy()  # with the constants of the features
            common[coefficients_of(self._learner.spec)] = 0.0
        if common is None:
            return p
        graphs = self._learner.bundle.graphs
        design: NDArray[Any] | None = None
        for start in range(0, len(origins), CHUNK):
            (rows,) = graphs["design"](p=common, x=frame.inputs(origins[start : start + CHUNK]))
            if design is None:
                design = np.empty((len(origins), *rows.shape[1:]), np.float32)
            design[start : start + CHUNK] = rows
        found = graphs["personal"](p=common, design=design, y=frame.targets(origins))[0]
        return np.asarray(found, np.float32)


def _online_vector(learner: ModelRuntime) -> OnlineVector | None:
    """Return the online update of the model's vector; None if it is off or the readings are hidden.

    Where noise hides the readings from training, it hides them from this too.
    """
    is_hidden = learner.mechanism.plan.point.is_on_readings
    if is_hidden or not learner.config.forecast.online:
        return None
    model = AnalyticModel(learner.manifest, learner.bundle.graphs.get(HIDDEN))
    forgetting = learner.config.forecast.forgetting
    return OnlineVector(model, forgetting=forgetting, capacity=learner.series.capacity)


def reserve_blas() -> None:
    """Let the BLAS take its memory now: later it would end the process where there is none.

    Raises:
        MemoryError: The limit leaves too little.
    """
    if data_limit() is None:
        return
    try:
        mmap.mmap(-1, _BLAS, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError as error:
        raise MemoryError(f"no room for the {_BLAS >> 20} MiB of the linear algebra") from error
    square = np.eye(128)
    np.matmul(square, square)
