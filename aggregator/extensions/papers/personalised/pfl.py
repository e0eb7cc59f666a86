"""PFL: settings, and the personalising half that they configure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np

from aggregator.extensions.papers.geo_neighbours import NeighbourGraph, Site, checked, read, within
from aggregator.extensions.papers.personalised.credit import (
    Columns,
    Credit,
    Mixed,
    credited,
    modules_of,
)
from aggregator.extensions.papers.personalised.personalised import (
    Mixing,
    Personalised,
    Personalising,
    personal,
)
from aggregator.methods.base.types import Method, Prox, Rate, Setup, Share, Steps, has_no_use, task
from aggregator.rules import Rows
from edge_sdk.app.schema import Between, SchemaError
from edge_sdk.protocol.contract.method import Half

Rounds = Annotated[int, Between(1, 2**31 - 1)]
_CHOICES = {"last": 0.0, "own": 1.0, "fleet": 2.0}
_OPTIMISERS = {"bundle": 0.0, "sgd": 1.0, "adam": 2.0}


@dataclass(frozen=True, slots=True)
class PFL:
    """Personalised learning with credit attention: each device is pulled towards its own mixture.

    The parameters' part of the PFGL paper, with any model (its LSTM-PFL with an LSTM). A device
    steps from its own weights and is pulled towards a mixture of the weights most like its own.
    """

    steps: Steps = 10  # local steps a round
    rate: Rate = 1e-3  # their learning rate
    prox: Prox = 0.1  # weight of half the squared distance to the mixture (beta)
    # the same for single devices, by id
    prox_by_device: Mapping[str, Prox] = field(default_factory=dict)
    # weight of the nearest model relative to the device's own (sigma), above 0 and below 1: with a
    # smaller one a device admits fewer others, near 1 it admits all and nothing protects it
    credit: float = 0.8
    # the same for single devices, by id
    credit_by_device: Mapping[str, float] = field(default_factory=dict)
    min_similarity: float = 0.01  # likeness below which a model has no weight (A_min), below 1
    # weight of likeness; the rest is the weight of neighbourhood. Left out: 0.8 with a
    # neighbourhood, 1 without.
    alpha: Share | None = None
    # public coordinates by device id: latitude and longitude in degrees
    sites: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    # the same from a CSV with the first line ``client,latitude,longitude``; or pairs with the first
    # line ``client,neighbour``. Relative to the configuration.
    neighbours: str | None = None
    # largest distance of neighbours in km; left out: the median distance
    threshold: Annotated[float, Between(1e-6, 20_038.0)] | None = None
    # models are compared as a whole (``all``), or module by module (``per_module``), which detects
    # a poisoned decoder behind a large encoder
    scope: Literal["all", "per_module"] = "all"
    # lower bound of the nearest distance, as a fraction of a model's length
    floor: Annotated[float, Between(0.0, 1.0)] = 1e-6
    # true also bounds the nearest distance below by half the median one, which weakens near-copies
    # of a device's own model
    anti_sybil: bool = False
    # scale of distances: ``squared``, so that the nearest has exactly the credit; or the paper's
    # ``printed`` form, which makes weights near-uniform and admits Byzantine models
    scale: Literal["squared", "printed"] = "squared"
    # neighbours are ``averaged``; or ``printed``: each counts 1, rows exceed 1
    adjacency: Literal["averaged", "printed"] = "averaged"
    # a model that is too unlike stays out of the ``mixture``, or of ``likeness`` only, as printed:
    # then a Byzantine neighbour comes back in
    drop: Literal["mixture", "likeness"] = "mixture"
    # a mixture's weights are made to sum to ``one``, or left as ``printed``
    sums: Literal["one", "printed"] = "one"
    # start of a device's steps: its ``own`` weights, or the ``received`` mixture
    start: Literal["own", "received"] = "own"
    # optimiser of the steps: the bundle's, plain steps, or Adam
    optimiser: Literal["bundle", "sgd", "adam"] = "bundle"
    # state of the optimiser: ``kept`` over rounds, or ``fresh`` in each
    optimiser_state: Literal["kept", "fresh"] = "kept"
    # model that a device forecasts with, of those after its rounds: its ``own`` best on held-back
    # windows; that of the round with the least mean held-back loss of the ``fleet``; or the
    # ``last``. Without held-back windows (``training.holdout_fraction``) the last.
    model_selection: Literal["own", "fleet", "last"] = "own"
    # after the run, a device takes as many steps once more, without any pull
    final_tuning: bool = True
    stale_after: Rounds = 5  # number of rounds that the last weights of a silent device count
    # number of rounds of which all weights are kept
    history: Annotated[int, Between(0, 100_000)] = 100
    renamed: ClassVar[Mapping[str, str]] = {
        "least": "min_similarity",
        "prox_of": "prox_by_device",
        "credit_of": "credit_by_device",
        "choice": "model_selection",
        "tune": "final_tuning",
        "moments": "optimiser_state",
    }

    def __post_init__(self) -> None:
        """Refuse contradictory settings; the error names the key."""
        named = {
            "credit": self.credit,
            **{f"credit_by_device.{k}": v for k, v in self.credit_by_device.items()},
        }
        for key, sigma in named.items():
            if not 0.0 < sigma < 1.0:
                raise ValueError(f"{key}: expected more than 0 and less than 1, got {sigma:g}")
        if not 0.0 <= self.min_similarity < 1.0:
            raise ValueError(
                f"min_similarity: expected at least 0 and less than 1, got {self.min_similarity:g}"
            )
        if self.sites and self.neighbours is not None:
            raise ValueError(
                "neighbours: expected none beside sites: both define the neighbourhood"
            )
        near = bool(self.sites) or self.neighbours is not None
        if self.threshold is not None and not near:
            raise ValueError("threshold: expected none without sites or neighbours")
        if self.alpha is not None and self.alpha < 1.0 and not near:
            raise ValueError(
                f"alpha: expected 1 without sites or neighbours, for likeness is all there is, "
                f"got {self.alpha:g}"
            )

    @property
    def max_staleness(self) -> int:
        return self.stale_after

    @property
    def compared(self) -> Credit:
        near = bool(self.sites) or self.neighbours is not None
        alpha = (0.8 if near else 1.0) if self.alpha is None else self.alpha
        return Credit(
            alpha,
            self.min_similarity,
            self.floor,
            self.anti_sybil,
            self.scale,
            self.adjacency,
            self.drop,
            self.sums,
        )

    def numbers(self, client: str) -> dict[str, float]:
        values = task(self.steps, self.rate, prox=self.prox_by_device.get(client, self.prox))
        values |= {
            "optimiser": _OPTIMISERS[self.optimiser],
            "choice": _CHOICES[self.model_selection],
        }
        flags = {
            "received": self.start == "received",
            "fresh": self.optimiser_state == "fresh",
            "tune": self.final_tuning,
        }
        return values | {name: 1.0 for name, is_set in flags.items() if is_set}

    def near(self, folder: Path) -> NeighbourGraph:
        """Return the neighbour graph; raise SchemaError for coordinates out of range, or a file that does not fit."""
        if self.neighbours is not None:
            return read(folder / self.neighbours, self.threshold)
        sites: dict[str, Site] = {k: checked(k, site) for k, site in self.sites.items()}
        return within(sites, self.threshold)


def pfl(setup: Setup) -> Half[Personalised]:
    """Return PFL's server half; raise SchemaError for unreadable neighbours or a setting that it does not use."""
    has_no_use(setup, "rule", "weighting", "share")
    settings: PFL = setup.settings
    mixing = by_credit(settings, settings.near(setup.folder), modules_of_scope(setup))
    return personal(
        Personalising(
            mixing,
            setup.rounds,
            settings.numbers,
            settings.stale_after,
            settings.history,
            by_fleet=settings.model_selection == "fleet",
        )
    )


def modules_of_scope(setup: Setup) -> tuple[Columns, ...] | None:
    """Return the modules compared separately, None for whole models; raise SchemaError without a layout."""
    if setup.settings.scope != "per_module":
        return None
    if setup.spec is None:
        raise SchemaError("run.settings.scope", "all, where no layout is known", "'per_module'")
    return modules_of(setup.spec)


def by_credit(
    settings: PFL, near: NeighbourGraph, modules: tuple[Columns, ...] | None = None
) -> Mixing:
    """Return credit attention as a mixing; without modules, models are compared as a whole."""
    how = settings.compared

    def mix(rows: Rows) -> Mixed:
        sigma = np.array(
            [settings.credit_by_device.get(name, settings.credit) for name in rows.ids]
        )
        parts = (np.arange(rows.width),) if modules is None else modules
        return credited(rows, sigma, near.among(rows.ids), parts, how)

    return mix


METHOD = Method(PFL, pfl, own=True)
