"""Load and check the parts of a device: keys, bundle, privacy mechanism and link.

An installed bundle that cannot be used any more does not stop the device: it starts with the newest
other bundle that passes its golden sample, and requests the announced one again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from edge_sdk.app.cli import fields
from edge_sdk.app.extensions import known_names, values_at
from edge_sdk.app.settings import seconds
from edge_sdk.bundle import Bundle, BundleError, TrustedKeys, load_installed
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError, EdgeError, LinkError
from edge_sdk.forecasting.series import Series
from edge_sdk.forecasting.windows import Scale
from edge_sdk.link.transport import Transport
from edge_sdk.privacy import validation
from edge_sdk.privacy.ledger import PrivacyAccount
from edge_sdk.privacy.mechanism import Mechanism, mechanism_of
from edge_sdk.privacy.noise_calibration import DeviceFacts, NoisePlan
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.protocol.contract.method import CONTRACTS
from edge_sdk.protocol.keys import KeyFileError, read_public
from edge_sdk.protocol.root_keys import NOBODY, RootKeys, read_root
from edge_sdk.session.agenda import FoundBundle
from edge_sdk.session.key_ring import FollowedRoot, KeyRing
from edge_sdk.session.server_clock import ServerClock
from edge_sdk.session.signed_link import Will
from edge_sdk.store.rows import LearnedState
from edge_sdk.store.schema import INSTALLED
from edge_sdk.store.store import DeviceStore
from edge_sdk.training.model_runtime import ModelRuntime
from edge_sdk.training.run_role import RunnableBundle, RunRole, RunShell, history_of, series_for

if TYPE_CHECKING:
    from edge_sdk.link.broker_options import Broker

logger = logging.getLogger(__name__)

_ROOT = "copy root.pub from the operator, or remove keys.root and [broker] to run alone"


def load_ring(config: Config) -> KeyRing:
    """Read the trusted public keys: the root in force, and a pinned key of the aggregator.

    A device alone trusts no key.

    Raises:
        ConfigError: A file is missing or holds no public key.
    """
    keys = config.keys
    try:
        pinned = None if keys.aggregator is None else read_public(keys.aggregator)
        if keys.root is None:
            return KeyRing(NOBODY)
        followed = FollowedRoot.of(config.state, config.fleet, read_root(keys.root))
    except KeyFileError as error:
        raise ConfigError(str(error), hint=_ROOT) from error

    def follow(listed: Sequence[bytes]) -> None:
        for entry in config.index.having("authorities"):
            entry.load("authorities")(config, listed)

    return KeyRing(followed.load()[0], pinned, followed=followed, follow_authorities=follow)


def archive_keys(config: Config) -> tuple[bytes, ...]:
    """Return the keys that may sign a bundle's archive; none of a device alone.

    They are those of the root in force, those to which it has delegated bundles, and those of the
    pinned root, by which older archives are signed; the announcement decides which archive is used.

    Raises:
        ConfigError: A file is missing or holds no public key.
    """
    if config.keys.root is None:
        return ()
    followed = FollowedRoot.of(config.state, config.fleet, pinned_root(config))
    root, bundle = followed.load()
    return tuple(dict.fromkeys((*root.keys, *bundle, *followed.pinned.keys)))


def pinned_root(config: Config) -> RootKeys:
    """Read the root of the configuration; a device alone has one without keys.

    Raises:
        ConfigError: The file is missing or holds no public key.
    """
    try:
        return NOBODY if config.keys.root is None else read_root(config.keys.root)
    except KeyFileError as error:
        raise ConfigError(str(error), hint=_ROOT) from error


def set_up(
    config: Config,
    store: DeviceStore,
    bundle: RunnableBundle,
    announced: m.BundleMessage | None,
    shell: RunShell | None = None,
    *,
    present: Series | None = None,
) -> ModelRuntime:
    """Create the model runtime that the announced run, or the bundle alone, requires.

    A ``present`` series is reused if it has the bundle's grid; otherwise the store's is read.

    Raises:
        EdgeError: The announcement does not fit the bundle, names an unknown method, or one that is
            incompatible with this device's privacy settings.
    """
    if config.is_alone:
        announced = None  # of a fleet that the device has left
    shell = shell or RunShell()
    role = role_of(config, bundle.manifest, announced)
    if role.method not in shell.methods or role.method not in CONTRACTS:
        raise ConfigError(f"unknown method {role.method!r}; known: {known_names(shell.methods)}")
    check_site(config, bundle.manifest)
    check_limits(config, bundle.manifest)
    series = series_for(bundle.manifest, history_of(config, bundle.manifest).slots)
    if present is not None and (present.step, present.streams) == (series.step, series.streams):
        series = present
    else:
        series.load_columns(store.readings.columns(series.streams))
    mechanism = protect(config, store, bundle.manifest, role, shell.clock)
    learner = ModelRuntime(config, bundle, role, series, mechanism, shell)
    if announced is not None and learner.spec.digest != announced.spec:
        raise EdgeError(
            f"run {announced.run} announces another layout than bundle {bundle.manifest.name}",
            hint="the aggregator must announce a bundle that this device has",
        )
    return learner


def role_of(config: Config, manifest: Manifest, announced: m.BundleMessage | None) -> RunRole:
    """Return the role in the announced run; before one, that which the configuration suggests.

    A device alone shares no layer.
    """
    if config.is_alone:
        return RunRole(0, "fedavg", ())
    if announced is None:
        return RunRole(0, config.accept.methods[0], tuple(manifest.shared))
    return RunRole(announced.run, announced.method, tuple(announced.shared))


def plan(config: Config, manifest: Manifest, method: str, shared: int) -> NoisePlan:
    """Return the noise plan of this device for a method that sends ``shared`` scalars.

    Raises:
        ConfigError: There is none; the message names the key.
    """
    facts = DeviceFacts(manifest, config.training.history_slots, config.accept.max_steps, shared)
    made = validation.plan_of(config.privacy, facts)
    validation.refuse_method(made, method, CONTRACTS[method])
    return made


def plan_of(config: Config, announced: m.BundleMessage | None) -> NoisePlan:
    """Return the calibrated privacy mechanism of the device."""
    manifest = open_bundle(config, announced).manifest
    role = role_of(config, manifest, announced)
    return plan(config, manifest, role.method, manifest.spec(role.shared).shared_size)


def protect(
    config: Config, store: DeviceStore, manifest: Manifest, role: RunRole, clock: Callable[[], int]
) -> Mechanism:
    """Create the configured privacy mechanism for this role."""
    shared = manifest.spec(role.shared).shared_size
    made = plan(config, manifest, role.method, shared)
    reports = [number for ask in CONTRACTS[role.method].values() for number in ask.report]
    measured = frozenset({"n", *(number.name for number in reports if number.measured)})
    return mechanism_of(made, store, clock, measured=measured)


def account_of(store: DeviceStore, plan: NoisePlan) -> PrivacyAccount:
    """Sum the recorded charges against the budget."""
    allowed = store.fact("releases allowed", -1)
    most = plan.most(allowed if allowed >= 0 else None)
    account = PrivacyAccount.of(
        store.ledger(), plan.limit, outside=plan.section.budget.unclaimed_releases, most=most
    )
    return replace(account, is_counted=not store.lacks_count)


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
        *(
            (key, name, values_at(config.tables, key)[0])
            for entry in config.index.configured(config.tables)
            for key, name in entry.row.get("limits", {}).items()
        ),
    ):
        if value is not None and value > limits[name]:
            raise ConfigError(
                f"{key}: {value:g} is above {limits[name]:g}, training.max_{name} of bundle "
                f"{manifest.name}",
                hint="lower it, or sign a bundle with a higher limit",
            )


def recall(learner: ModelRuntime, store: DeviceStore) -> tuple[Any, LearnedState | None]:
    """Return the saved state of the half, or an initial one if none fits this layout.

    From another run, perhaps of another method, only the weights are restored: the rest of a half's
    state belongs to the run in which it was trained.
    """
    learner.forecaster.recall(store)
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


def broker_of(
    config: Config, will: Callable[[], Will | None] | None = None, time: ServerClock | None = None
) -> Broker:
    """Return the options of the configured broker.

    Raises:
        ConfigError: Incompatible settings.
    """
    from edge_sdk.link import broker_options, tls_files  # noqa: PLC0415 - for a real broker alone

    section = config.broker
    try:
        return broker_options.Broker(
            url=section.url,
            client_id=tls_files.client_id_of(config.fleet, config.id, section.cert_file),
            ca_file=section.ca_file,
            cert_file=section.cert_file,
            key_file=section.key_file,
            protocol=section.protocol,
            keepalive=section.keepalive,
            reconnect_max=seconds(section.reconnect_max),
            will=will,
            insecure=section.insecure,
            judged_at=None if time is None else time.certificate_time,
            judged_else=None if time is None else time.earlier_certificate_time,
            earliest=None if time is None else time.earliest_certificate_time,
        )
    except LinkError as error:
        raise ConfigError(f"broker: {error}") from error


def connect(
    config: Config,
    will: Callable[[], Will | None],
    time: ServerClock | None = None,
    *,
    is_trial: bool = False,
) -> Transport:
    """Create the configured link; a trial has no last will and no shared session.

    Raises:
        ConfigError: Incompatible settings.
    """
    from edge_sdk.link.mqtt import MqttLink  # noqa: PLC0415 - loads paho: only for a real broker

    broker = broker_of(config, None if is_trial else will, time)
    if is_trial:
        broker = replace(broker, session_expiry=0)
    try:
        return MqttLink(broker)
    except LinkError as error:
        raise ConfigError(f"broker: {error}") from error


BundleOpener = Callable[[Config, m.BundleMessage | None], RunnableBundle]
"""Opens the bundle to start with, from the configuration and the last announcement."""


def open_bundle(config: Config, announced: m.BundleMessage | None) -> RunnableBundle:
    """Open the installed bundle that the fleet announced last, else the configured one.

    One that was damaged, or that fails its golden sample since an update of the engine, is replaced
    by the newest other installed bundle that passes, else by the configured one.

    Raises:
        EdgeError: None of them can be used here.
    """
    trust, folder = _trust(config), config.state / INSTALLED
    if config.is_alone or announced is None or not (folder / announced.digest.hex()).is_dir():
        return Bundle.open(config.bundle, trust=trust)
    try:
        return load_installed(folder, announced.digest, trust=trust)
    except BundleError as error:
        found = _last_good_bundle(config, announced.digest, error)
        about = {"name": announced.name, "version": announced.version, "why": error}
        used = f"{found.manifest.name} version {found.manifest.version}"
        logger.warning("bundle not used %s", fields(**about, instead=used))
        return found


def _last_good_bundle(config: Config, damaged: bytes, why: BundleError) -> Bundle:
    """Return the newest installed bundle but one, else the configured one."""
    trust, folder = _trust(config), config.state / INSTALLED
    others = [
        path
        for path in folder.iterdir()
        if path.is_dir() and path.name != damaged.hex() and not path.name.startswith(".")
    ]
    for path in sorted(others, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        with suppress(BundleError, ValueError):
            return load_installed(folder, bytes.fromhex(path.name), trust=trust)
    try:
        return Bundle.open(config.bundle, trust=trust)
    except BundleError:
        raise why from None


def of_bundle(announced: m.BundleMessage | None, bundle: RunnableBundle) -> m.BundleMessage | None:
    """Return an announcement if a bundle is the announced one; None if another one is in use."""
    return announced if announced is not None and announced.digest == bundle.digest else None


def take_over(config: Config, found: FoundBundle, present: RunnableBundle) -> RunnableBundle:
    """Return the bundle of an announcement: the present one, or its archive after installation.

    Raises:
        EdgeError: The archive differs from the announced one, or cannot run here.
    """
    if found.archive is None:
        return present
    from edge_sdk.training.bundle_install import install  # noqa: PLC0415 - with the first archive

    return install(
        found.archive, config.state / INSTALLED, trust=_trust(config), digest=found.announced.digest
    )


def _trust(config: Config) -> TrustedKeys:
    return TrustedKeys(archive_keys(config))
