"""Begin a run, go on with it, begin another: what is signed, and what makes a run another one."""

import numpy as np
import pytest

from aggregator.config import AggregatorConfig, bind
from aggregator.operations.run_setup import RUN_LEAP, resumed, set_up, verified_run
from aggregator.operations.signing_keys import RootSigners, RunSetupError
from aggregator.store.opener import open_store
from edge_sdk.app.settings import SettingsError
from edge_sdk.protocol import codec, envelope, keys, topics
from edge_sdk.protocol.messages import BundleMessage, KeysMessage

ROOT = keys.from_seed(bytes(range(32)))
ONLINE = keys.from_seed(bytes(range(32, 64)))
NOW = 1_800_000_000_000


def founding(path, root=ROOT, **more):
    config = AggregatorConfig.load(path, {})
    run = bind(config)
    with open_store(config.database) as store:
        done = set_up(run, store, root=RootSigners.of(root), online=ONLINE.public, now=NOW, **more)
        return done, run, store.announcements.all()


def said(announcements, kind, cls):
    sealed = envelope.unseal(
        announcements[topics.common("north", kind)],
        kind=kind,
        sender="_root",
        recipient="_all",
        fleet="north",
        key_of=lambda _sender, kid: ROOT.public if kid == ROOT.kid else None,
    )
    return codec.decode(cls, sealed.body)


def test_what_the_root_signs(workplace):
    done, run, announced = founding(workplace())
    assert (done.number, done.is_new, done.continued) == (1, True, False)
    bundle = said(announced, "bundle", BundleMessage)
    assert (bundle.digest, bundle.size) == (run.bundle.digest, len(run.bundle.archive))
    assert (bundle.run, bundle.method, bundle.shared) == (1, "fedavg", ("body.",))
    online = said(announced, "keys", KeysMessage)
    assert online.sign == (ONLINE.public,)
    assert online.from_[0] < NOW < online.until[0]


def test_founding_again_goes_on_with_higher_serials(workplace):
    path = workplace()
    _, _, before = founding(path)
    done, _, after = founding(path)
    assert (done.number, done.is_new) == (1, False)
    assert said(after, "keys", KeysMessage).serial > said(before, "keys", KeysMessage).serial


@pytest.mark.parametrize(
    ("more", "replacing", "differs"),
    [
        ("settings = { steps = 9 }", (), "settings.steps: 4 at the start, now 9"),
        ('shared = ["head."]', (), "shared: "),
        ("", [("quorum = 2", "quorum = 3")], "rounds.quorum: 2 at the start, now 3"),
        ("", [('"fedavg"', '"fedadam"')], "method: fedavg was announced, now fedadam"),
        ("", [("[run]", "admission = { max_norm = 5.0 }\n[run]")], "admission.max_norm: None"),
    ],
)
def test_another_definition_is_another_run(workplace, more, replacing, differs):
    founding(workplace())
    path = workplace(more, replacing)
    config = AggregatorConfig.load(path, {})
    with (
        open_store(config.database) as store,
        pytest.raises(RunSetupError, match="differs from run 1") as caught,
    ):
        verified_run(bind(config), store, ONLINE)
    assert differs in str(caught.value)
    assert founding(path)[0].number == 2


@pytest.mark.parametrize("more", ['shared = ["body."]', "client_fraction = 0.5"])
def test_what_a_replay_does_not_depend_on_is_the_same_run(workplace, more):
    founding(workplace())
    path = workplace(more, [('"60s"', '"5m"')])
    assert founding(path)[0].is_new is False


def test_another_run_takes_the_model_along_where_it_fits(workplace):
    path = workplace()
    founding(path)
    config = AggregatorConfig.load(path, {})
    with open_store(config.database) as store:
        store.commit(1, {"w": np.array([7.0, 8.0])}, 0)
    done, run, _ = founding(workplace(replacing=[('"fedavg"', '"fedavgm"')]))
    assert done.continued
    with open_store(config.database) as store:
        np.testing.assert_array_equal(resumed(run, store, 2)[0].w, [7.0, 8.0])
    done, run, _ = founding(workplace('shared = ["head."]'))
    assert not done.continued
    with open_store(config.database) as store:
        np.testing.assert_array_equal(resumed(run, store, 3)[0].w, [0.5])


