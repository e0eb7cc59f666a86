"""Saved records of the candidates: their bytes are fixed, and damaged ones are refused.

``python -m tests.edge_sdk.extensions.choice.test_saved_records`` writes vectors that do not exist yet.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_sdk.extensions.analytic.boosted_model import BoostedModel
from edge_sdk.extensions.analytic.boosting import FittedTrees
from edge_sdk.extensions.choice.combination import (
    BLEND,
    BY_STEP,
    COLUMNS,
    LAST_DAY,
    LAST_GOOD,
    OWN,
    TREES,
    USUAL,
    HeldBackErrors,
)
from edge_sdk.extensions.choice.fine_tuning import TunedModel
from edge_sdk.extensions.choice.forecast_choice import ForecastChoice
from edge_sdk.extensions.choice.last_good import LastGood
from edge_sdk.extensions.choice.model_monitor import DailyScores, ModelMonitor, SequentialTest
from edge_sdk.extensions.choice.own_model import OwnModel
from edge_sdk.extensions.choice.saved_selection import (
    BOOSTED_MODEL,
    GOOD_MODEL,
    OWN_MODEL,
    SELECTION,
    TUNED_MODEL,
    SavedSelection,
    _read,
    save,
)
from edge_sdk.extensions.intervals.calibrated_forecaster import CALIBRATION, recalled
from edge_sdk.extensions.intervals.conformal import ConformalCalibration
from edge_sdk.forecasting.forecast import FLEET
from edge_sdk.forecasting.windows import Scale
from edge_sdk.protocol.codec import pack_leaves, unpack_leaves

VECTORS = Path(__file__).parents[3] / "vectors" / "records"
DIGEST = hashlib.sha256(b"model").digest()
LEARNER = SimpleNamespace(
    manifest=SimpleNamespace(digest=hashlib.sha256(b"bundle").digest()),
    spec=SimpleNamespace(whole_digest=hashlib.sha256(b"layout").digest()),
    scale=Scale(0.5, 2.5),
)
BUILD = {
    SELECTION: SavedSelection.from_leaves,
    TUNED_MODEL: TunedModel.from_arrays,
    OWN_MODEL: OwnModel.from_arrays,
    BOOSTED_MODEL: FittedTrees.from_arrays,
    GOOD_MODEL: LastGood.from_arrays,
}


class Papers(dict):
    """A store that keeps records in memory."""

    file_paper = dict.__setitem__
    paper = dict.get


def table(blocks, columns=USUAL):
    sums = np.arange(3.0 * blocks * len(columns)).reshape(3, blocks, len(columns)) / 4
    sums[0, :, columns.index(OWN)] = np.nan
    arrays = {"days": np.array([20_000, 20_001, 20_003]), "sums": sums}
    return HeldBackErrors.from_arrays({**arrays, "counts": np.full((3, blocks), 24)}, columns)


def boosted():
    rng = np.random.default_rng(0)
    deviation = np.array([[1.0, np.inf, 0.5]], np.float32)
    edges = np.sort(rng.normal(size=(2, 3, 4)), axis=2).astype(np.float32)
    edges[0, 1] = np.inf
    model = BoostedModel(
        1.5,
        0.25,
        np.array([[0.0, 3.0, -1.0]], np.float32),
        deviation,
        rng.normal(size=(1, 6)).astype(np.float32),
        edges,
        np.array([[[0, 2]], [[1, 1]]]),
        np.array([[[3, 0]], [[2, 1]]]),
        rng.normal(size=(2, 1, 4)).astype(np.float32),
        ("closed form", "fleet"),
        ("fleet", "last day"),
        np.array([[0.25, 0.75]]),
        900,
    )
    return FittedTrees(model, 481_000, DIGEST)


def records():
    """Every record by the name of its vector: the name in the store, and its leaves."""
    errors = {FLEET: 0.5, LAST_DAY: 0.75}
    parts = (
        ForecastChoice(FLEET, {FLEET: 1.0}, errors, 3),
        ForecastChoice(TREES, {TREES: 1.0}, errors, 3),
        ForecastChoice("weighted mean", {BLEND: 0.5, OWN: 0.5}, errors, 3),
        ForecastChoice(LAST_DAY, {LAST_DAY: 1.0}, errors, 3),
    )
    scores = DailyScores(
        np.array([20_000, 20_003]), np.arange(6.0).reshape(2, 3), np.array([[24, 1, 2], [23, 0, 3]])
    )
    lost, unusual = (SequentialTest((one, 1.0, 2.0, 0.25, 0.125)) for one in (0.5, 0.75))
    monitor = ModelMonitor(scores, lost, 20_003, 1, 2, 7, 9, unusual)
    by_step = ForecastChoice(BY_STEP, {}, {**errors, BY_STEP: 0.25}, 3, parts)
    numbers = (481_000, 1_790_000_000, 480_990, DIGEST)
    own = OwnModel(np.array([0.0, 1.0]), np.array([1.0, 2.0]), np.array([[0.5, -1.0, 2.0]]), 1e-3)
    p = np.array([1.0, -2.0], np.float32)
    tuned = TunedModel(DIGEST, p, 0.5, 0.25, 7)
    returned = ForecastChoice(LAST_GOOD, {LAST_GOOD: 1.0}, {**errors, LAST_GOOD: 0.25}, 2)
    return {
        "forecast-selection": (SELECTION, SavedSelection(table(1), parts[1], *numbers).leaves()),
        "forecast-selection-by-step": (
            SELECTION,
            SavedSelection(table(4), by_step, *numbers).leaves(),
        ),
        "forecast-selection-unusual": (
            SELECTION,
            SavedSelection(table(1), parts[1], *numbers, monitor).leaves(),
        ),
        "forecast-selection-after-an-alarm": (
            SELECTION,
            SavedSelection(table(1, COLUMNS), returned, *numbers, monitor).leaves(),
        ),
        "last-good-model": (GOOD_MODEL, LastGood(20_003, p, -p).arrays()),
        "last-good-model-none": (GOOD_MODEL, LastGood(20_003, None, p).arrays()),
        "tuned-model": (TUNED_MODEL, tuned.arrays()),
        "tuned-model-none": (TUNED_MODEL, TunedModel(DIGEST, None, 0.5, 0.5, 1).arrays()),
        "own-model": (OWN_MODEL, own.arrays()),
        "boosted-model": (BOOSTED_MODEL, boosted().arrays()),
    }


def written(name):
    kind, leaves = records()[name]
    store = Papers()
    save(store, LEARNER, kind, leaves)
    return kind, store[kind]


def leaves_of(found):
    return found.leaves() if hasattr(found, "leaves") else found.arrays()


@pytest.mark.parametrize("name", sorted(records()))
def test_a_record_has_the_bytes_of_its_vector_and_is_read_back(name):
    kind, paper = written(name)
    golden = (VECTORS / f"{name}.bin").read_bytes()
    assert paper == golden
    found = _read(Papers({kind: golden}), LEARNER, kind, BUILD[kind])
    again = Papers()
    save(again, LEARNER, kind, leaves_of(found))
    assert again[kind] == golden


def test_a_selection_from_before_trees_and_blocks_is_read():
    """Its vector was written by the version before: five candidates, one choice for all steps."""
    paper = (VECTORS / "forecast-selection-of-five.bin").read_bytes()
    found = _read(Papers({SELECTION: paper}), LEARNER, SELECTION, SavedSelection.from_leaves)
    assert found.choice == ForecastChoice(LAST_DAY, {LAST_DAY: 1.0}, {FLEET: 2.0, LAST_DAY: 0.5}, 9)
    assert found.table.days.tolist() == list(range(20_000, 20_009))
    assert found.table.compared() == {FLEET: 2.0, LAST_DAY: 0.5}
    assert (found.upto, found.judged) == (481_000, 1_790_000_000)


def test_a_monitor_from_before_the_test_of_unusual_days_is_read():
    paper = (VECTORS / "forecast-selection-monitored.bin").read_bytes()
    found = _read(Papers({SELECTION: paper}), LEARNER, SELECTION, SavedSelection.from_leaves)
    monitor = found.monitor
    assert monitor.test == SequentialTest((0.5, 1.0, 2.0, 0.25, 0.125))
    assert monitor.unusual == SequentialTest()
    assert (monitor.tested, monitor.lost, monitor.alarms) == (20_003, 1, 2)
    assert (monitor.alarmed_row, monitor.since) == (7, 9)


@pytest.mark.parametrize("name", sorted(records()))
def test_a_record_of_another_bundle_or_scale_is_passed_over(name, caplog):
    kind, paper = written(name)
    other = SimpleNamespace(manifest=SimpleNamespace(digest=b""), spec=LEARNER.spec, scale=None)
    assert _read(Papers({kind: paper}), other, kind, BUILD[kind]) is None
    assert not caplog.records


@pytest.mark.parametrize("name", sorted(records()))
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_changed_bytes_are_refused(name, data):
    kind, paper = written(name)
    at = data.draw(st.integers(0, len(paper) - 1))
    cut = data.draw(st.booleans())
    flipped = paper[:at] + bytes([paper[at] ^ data.draw(st.integers(1, 255))]) + paper[at + 1 :]
    damaged = paper[:at] if cut else flipped
    assert _read(Papers({kind: damaged}), LEARNER, kind, BUILD[kind]) is None


STRANGE = (
    st.none()
    | st.integers(-3, 2**40)
    | st.floats()
    | st.text(max_size=3)
    | st.binary(max_size=3)
    | st.lists(st.integers(0, 3), max_size=3)
    | st.dictionaries(st.sampled_from((*COLUMNS, "x")), st.floats(), max_size=3)
    | st.sampled_from(
        [
            np.zeros(0),
            np.zeros((2, 2)),
            np.array(-1),
            np.array(np.nan),
            np.full(3, np.inf),
            np.array([9, 8, 7]),
            np.zeros((1, 1, 1), np.float32),
            np.zeros(3, np.complex128),
        ]
    )
)


def places(leaves):
    """Every path to a leaf, of tables and choices inside too."""
    for key, value in leaves.items():
        yield (key,)
        if isinstance(value, dict):
            yield from ((key, *rest) for rest in places(value))


def changed(leaves, path, value, *, is_missing):
    found = {k: dict(v) if isinstance(v, dict) else v for k, v in leaves.items()}
    inner = found
    for key in path[:-1]:
        inner = inner[key]
    if is_missing:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return found


@pytest.mark.parametrize("name", sorted(records()))
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_strange_leaf_is_refused_or_harmless(name, data):
    """Whatever is read is a record that can be saved again; anything else is None, never an error."""
    kind, paper = written(name)
    leaves = unpack_leaves(paper)
    path = data.draw(st.sampled_from(sorted(places(leaves))))
    value = data.draw(STRANGE)
    strange = changed(leaves, path, value, is_missing=data.draw(st.booleans()))
    try:
        damaged = pack_leaves(strange)
    except TypeError:
        return
    found = _read(Papers({kind: damaged}), LEARNER, kind, BUILD[kind])
    if found is not None:
        save(Papers(), LEARNER, kind, leaves_of(found))
        if kind == SELECTION:
            assert found.choice.used <= set(COLUMNS)
            assert len(found.choice.by_block) in (1, found.table.blocks)


def test_a_whole_number_in_place_of_the_digest_takes_no_memory(caplog):
    """``bytes`` makes as many zeros of a whole number; a damaged record must not choose how many."""
    kind, paper = written("forecast-selection")
    damaged = pack_leaves({**unpack_leaves(paper), "base": 2**32})
    assert _read(Papers({kind: damaged}), LEARNER, kind, BUILD[kind]) is None
    assert "the digest of the common model is a int" in caplog.text


@pytest.mark.parametrize("depth", [17, 2**33, 2**40])
def test_a_depth_in_a_record_chooses_no_number_of_leaves(depth, caplog):
    """Without a tree, questions have no bytes at any depth; 2 to its power would have gigabytes."""
    kind, paper = written("boosted-model")
    empty = {name: np.zeros((2, 0, depth), np.uint16) for name in ("asked", "above")}
    damaged = pack_leaves({**unpack_leaves(paper), **empty})
    assert _read(Papers({kind: damaged}), LEARNER, kind, BUILD[kind]) is None
    assert f"trees of depth {depth}, at most 16" in caplog.text


def test_a_record_that_wants_more_memory_than_there_is_is_refused(caplog):
    def greedy(_leaves):
        raise MemoryError

    kind, paper = written("own-model")
    assert _read(Papers({kind: paper}), LEARNER, kind, greedy) is None
    assert "saved record refused" in caplog.text
    assert "MemoryError" in caplog.text


@pytest.mark.parametrize("strange", [None, "x", np.zeros(2), np.array(np.nan)])
def test_a_calibration_with_a_strange_number_is_computed_again(strange):
    digest = np.frombuffer(DIGEST, np.uint8)
    arrays = {**ConformalCalibration.new(1).arrays(), "bundle": digest, "model": digest}
    paper = pack_leaves({**arrays, "since": np.array(3), "upto": strange})
    found = recalled(Papers({CALIBRATION: paper}), LEARNER.manifest.digest)
    assert found is None


def test_a_refusal_names_the_record_and_the_reason(caplog):
    own = OwnModel(np.zeros(2), np.ones(2), np.full((1, 3), np.nan), 1e-3)
    store = Papers()
    save(store, LEARNER, OWN_MODEL, own.arrays())
    assert _read(store, LEARNER, OWN_MODEL, OwnModel.from_arrays) is None
    (line,) = [one.getMessage() for one in caplog.records]
    assert line == 'saved record refused record="own model" why="own model: a number is not finite"'


def write() -> None:
    VECTORS.mkdir(exist_ok=True)
    for name in records():
        path = VECTORS / f"{name}.bin"
        if not path.exists():
            path.write_bytes(written(name)[1])


if __name__ == "__main__":
    write()
