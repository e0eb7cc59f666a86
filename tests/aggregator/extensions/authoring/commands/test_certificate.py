"""The certificate as an operator asks for it: of a run's present model, or a refusal in words."""

from __future__ import annotations

from argparse import Namespace

import numpy as np
import pytest

from aggregator import config
from aggregator.commands import init
from aggregator.extensions.authoring.commands import certificate as command
from aggregator.extensions.authoring.commands.certificate import NoCertificate
from aggregator.extensions.authoring.lipschitz_bound import certificate
from edge_sdk.bundle import Bundle, TrustedKeys

CONFIG = """
fleet = "cells"
state = "state"
[broker]
url = "mqtt://127.0.0.1"
[run]
bundle = "{bundle}"
method = "{method}"
quorum = 2
{more}
"""


def written(folder, bundle="cells-mlp-1", more="", method="fedavg"):
    path = folder / "aggregator.toml"
    path.write_text(CONFIG.format(bundle=bundle, more=more, method=method))
    return Namespace(config=str(path), error=None, root_key=[], fresh=False)


def test_before_a_run_it_is_the_bundles(tmp_path):
    answer = command.run(written(tmp_path))
    bundle = Bundle.open("cells-mlp-1", trust=TrustedKeys())
    wanted = certificate(bundle.manifest, bundle.initial.astype(np.float64))
    assert answer.data["model"] == "the bundle's initial model"
    assert answer.data["data"] == wanted.data
    assert f"{wanted.data:.4g} rho higher" in answer.text


@pytest.mark.parametrize("method", ["fedavg", "bafdp", "fedbuff"])
def test_in_a_run_it_is_the_present_models(tmp_path, method):
    args = written(tmp_path, method=method)
    init.run(args)
    assert command.run(args).data["model"] == "run 1, version 0"


@pytest.mark.parametrize(
    ("bundle", "more", "says"),
    [
        ("load-mlp", "", "33 of the model's 8417 scalars stay on the devices"),
        ("load-mlp", 'shared = [""]', "does not say which layer follows which"),
    ],
)
def test_what_nothing_can_be_promised_of_is_refused(tmp_path, bundle, more, says):
    with pytest.raises(NoCertificate, match=says):
        command.run(written(tmp_path, bundle, more))


def test_smaller_errors_make_it_smaller(tmp_path):
    args = written(tmp_path)
    args.error = 0.01
    small = command.run(args).data
    assert small["loss"] == pytest.approx(0.01)
    assert config.bind(config.AggregatorConfig.load(args.config)).bundle.manifest.loss.delta == 0.1
