"""Set up a fleet and its runs: sign with the root key once, so that the daemon never needs it.

A run is defined by everything that a replay of its journal depends on. A change of that begins
another run, which continues from the common model if its layout still fits.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from aggregator import config
from aggregator.config.bundle_registry import bundle_keys
from aggregator.ingress.cohort import fits
from aggregator.methods import Course
from aggregator.operations.definition_changes import changed, names_of, renamed, short
from aggregator.operations.signing_keys import (
    Delegate,
    RootSigners,
    RunSetupError,
    check_model_key,
    roles_of,
)
from aggregator.rounds import announcements as announce
from aggregator.store import types
from aggregator.store.state_codec import flatten, layout, rebuild
from aggregator.store.store import Store
from aggregator.store.types import DownloadBody
from edge_sdk.errors import Refused
from edge_sdk.protocol import topics
from edge_sdk.protocol.codec import decode
from edge_sdk.protocol.envelope import ALL, ROOT, unseal
from edge_sdk.protocol.keys import Signer, SigningKey, kid_of
from edge_sdk.protocol.messages import CHUNK_LIMIT, BundleMessage, KeysMessage, ProtocolMessage

M = TypeVar("M", bound=ProtocolMessage)

RUN_LEAP = 1_000  # step of the run number after a restore, beyond every run begun since the backup


@dataclass(frozen=True, slots=True)
class RunSetup:
    """Result of a run set-up."""

    number: int  # the run now in force
    is_new: bool  # true if it was just begun
    continued: bool  # true if it continues from the model of the previous run
    installs: bool = False  # true if devices need another bundle than the one announced before


def definition(run: config.BoundRun) -> str:
    """Return the inputs of a run's replay besides its bundle, as JSON.

    The deadline is not included: its effects are in the journal.
    """
    section = run.config.run
    method = config.settings_of(run.config)
    found = {
        "settings": dataclasses.asdict(method),
        "rule": dict(section.rule),
        "rounds": {
            "quorum": run.rounds.quorum,
            "least": run.rounds.least,
            "rounds": run.rounds.limit,
            "weighting": run.rounds.weighting,
            "weight_cap": run.rounds.cap,
        },
        "admission": {"max_norm": said_norm(run), "n_cap": run.limits.n_cap},
    }
    if section.downlink != "f4":
        found["downlink"] = {"enc": "q8"}
    if section.cohort:
        found["cohort"] = dict(section.cohort)
    if section.graph is not None:
        found["graph"] = dict(section.graph)
    return json.dumps(found, sort_keys=True, default=str)


def said_norm(run: config.BoundRun) -> float | None:
    """Return the norm limit, or None without one: JSON has no infinity."""
    return float(run.limits.max_norm) if np.isfinite(run.limits.max_norm) else None


def set_up(
    run: config.BoundRun,
    store: Store,
    *,
    root: RootSigners | Delegate,
    online: bytes,
    now: int,
    fresh: bool = False,
    is_restored: bool | None = None,
    encryption: bytes | None = None,
    also: Mapping[bytes, int] | None = None,
) -> RunSetup:
    """Sign keys and bundle into the store; begin a run if the configuration defines another one.

    Devices of a named run that was not announced before are ordered to say hello: their welcome
    names it.

    Args:
        root: The root's private keys, or a key to which the root has delegated bundles: it signs
            the bundle alone, and the list of keys stays.
        online: The aggregator's public key.
        now: Unix milliseconds.
        fresh: Begin another run in any case, from the bundle's initial vector.
        is_restored: True if the store was restored before the first of several runs was set up.
        encryption: Key to which devices encrypt, or None.
        also: Former keys of the aggregator that stay valid, each until a time (Unix milliseconds).

    Raises:
        RunSetupError: Devices would refuse the bundle, or the key to which bundles are delegated.
    """
    is_restored = store.was_restored if is_restored is None else is_restored
    name = run.config.run.name
    before, newest = store.runs.latest(name), store.runs.latest()
    installs = before is None or _replaces(run, store)
    topic = topics.common(run.config.fleet, "bundle", topics.audience(name))
    is_retired = bool(name) and not store.announcements.get(topic)
    is_new = fresh or is_restored or before is None or is_retired
    is_new = is_new or bool(before and differences(run, store, before))
    number = before.run if before else 0
    if is_new:
        number = (newest.run if newest else 0) + (RUN_LEAP if is_restored else 1)
    if store.was_restored:
        store.adopt()
    if isinstance(root, Delegate):
        _check_delegate(run, store, root, online, now)
        signed, its = [], ends_of(run.config, root.key)
    else:
        ends = announce.Ends(run.config.fleet, root, also=root.also)
        listed = announce.keys(
            ends,
            online,
            serial=store.announcements.next_serial(),
            now=now,
            encryption=encryption,
            also=also,
            roles=roles_of(run.config, root),
        )
        signed, its = [listed], ends_of(run.config, root, also=root.also)
    message = announce.bundle_message(
        run, number=number, serial=store.announcements.next_serial(), now=now
    )
    signed.append(announce.bundle(its, message))
    published = {one.topic: one.payload for one in signed}
    archive = DownloadBody("bundle", run.bundle.digest[:16], run.bundle.archive, CHUNK_LIMIT, name)
    if not is_new:
        store.announce(published, [archive])
        return RunSetup(number, is_new=False, continued=False)
    state, continued = _start(run, store, None if fresh else before)
    store.begin(record_of(run, number), flatten(state), published)
    store.announce({}, [archive])
    _order_hello(run, store)
    return RunSetup(number, is_new=True, continued=continued, installs=installs)


def _check_delegate(
    run: config.BoundRun, store: Store, delegate: Delegate, online: bytes, now: int
) -> None:
    listed = verified_announcement(run.config, store, KeysMessage.kind, KeysMessage)
    name = kid_of(delegate.key.public).hex()
    if delegate.key.public not in listed.bundle:
        raise RunSetupError(
            f"{name}: the root has delegated bundles to "
            f"{', '.join(kid_of(key).hex() for key in listed.bundle) or 'no key'}",
            hint="name its public key in keys.bundle, and sign once with the root: announce",
        )
    ends = dict(zip(listed.sign, listed.until, strict=True))
    if ends.get(online, 0) <= now:
        raise RunSetupError(
            f"the list of keys has no valid key {kid_of(online).hex()} of the aggregator",
            hint="sign it with the root key: announce without --bundle-key",
        )


def _replaces(run: config.BoundRun, store: Store) -> bool:
    try:
        announced = verified_announcement(run.config, store, "bundle", BundleMessage)
    except RunSetupError:  # of another root key, which no device of this one trusts
        return True
    name, version = run.bundle.manifest.name, run.bundle.manifest.version
    if run.bundle.digest == announced.digest:
        return False
    if announced.name == name and version <= announced.version:
        what = "a lower version" if version < announced.version else "other content of a version"
        raise RunSetupError(
            f"{run.config.file.name}: run.bundle: {name} version {version}: devices have version "
            f"{announced.version} and refuse {what} (ROLLBACK)",
            hint=f"release the old content again: gridfed-aggregator bundle rollback {name} --to "
            f"{version}"
            if version < announced.version
            else "export it under a higher --bundle-version",
        )
    return True


def retire(config_: config.AggregatorConfig, store: Store) -> list[str]:
    """Clear the announcements of runs that the configuration does not have; return their names."""
    wanted = {topics.audience(run.name) for run in config_.runs}
    gone: dict[str, None] = {}
    for topic, payload in store.announcements.all().items():
        address = topics.parse(topic)
        is_of_a_run = address is not None and address.kind in ("bundle", "model", "part")
        if payload and is_of_a_run and address is not None and address.id not in wanted:
            store.announce({topic: b""})
            gone[address.id.removeprefix("_")] = None
    return list(gone)


def _order_hello(run: config.BoundRun, store: Store) -> None:
    section = run.config.run
    if section.name:
        for client in store.devices.all():
            if client.state != "revoked" and fits(client, section.cohort):
                store.commands.issue(client.id, "hello")


def ends_of(
    configured: config.AggregatorConfig, signer: Signer, also: tuple[Signer, ...] = ()
) -> announce.Ends:
    audience = topics.audience(configured.run.name)
    return announce.Ends(configured.fleet, signer, audience, also)


def differences(run: config.BoundRun, store: Store, begun: types.RunRecord) -> list[str]:
    """Return the differences between the configuration and the run in force, as sentences."""
    announced = verified_announcement(run.config, store, "bundle", BundleMessage)
    wanted = announce.bundle_message(run, number=begun.run, serial=1)
    found = [
        f"{name}: {short(getattr(announced, name))} was announced, now {short(getattr(wanted, name))}"
        for name in ("name", "version", "digest", "spec", "method", "shared", "seal", "encs")
        if getattr(announced, name) != getattr(wanted, name)
    ]
    before, after = json.loads(begun.settings), json.loads(definition(run))
    return found + changed(renamed(before, names_of(begun.method)), after)


def verified_run(run: config.BoundRun, store: Store, online: SigningKey) -> types.RunRecord:
    """Return the run to continue; raise RunSetupError, with a command, unless store, keys and configuration agree."""
    name = run.config.run.name
    begun = store.runs.latest(name)
    where = run.config.file
    if begun is None:
        missing = f"no run {name!r}" if name else "no run"
        raise RunSetupError(
            f"{store.path} has {missing}", hint=f"begin one: gridfed-aggregator init {where}"
        )
    announced = verified_announcement(run.config, store, "keys", KeysMessage)
    if online.public not in announced.sign:
        raise RunSetupError(
            f"{run.config.signing_key.name} (key id {online.kid.hex()}) is not announced; "
            f"announced: {', '.join(kid_of(key).hex() for key in announced.sign)}",
            hint=f"sign it with the root key: gridfed-aggregator announce {where}",
        )
    check_model_key(run.config, announced, online)
    if store.was_restored:
        raise RunSetupError(
            f"{store.path} was restored from a backup; run {begun.run} may have continued since",
            hint=f"begin another run: gridfed-aggregator announce {where}",
        )
    if wrong := differences(run, store, begun):
        raise RunSetupError(
            f"the configuration differs from run {begun.run}: {'; '.join(wrong)}",
            hint=f"undo the change, or begin another run: gridfed-aggregator announce {where}",
        )
    for entry in run.config.index.having("opens"):
        if announced.open or entry.is_configured(run.config.tables):
            entry.load("opens")(run.config, announced.open)
    _check_quorum(run, store)
    return begun


def _check_quorum(run: config.BoundRun, store: Store) -> None:
    cohort = run.config.run.cohort
    enrolled = sum(c.state != "revoked" and fits(c, cohort) for c in store.devices.all())
    if run.ask.personal and run.rounds.enough > enrolled:
        raise RunSetupError(
            f"{run.config.file.name}: run.quorum: a round needs {run.rounds.enough} different "
            f"devices, {enrolled} are enrolled",
            hint="enrol them: gridfed-aggregator enrol ID; or lower run.quorum",
        )


def record_of(run: config.BoundRun, number: int) -> types.RunRecord:
    """Return the definition of a run of this number under a configuration."""
    return types.RunRecord(
        run=number,
        method=run.config.run.method,
        settings=definition(run),
        bundle=run.bundle.manifest.name,
        spec=run.spec.digest,
        layout=layout(run.first_state()),
        name=run.config.run.name,
    )


def _start(
    run: config.BoundRun, store: Store, before: types.RunRecord | None
) -> tuple[Course, bool]:
    first = run.first_state()
    if before is None or before.spec != run.spec.digest:
        return first, False
    leaves = store.states.load(before.run).leaves
    return run.half.init(np.asarray(leaves["w"])), True


def resumed(run: config.BoundRun, store: Store, number: int) -> tuple[Course, types.SavedState]:
    """Return a run's state and its saved record; raise WireError for damaged leaves, or those of another method."""
    saved = store.states.load(number)
    return rebuild(run.first_state(), saved.leaves), saved


def verified_announcement(
    wanted: config.AggregatorConfig, store: Store, kind: str, cls: type[M]
) -> M:
    """Return an announcement that the root has signed."""
    fleet, root = wanted.fleet, config.root_of(wanted)
    is_delegated = kind != KeysMessage.kind
    delegates = {kid_of(key): key for key in bundle_keys(wanted) if is_delegated}
    audience = ALL if kind == KeysMessage.kind else topics.audience(wanted.run.name)
    payload = store.announcements.all().get(topics.common(fleet, kind, audience), b"")
    try:
        sealed = unseal(
            payload,
            kind=kind,
            sender=ROOT,
            recipient=audience,
            fleet=fleet,
            key_of=lambda _sender, kid: root.key(kid) or delegates.get(kid),
            is_enough=lambda signers: (
                root.is_enough(signers) or bool(set(delegates.values()) & set(signers))
            ),
        )
        return decode(cls, sealed.body)
    except Refused as error:
        raise RunSetupError(
            f"the {kind} announcement in {store.path.name} was not signed by "
            f"{wanted.root_public.name} for fleet {fleet!r} ({error.reason.name})",
            hint=f"sign it: gridfed-aggregator announce {wanted.file}",
        ) from error
