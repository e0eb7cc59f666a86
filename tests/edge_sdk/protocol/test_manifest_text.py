"""PROTOCOL.md section 7 against the code: every key of the manifest, its range, every graph."""

import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest

from edge_sdk.app.schema import Between, Length, Matches, key_of
from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.forecasting.calendar_features import CALENDAR
from edge_sdk.protocol import messages
from edge_sdk.protocol.contract import archive, manifest
from edge_sdk.protocol.contract.manifest import SIGNATURES, Loss
from edge_sdk.protocol.contract.method import CONTRACTS

TEXT = (Path(messages.__file__).parent / "PROTOCOL.md").read_text("utf-8")
SECTION = re.search(r"^## 7 .*?(?=^## 8 )", TEXT, re.MULTILINE | re.DOTALL)[0]
CLASSES = [
    cls
    for cls in vars(manifest).values()
    if isinstance(cls, type)
    and cls.__module__.startswith(manifest.__name__)
    and hasattr(cls, "__slots__")
    if not issubclass(cls, Exception)
]


def table(title: str) -> list[list[str]]:
    """Rows of the table below a bold title."""
    body = re.search(
        rf"^\*\*{title}\*\*.*?\n\n(.*?)(?:\n\n|\Z)", SECTION, re.MULTILINE | re.DOTALL
    )[1]
    rows = [line for line in body.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def rows(cls: type) -> dict[str, tuple[bool, str]]:
    """Key to whether it may be left out, and what else its row says."""
    return {
        key: (bool(mark), f"{kind} {meaning}")
        for cell, kind, meaning in table(cls.__name__)
        for key, mark in re.findall(r"`(\w+)`(\??)", cell)
    }


def number(text: str) -> float:
    return 2.0**31 - 1 if text == "2^31-1" else float(text)


def bounds(hint: object) -> list[object]:
    """All bounds and choices inside a type."""
    inner = [found for part in get_args(hint) for found in bounds(part)]
    if get_origin(hint) is Annotated:
        inner += [m for m in hint.__metadata__ if isinstance(m, (Between, Length, Matches))]
    return [hint, *inner] if get_origin(hint) is Literal else inner


def test_the_classes_are_found():
    assert {cls.__name__ for cls in CLASSES} >= {
        "Manifest",
        "Feature",
        "Loss",
        "Training",
        "Golden",
    }


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_the_text_names_every_key_and_no_other(cls):
    said = {key: optional for key, (optional, _) in rows(cls).items()}
    there = {
        key_of(f.name): f.default is not MISSING and f.default is None  # unset is left out
        for f in fields(cls)
    }
    assert said == there


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_the_text_gives_every_range_and_choice(cls):
    said = rows(cls)
    for name, hint in get_type_hints(cls, include_extras=True).items():
        _, text = said[name]
        ranges = [tuple(map(number, r)) for r in re.findall(r"(-?[\d.e^-]+)…(-?[\d.e^-]*\d)", text)]
        ranges += [(1.0, 65536.0)] * bool(re.search(r"\bcounts?\b", text))
        for bound in bounds(hint):
            if isinstance(bound, Between):
                assert (bound.lowest, bound.highest) in ranges, (name, text)
            elif isinstance(bound, Length):
                assert (bound.lowest, bound.highest) in ranges or (bound.lowest, bound.highest) == (
                    1,
                    128,
                )
            elif isinstance(bound, Matches) and cls is not manifest.Manifest:
                assert bound.pattern in text, (name, text)
            elif get_origin(bound) is Literal:
                assert all(str(c) in text for c in get_args(bound)), (name, text)


def test_the_text_names_every_calendar_word():
    said = re.search(r"`what` is(.*?)\n\n", SECTION, re.DOTALL)[1]
    assert set(re.findall(r"`(\w+)`", said)) - {"step"} == set(CALENDAR)


def test_the_text_has_every_graph_with_its_feeds_and_results():
    body = SECTION.split("### Graphs", 1)[1]
    found = re.findall(
        r"^\| `(\w+)` \| `([\w ]+)` \| `([\w ]+)`.*?\| (.*?) \|$", body, re.MULTILINE
    )
    assert {g: (tuple(i.split()), tuple(o.split())) for g, i, o, _ in found} == dict(SIGNATURES)
    asked = {"hvp": set(), "robust_gradient": set()}
    for method, contract in CONTRACTS.items():
        for ask in contract.values():
            for graph in set(ask.graphs) & asked.keys():
                asked[graph].add(method)
    for graph, _, _, when in found:
        if graph in asked:
            assert set(re.findall(r"`(\w+)`", when)) & CONTRACTS.keys() == asked[graph]


def loss_of(said: Loss, y: np.ndarray, yhat: np.ndarray) -> float:
    """The loss as section 7 writes it."""
    if said.levels is not None:
        q, e = np.array(said.levels), y[..., None] - yhat
        return float(np.maximum(q * e, (q - 1) * e).sum((1, 2)).mean())
    e = np.abs(y - yhat)
    if said.delta is None:
        return float((e**2).mean())
    return float(np.where(e <= said.delta, e**2 / 2, said.delta * (e - said.delta / 2)).mean())


@pytest.mark.parametrize("name", ["load-lstm", "load-gru", "chargers-1"])
def test_the_losses_are_those_of_the_text(name):
    bundle = Bundle.open(name, trust=TrustedKeys())
    rng = np.random.Generator(np.random.Philox(1))
    window, width = bundle.manifest.window, len(bundle.manifest.features)
    x = rng.random((3, window.lookback, width), np.float32)
    y = rng.random((3, window.horizon), np.float32)
    (yhat,) = bundle.forecast(p=bundle.initial, x=x)
    loss, _ = bundle.gradient(p=bundle.initial, x=x, y=y)
    assert float(loss) == pytest.approx(loss_of(bundle.manifest.loss, y, yhat), rel=1e-3)


def test_the_text_gives_the_archive_s_bounds():
    said = re.search(r"at most (\d+) MiB in at most (\d+) files", SECTION)
    assert (int(said[1]) << 20, int(said[2])) == (archive.SIZE_LIMIT, archive._MOST_FILES)


def test_a_limit_that_a_bundle_leaves_out_is_the_one_in_the_text():
    said = {key: text for key, (_, text) in rows(manifest.Training).items() if key[:4] == "max_"}
    limits = manifest.Training().limits
    assert all(f"({limits[key[4:]]:g})" in text for key, text in said.items())
    assert len(said) == len(limits)
