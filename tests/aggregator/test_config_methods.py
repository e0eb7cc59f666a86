"""What a method cannot use, or cannot do without, is refused with the key before it starts."""

import pytest

from aggregator.config import AggregatorConfig, bind
from edge_sdk.errors import Failure


def refused(path):
    with pytest.raises(Failure) as caught:
        bind(AggregatorConfig.load(path, {}))
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.extension
@pytest.mark.parametrize(
    ("said", "key", "says"),
    [
        (("fedasync", 2, ""), "run.quorum", "expected 1"),
        (
            ("fedasync", 1, 'rule = { name = "median" }'),
            "run.rule",
            "combines updates without a rule",
        ),
        (("fedasync", 1, "client_fraction = 0.5"), "run.client_fraction", "expected 1"),
        (("fedasync", 1, "settings = { alpha = 2.0 }"), "run.settings.alpha", "to 1.0"),
        (
            ("fedasync", 1, 'settings = { discount = "poly" }'),
            "run.settings.discount",
            "polynomial",
        ),
        (("fedsgd", 2, "rate_stages = [[1, 0.1]]"), "run.rate_stages", "no rate of local steps"),
        (("rsa", 2, "rate_stages = [[1, 0.1]]"), "run.rate_stages", "no rate of local steps"),
        (("fedavg", 2, "rate_stages = [[0, 0.1]]"), "run.rate_stages[0][0]", "from 1"),
        (("fedavg", 2, "rate_stages = [[1, 0.1], [1, 2.0]]"), "run.rate_stages[1]", "above 1"),
        (
            ("fedavg", 2, "rate_stages = [[1, 0.1]]\nsettings = { rate = 0.1 }"),
            "run.settings.rate",
            "beside run.rate_stages",
        ),
        (("fedbuff", 4, 'rule = { name = "median", f = 1 }'), "run.quorum", "at least 5 for f = 1"),
        (
            ("cached", 1, 'rule = { name = "median", f = 2 }\nsettings = { min_rows = 4 }'),
            "run.rule.f",
            "a round of more than 4, it may have 4 (run.settings.min_rows)",
        ),
        (("cached", 1, "client_fraction = 0.5"), "run.client_fraction", "expected 1"),
        (("fedbuff", 2, 'weighting = "samples"'), "run.weighting", "expected uniform"),
        (("afl", 2, 'weighting = "samples"'), "run.weighting", "expected uniform"),
        (("afl", 2, 'rule = { name = "median" }'), "run.rule", "combines updates without a rule"),
        (("afl", 2, "settings = { loss_cap = 0.0 }"), "run.settings.loss_cap", "from 1.0"),
        (
            ("fedatt", 2, 'rule = { name = "mean", preaggregation = ["nnm"] }'),
            "run.rule",
            "expected none",
        ),
        (("fedda", 2, "settings = { rho = 2.0 }"), "run.settings.rho", "to 1.0"),
        (
            ("fedda", 2, 'settings = { clusters = { a = ["m-1"], b = ["m-1"] } }'),
            "run.settings.clusters",
            "each client in one cluster",
        ),
        (("fedgru", 2, ""), "run.bundle", "a model with a layer 'gru'"),
        (("fedntp", 2, ""), "run.bundle", "a model with a layer 'lstm'"),
        (("nbafl", 2, ""), "run.rounds", "missing"),
        (("udp", 2, "settings = { crd = true }"), "run.rounds", "missing"),
        (
            ("udp", 2, "settings = { discount_factor = 1.5 }"),
            "run.settings.discount_factor",
            "to 1.0",
        ),
        (("fesem", 2, ""), "run.settings.centres", "at most 2"),
        (("fesem", 3, "min_updates = 2"), "run.settings.centres", "at most 2"),
        (
            ("fesem", 8, 'rule = { name = "krum", f = 1 }'),
            "run.settings.centres",
            "at most 1, for a round may have 8 answers, 5 for each",
        ),
        (("fesem", 3, 'rule = { name = "fltrust", root = "m-1" }'), "run.rule.name", "trusted"),
        (("fesem", 3, 'weighting = "samples"'), "run.weighting", "expected uniform"),
        (("fesem", 3, "client_fraction = 0.5"), "run.client_fraction", "expected 1"),
        (("fesem", 3, "settings = { centres = 0 }"), "run.settings.centres", "from 1"),
    ],
)
def test_refusals_name_the_key(workplace, said, key, says):
    method, quorum, more = said
    changes = [('"fedavg"', f'"{method}"'), ("quorum = 2", f"quorum = {quorum}")]
    why = refused(workplace(more, changes))
    assert why.startswith(f"aggregator.toml: {key}: "), why
    assert says in why


@pytest.mark.extension
@pytest.mark.parametrize(
    ("method", "quorum", "more"),
    [
        ("fedasync", 1, ""),
        ("fedbuff", 5, 'rule = { name = "median", f = 1 }'),
        ("cached", 1, 'rule = { name = "krum", f = 1 }\nsettings = { min_rows = 5 }'),
        ("afl", 2, ""),
        ("fesem", 3, ""),
        ("fesem", 6, 'rule = { name = "trimmed_mean", f = 1 }\nsettings = { centres = 2 }'),
        ("fedatt", 2, ""),
        ("fedda", 2, 'settings = { clusters = { north = ["m-1", "m-2"] }, quasi = "start" }'),
        ("nbafl", 2, "rounds = 25"),
        ("nbafl", 5, 'rounds = 25\nrule = { name = "median", f = 1 }'),
        ("udp", 2, "settings = { crd = true }\nrounds = 25"),
    ],
)
def test_what_can_be_meant_binds(workplace, method, quorum, more):
    changes = [('"fedavg"', f'"{method}"'), ("quorum = 2", f"quorum = {quorum}")]
    run = bind(AggregatorConfig.load(workplace(more, changes), {}))
    assert run.first_state().version == 0
