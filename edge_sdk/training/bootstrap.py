"""Load and check what a device needs to start: keys, privacy mechanism, peers and link."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from edge_sdk.app.settings import seconds
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError, EdgeError
from edge_sdk.forecasting.intervals import SavedCalibration
from edge_sdk.forecasting.series import Series
from edge_sdk.forecasting.windows import Scale
from edge_sdk.methods import Factory
from edge_sdk.methods.topology import PeerSettings, settings_of_section, settings_of_task
from edge_sdk.methods.training_context import do_nothing
from edge_sdk.privacy.factory import mechanism_of
from edge_sdk.privacy.ledger import PrivacyAccount
from edge_sdk.privacy.mechanism import Mechanism
from edge_sdk.privacy.method_compatibility import refuse_method
from edge_sdk.privacy.noise_calibration import DeviceFacts, NoisePlan
from edge_sdk.privacy.validation import plan_of
from edge_sdk.session.announcements import saved_message
from edge_sdk.session.followed_authorities import FollowedAuthorities
from edge_sdk.session.followed_root import FollowedRoot
from edge_sdk.session.key_ring import KeyRing
from edge_sdk.session.signed_link import Will
from edge_sdk.store.store import DeviceStore, LearnedState
from edge_sdk.training.model_runtime import ModelRuntime
from edge_sdk.training.retention import history_of
from edge_sdk.training.run_role import RunnableBundle, RunRole, series_for
from edge_sdk.wire.contract.manifest import Manifest
from edge_sdk.wire.contract.method import CONTRACTS, Up, answered
from edge_sdk.wire.errors import LinkError, WireError
from edge_sdk.wire.keys import KeyFileError, read_public
from edge_sdk.wire.link.broker_options import Broker
from edge_sdk.wire.link.client_names import client_id_of
from edge_sdk.wire.link.transport import Transport
from edge_sdk.wire.plugin_registry import known_names
from edge_sdk.wire.protocol import messages as m
from edge_sdk.wire.protocol.codec import pack_leaves, unpack_leaves
from edge_sdk.wire.root_keys import RootKeys, read_root
from edge_sdk.wire.schema import SchemaError

NEIGHBOURS = "neighbours"
"""Name under which the store keeps the latest list of peers from the aggregator."""


def load_ring(config: Config) -> KeyRing:
    """Read the trusted public keys: the root in force, and a pinned key of the aggregator.

    Raises:
        ConfigError: A file is missing or holds no public key.
    """
    keys = config.keys
    try:
        pinned = None if keys.aggregator is None else read_public(keys.aggregator)
        followed = FollowedRoot.of(config.state, config.fleet, read_root(keys.root))
        authorities = FollowedAuthorities.of(
            config.state, config.fleet, config.broker.ca_file, config.ca.ca_file
        )
        return KeyRing(followed.load()[0], pinned, followed=followed, authorities=authorities)
    except KeyFileError as error:
        raise ConfigError(str(error), hint="copy root.pub from the operator") from error


def archive_keys(config: Config) -> tuple[bytes, ...]:
    """Return the keys of which one has to sign a bundle's archive.

    They are those of the root in force, those to which it has delegated bundles, and those of the
    pinned root, by which older archives are signed; the announcement decides which archive is used.

    Raises:
        ConfigError: A file is missing or holds no public key.
    """
    followed = FollowedRoot.of(config.state, config.fleet, pinned_root(config))
    root, bundle = followed.load()
    return tuple(dict.fromkeys((*root.keys, *bundle, *followed.pinned.keys)))


def pinned_root(config: Config) -> RootKeys:
    """Read the root of the configuration.

    Raises:
        ConfigError: The file is missing or holds no public key.
    """
    try:
        return read_root(config.keys.root)
    except KeyFileError as error:
        raise ConfigError(str(error), hint="copy root.pub from the operator") from error


def set_up(
    config: Config,
    store: DeviceStore,
    bundle: RunnableBundle,
    announced: m.BundleMessage | None,
    methods: Mapping[str, Factory],
    *,
    present: Series | None = None,
    clock: Callable[[], int] = lambda: 0,
    between_batches: Callable[[], None] = do_nothing,
) -> ModelRuntime:
    """Create the model runtime that the announced run, or the bundle alone, requires.

    A ``present`` series is reused if it has the bundle's grid; otherwise the store's is read.
    ``between_batches`` is called between two minibatches and may raise to stop the training.

    Raises:
        EdgeError: The announcement does not fit the bundle, names an unknown method, or one that is
            incompatible with this device's privacy settings.
    """
    method = announced.method if announced else config.accept.methods[0]
    shared = announced.shared if announced else bundle.manifest.shared
    if method not in methods or method not in CONTRACTS:
        raise ConfigError(f"unknown method {method!r}; known: {known_names(methods)}")
    check_site(config, bundle.manifest)
    check_limits(config, bundle.manifest)
    series = series_for(bundle.manifest, history_of(config, bundle.manifest).slots)
    if present is not None and (present.step, present.streams) == (series.step, series.streams):
        series = present
    else:
        series.load_columns(store.columns(series.streams))
    role = RunRole(announced.run if announced else 0, method, tuple(shared))
    mechanism = protect(config, store, bundle.manifest, role, clock)
    learner = ModelRuntime(
        config, bundle, role, methods[method], series, mechanism, between_batches=between_batches
    )
    if announced is not None and learner.spec.digest != announced.spec:
        raise EdgeError(
            f"run {announced.run} announces another layout than bundle {bundle.manifest.name}",
            hint="the aggregator must announce a bundle that this device has",
        )
    return learner


def plan(config: Config, manifest: Manifest, method: str, shared: int) -> NoisePlan:
    """Return the noise plan of this device for a method that sends ``shared`` scalars.

    Raises:
        ConfigError: There is none; the message names the key.
    """
    facts = DeviceFacts(manifest, config.training.history_slots, config.accept.max_steps, shared)
    made = plan_of(config.privacy, facts)
    refuse_method(made, method, CONTRACTS[method])
    return made


def protect(
    config: Config, store: DeviceStore, manifest: Manifest, role: RunRole, clock: Callable[[], int]
) -> Mechanism:
    """Create the configured privacy mechanism for this role.

    Raises:
        ConfigError: As ``plan``.
    """
    shared = manifest.spec(role.shared).shared_size
    made = plan(config, manifest, role.method, shared)
    reports = [number for ask in CONTRACTS[role.method].values() for number in ask.report]
    measured = frozenset({"n", *(number.name for number in reports if number.measured)})
    return mechanism_of(made, store, clock, measured=measured)


def account_of(store: DeviceStore, plan: NoisePlan) -> PrivacyAccount:
    """Sum the recorded charges against the budget."""
    allowed = store.fact("releases allowed", -1)
    most = plan.most(allowed if allowed >= 0 else None)
    return PrivacyAccount.of(
        store.ledger(), plan.limit, outside=plan.section.budget.unclaimed_releases, most=most
    )


def check_site(config: Config, manifest: Manifest) -> None:
    """Refuse to start without the site constants that a bundle needs.

    Raises:
        ConfigError: A constant is missing; the message gives its name and unit.
    """
    needed = (f for f in manifest.features if f.name not in manifest.optional)
    statics = {f.name: f.unit for f in needed if f.kind == "static"}
    missing = [f"{name} ({unit})" for name, unit in statics.items() if name not in config.site]
    if missing:
        raise ConfigError(
            f"[site] lacks what bundle {manifest.name} reads: {', '.join(missing)}",
            hint="add it to [site], as a number in that unit",
        )


def check_limits(config: Config, manifest: Manifest) -> None:
    """Refuse a configured learning rate above the limit signed with the bundle.

    Raises:
        ConfigError: The message names the key, its value and the limit.
    """
    limits = manifest.training.limits
    for key, name, value in (
        ("local_rounds.rate", "rate", config.local_rounds.rate),
        ("local_rounds.steps", "steps", config.local_rounds.steps),
        ("fine_tuning.rate", "rate", config.fine_tuning.rate),
        ("neighbours.rate", "rate", config.neighbours.rate if config.neighbours.keys else None),
    ):
        if value is not None and value > limits[name]:
            raise ConfigError(
                f"{key}: {value:g} is above {limits[name]:g}, training.max_{name} of bundle "
                f"{manifest.name}",
                hint="lower it, or sign a bundle with a higher limit",
            )


def peer_settings(config: Config, store: DeviceStore, method: str, run: int) -> PeerSettings | None:
    """Return the peers: as the run's aggregator listed them last, or as configured.

    Raises:
        ConfigError: An invalid neighbourhood; the message names the key.
    """
    if answered(CONTRACTS[method])[1].up is not Up.PEERS:
        return None
    listed = saved_message(store, m.TaskMessage, NEIGHBOURS)
    if listed is not None and listed.run == run:
        return settings_of_task(listed)
    if not config.neighbours.keys:
        return None
    try:
        return settings_of_section(config.neighbours, method)
    except SchemaError as misfit:
        raise ConfigError(str(misfit)) from misfit


def check_neighbours(config: Config) -> int:
    """Return the number of configured peers; refuse peers that could never be received.

    Raises:
        ConfigError: An invalid neighbourhood; the message names the key.
    """
    method = config.accept.methods[0]
    if config.neighbours.keys and answered(CONTRACTS[method])[1].up is not Up.PEERS:
        raise ConfigError(
            f"neighbours.keys: {method!r}, the first of accept.methods, has no neighbours",
            hint='methods = ["dfl_sgd"] in [accept], or dfl_gt',
        )
    try:
        return len(settings_of_section(config.neighbours, method).keys)
    except SchemaError as misfit:
        raise ConfigError(str(misfit)) from misfit


def recall(learner: ModelRuntime, store: DeviceStore) -> tuple[Any, LearnedState | None]:
    """Return the saved state of the half, or an initial one if none fits this layout.

    From another run, perhaps of another method, only the weights are restored: the rest of a half's
    state belongs to the run in which it was trained.
    """
    learner.restore_intervals(recall_intervals(learner, store))
    state, learned = learner.first_state(), store.learned()
    if learned is None or learned.spec != learner.spec.whole_digest:
        return state, None
    if learned.leaves.get("noise", "none") != learner.mechanism.origin:
        return state, None  # trained on other readings than are allowed now
    if learned.leaves["scale"]:
        learner.fix_scale(Scale(*learned.leaves["scale"]))
    if learned.run != learner.role.run:
        return learner.half.init(learned.leaves["half"]["p"]), learned
    return type(state).from_arrays(learned.leaves["half"]), learned


CALIBRATION = "calibration"
"""Name under which the store keeps the calibration of the intervals."""


def recall_intervals(learner: ModelRuntime, store: DeviceStore) -> SavedCalibration | None:
    """Return the saved calibration, or None; it can be recomputed from the readings."""
    paper = store.paper(CALIBRATION)
    if paper is None:
        return None
    try:
        kept = SavedCalibration.from_arrays(unpack_leaves(paper))
    except (WireError, LookupError, ValueError, TypeError, AttributeError, OverflowError):
        return None
    return kept if kept.bundle == learner.manifest.digest else None


def keep_intervals(kept: SavedCalibration, store: DeviceStore) -> None:
    """Save a calibration: one page of flash, at most once per row of the series.

    Raises:
        StoreFull: No space; the old one is kept.
    """
    store.file_paper(CALIBRATION, pack_leaves(kept.arrays()))


def broker_of(
    config: Config,
    will: Callable[[], Will | None] | None = None,
    judged_at: Callable[[], float | None] | None = None,
    judged_else: Callable[[], float | None] | None = None,
    earliest: Callable[[], float | None] | None = None,
) -> Broker:
    """Return the options of the configured broker.

    Raises:
        ConfigError: Incompatible settings.
    """
    section = config.broker
    try:
        return Broker(
            url=section.url,
            client_id=client_id_of(config.fleet, config.id, section.cert_file),
            ca_file=section.ca_file,
            cert_file=section.cert_file,
            key_file=section.key_file,
            protocol=section.protocol,
            keepalive=section.keepalive,
            reconnect_max=seconds(section.reconnect_max),
            will=will,
            insecure=section.insecure,
            judged_at=judged_at,
            judged_else=judged_else,
            earliest=earliest,
        )
    except LinkError as error:
        raise ConfigError(f"broker: {error}") from error


def connect(
    config: Config,
    will: Callable[[], Will | None],
    judged_at: Callable[[], float | None] | None = None,
    judged_else: Callable[[], float | None] | None = None,
    earliest: Callable[[], float | None] | None = None,
    *,
    is_trial: bool = False,
) -> Transport:
    """Create the configured link; a trial has no last will and no shared session.

    Raises:
        ConfigError: Incompatible settings.
    """
    from edge_sdk.wire.link.mqtt import MqttLink  # noqa: PLC0415 - loads paho: only for a real broker

    broker = broker_of(config, None if is_trial else will, judged_at, judged_else, earliest)
    if is_trial:
        broker = replace(broker, session_expiry=0)
    try:
        return MqttLink(broker)
    except LinkError as error:
        raise ConfigError(f"broker: {error}") from error