def test_fresh_begins_from_the_bundle(workplace):
    path = workplace()
    founding(path)
    done, _, _ = founding(path, fresh=True)
    assert (done.number, done.is_new, done.continued) == (2, True, False)


def test_a_restored_backup_must_begin_another_run_with_leaping_serials(workplace, tmp_path):
    path = workplace()
    _, _, before = founding(path)
    config = AggregatorConfig.load(path, {})
    with open_store(config.database) as store:
        store.backup(tmp_path / "copy.db")
    (tmp_path / "copy.db").replace(config.database)
    for rest in config.state.glob("aggregator.db-*"):
        rest.unlink()
    with (
        open_store(config.database) as store,
        pytest.raises(RunSetupError, match="restored from a backup"),
    ):
        verified_run(bind(config), store, ONLINE)
    done, _, after = founding(path)
    assert done.number == 1 + RUN_LEAP
    assert (
        said(after, "keys", KeysMessage).serial >= said(before, "keys", KeysMessage).serial + 2**20
    )


def test_announcements_of_another_root_are_refused(workplace):
    path = workplace()
    founding(path, root=keys.from_seed(bytes([9]) * 32))
    config = AggregatorConfig.load(path, {})
    with (
        open_store(config.database) as store,
        pytest.raises(RunSetupError, match=r"was not signed by root\.pub"),
    ):
        verified_run(bind(config), store, ONLINE)


@pytest.mark.extension
@pytest.mark.parametrize(("quorum", "fits"), [(3, True), (4, False)])
def test_more_answers_than_there_are_devices_are_refused_at_the_start(founded, quorum, fits):
    asynchronous = (
        ('method = "fedavg"', 'method = "fedbuff"'),
        ("quorum = 2", f"quorum = {quorum}"),
    )
    bound = bind(founded(replacing=asynchronous))
    with open_store(bound.config.database) as store:
        if fits:
            assert verified_run(bound, store, ONLINE).method == "fedbuff"
            return
        with pytest.raises(
            RunSetupError, match=r"run\.quorum: a round needs 4 different devices"
        ) as caught:
            verified_run(bound, store, ONLINE)
        assert "enrol" in caught.value.hint


@pytest.mark.extension
@pytest.mark.parametrize(
    ("method", "settings", "key"),
    [
        ("fedbuff", "max_staleness = -1", "run.settings.max_staleness"),
        ("fedasync", "max_staleness = 1.5", "run.settings.max_staleness"),
        ("fedasync", "alpha = 0.0", "run.settings.alpha"),
        ("fedasync", "prox = -1.0", "run.settings.prox"),
        ("rsa", "staleness_bound = 0", "run.settings.staleness_bound"),
        ("rsa", "overdue = 'later'", "run.settings.overdue"),
        ("rsa", "stepz = 1", "run.settings"),
        ("fedbuff", "steps = 1 }\nrule = { name = 'trimmed_mean', f = 2", "run."),
    ],
)
def test_nonsense_in_an_asynchronous_run_is_refused_with_its_key(workplace, method, settings, key):
    replacing = (('method = "fedavg"', f'method = "{method}"\nsettings = {{ {settings} }}'),)
    with pytest.raises(SettingsError, match=key):
        bind(AggregatorConfig.load(workplace(replacing=replacing), {}))


@pytest.mark.extension
def test_fedasync_fires_after_every_answer_and_nothing_else(workplace):
    with pytest.raises(SettingsError, match=r"run\.quorum"):
        bind(
            AggregatorConfig.load(
                workplace(replacing=(('method = "fedavg"', 'method = "fedasync"'),)), {}
            )
        )
