"""Bound the Lipschitz constants of the present model's loss and forecast.

The bound is a product of norms of the weights; it needs no readings. All layers must be shared.

  gridfed-aggregator certificate aggregator.toml --error 4
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict

import numpy as np

from aggregator import config as configs
from aggregator.commands.arguments import add_config
from aggregator.extensions.authoring.lipschitz_bound import LipschitzBoundError, certificate
from aggregator.operations.run_setup import resumed
from aggregator.store.opener import exists, open_store
from edge_sdk.app.cli import CommandResult
from edge_sdk.errors import USAGE, Failure
from edge_sdk.protocol.contract.parameter_layout import Vector

FIRST = "the bundle's initial model"


class NoCertificate(Failure):
    """A model without a finite bound."""

    exit_code = USAGE


def add_arguments(parser: ArgumentParser) -> None:
    """Add the configuration and the largest error."""
    add_config(parser)
    words = "largest possible error in scaled units; required for a squared error"
    parser.add_argument("--error", type=float, metavar="E", help=words)


def run(args: Namespace) -> CommandResult:
    """Bound the Lipschitz constants of the common model's loss and forecast.

    Raises:
        NoCertificate: Some layers stay on devices, the bundle has no ``paths``, or the loss is a
            squared error without ``--error``.
    """
    bound = configs.bind(configs.AggregatorConfig.load(args.config))
    kept = bound.spec.size - bound.spec.shared_size
    if kept:
        raise NoCertificate(
            f"certificate: {kept} of the model's {bound.spec.size} scalars stay on the devices",
            hint='a bound needs all of them: run.shared = [""] shares every layer',
        )
    shared, which = _present(bound)
    vector = bound.spec.lift(shared).astype(np.float64)
    try:
        found = certificate(bound.bundle.manifest, vector, error=args.error)
    except LipschitzBoundError as error:
        raise NoCertificate(f"certificate: {error}", hint="docs/models.md: Certificate") from error
    text = (
        f"{which}, in scaled units\n"
        f"forecast in its window  {found.forecast:.4g}\n"
        f"loss in its forecast    {found.loss:.4g}\n"
        f"loss in its data        {found.data:.4g}\n"
        f"on data within a Wasserstein distance rho of these, the mean loss is at most "
        f"{found.data:.4g} rho higher"
    )
    return CommandResult({"model": which, **asdict(found)}, text)


def _present(run: configs.BoundRun) -> tuple[Vector, str]:
    """Return the newest saved common model, and its description."""
    if not exists(run.config.database):
        return run.spec.shared(run.bundle.initial), FIRST
    with open_store(run.config.database, read_only=True) as store:
        begun = store.runs.latest()
        if begun is None:
            return run.spec.shared(run.bundle.initial), FIRST
        state, _ = resumed(run, store, begun.run)
    model = np.asarray(run.half.model(state)["p"])
    return model, f"run {begun.run}, version {state.version}"
