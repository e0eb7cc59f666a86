"""A simulated device: the SDK's own renewal, files, keys and store, on a link without sockets."""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import cast

from edge_sdk.client import Client
from edge_sdk.config import Config
from edge_sdk.errors import EdgeError, WireError
from edge_sdk.extensions.certificates.agent_renewal import renewal_of, restore_certificate
from edge_sdk.extensions.certificates.certificate_enrolment import Enrolment
from edge_sdk.extensions.certificates.certificate_files import CertificateFiles
from edge_sdk.extensions.certificates.certificate_renewal import CertificateRenewal
from edge_sdk.extensions.certificates.renewal_schedule import PENDING, RenewalFailure
from edge_sdk.extensions.certificates.section import ca_of
from edge_sdk.link.broker_options import is_current, renewed, tls_context
from edge_sdk.session.identity import IdentityKeys, create_identity, load_signer
from edge_sdk.session.server_clock import ServerClock
from edge_sdk.store.store import DeviceStore
from edge_sdk.training.bootstrap import broker_of
from tools.certificate_year.faults import Faults, KilledError
from tools.certificate_year.machine_clock import DAY, HOUR, MINUTE, MachineClock
from tools.certificate_year.site import FLEET, URL, Interval, Site, is_within

TOML = """
id = "{name}"
fleet = "{fleet}"
bundle = "load-mlp"
state = "state"
broker = {{ url = "mqtts://localhost", ca_file = "ca.pem", cert_file = "tls.pem", key_file = "tls.pem" }}
keys = {{ device = "meter.key", root = "root.pub" }}
ca = {{ url = "{url}" }}
privacy = {{ mechanism = {{ name = "none" }} }}
"""
LONGEST_PAUSE = 10 * MINUTE  # s between two looks at a device that has something to do


class _Request:
    """A request that is over when it has been started: the simulation needs no thread."""

    def __init__(self, faults: Faults, request: Callable[[], object], since: float) -> None:
        self.since, self.is_over = since, True
        self.error: Exception | None = None
        faults.step("request begins")
        try:
            request()
        except Exception as error:  # noqa: BLE001 - as the program's own thread does
            self.error = error


class _Link:
    """A link to the broker, as ``MqttLink`` is one; TLS is in memory, and MQTT is left out."""

    def __init__(self, device: Device, time: ServerClock) -> None:
        self._device, self._time = device, time
        self.broker = broker_of(device.config, None, time)
        self._context = tls_context(self.broker)
        self.shown = device.files.path.read_bytes()
        self.is_up, self.refusals = False, 0
        self.next_at, self._attempt = 0.0, 0

    @property
    def has_current_files(self) -> bool:
        return is_current(self._context, self.broker)

    def reconnect(self, _why: str) -> None:
        self._device.site.faults.step("link cut to use the new pair")
        self.is_up, self._attempt, self.next_at = False, 0, 0.0

    def cut(self) -> None:
        self.is_up, self._attempt = False, 0

    def turn(self, now: float) -> None:
        device = self._device
        if not device.site.is_network_up:
            self.is_up = False
        if self.is_up or now < self.next_at or not device.site.is_network_up:
            return
        longest = min(600.0, 2.0**self._attempt)
        self._attempt, self.next_at = (
            min(self._attempt + 1, 32),
            now + device.rng.uniform(0, longest),
        )
        before, self._context = self._context, renewed(self._context, self.broker)
        if self._context is not before:
            self.shown = device.files.path.read_bytes()
        try:
            device.site.connect(self._context, self.shown)
        except ssl.SSLCertVerificationError as error:
            device.why = str(error)
        except ssl.SSLError as error:
            self.refusals, device.why = self.refusals + 1, str(error)
        else:
            self._accepted(now)

    def _accepted(self, now: float) -> None:
        device = self._device
        device.site.faults.step("broker has accepted the pair")
        self._time.correct(int(1000 * device.site.now), is_sound=True)
        device.clock.reach_network()
        device.site.faults.step("CONNACK read")
        if self._context.is_limited:
            device.counts["limited connections"] += 1
            self._attempt, self.next_at = 0, now
            return
        self.is_up, self._attempt = True, 0


class _Program:
    """A running agent, with the parts of its client that ``renewal_of`` reads."""

    def __init__(self, device: Device) -> None:
        faults = device.site.faults
        restore_certificate(device.config)
        self._store = DeviceStore.open(device.config.state, exclusive=True)
        try:
            faults.step("program starts")
            self._faults = faults
            self.server_clock = ServerClock(self._store, device.clock)
            signer = load_signer(device.config)
            self.identity = IdentityKeys(device.config, self._store, signer)
            self.link = _Link(device, self.server_clock)
            found = renewal_of(device.config, cast("Client", self))
        except BaseException:
            self._store.close()
            raise
        assert isinstance(found, CertificateRenewal)
        self.renewal = found
        self.requests = 0
        found.rng = Random(device.rng.random())  # noqa: S311 - a repeatable year
        found.start = self._started

    def _started(self, request: Callable[[], object], since: float) -> _Request:
        self.requests += 1
        return _Request(self._faults, request, since)

    def remembered(self, name: str) -> bytes | None:
        return self._store.paper(f"source {name}")

    def remember(self, notes: Mapping[str, bytes]) -> None:
        for name, note in notes.items():
            self._store.file_paper(f"source {name}", note)
            if RenewalFailure.read(note).failures:
                self._faults.step("failure saved")

    def close(self) -> None:
        self._store.close()


class Device:
    """One device over the year.

    Args:
        site: Servers of the fleet.
        rng: Source of what happens to it.

    Attributes:
        asleep: Intervals in which it is off.
        offline: Intervals in which it has no network.
        counts: Events, by name.
        why: Reason of the last connection that failed.
    """

    def __init__(
        self, name: str, place: Path, site: Site, clock: MachineClock, rng: Random
    ) -> None:
        self.name, self.site, self.clock, self.rng, self.why = name, site, clock, rng, ""
        self.counts: Counter[str] = Counter()
        self.asleep: list[Interval] = []
        self.offline: list[Interval] = []
        place.mkdir()
        file = place / "device.toml"
        file.write_text(TOML.format(name=name, fleet=FLEET, url=URL), "utf-8")
        self.config = Config.load(file)
        self.files = CertificateFiles(place / "tls.pem")
        self.program: _Program | None = None
        self._starts_at, self._pace, self._is_off, self._save_at = site.now, 1.0, True, 0.0

    def enrol(self, serial: str, password: str, authority: bytes) -> None:
        """Enrol with a one-time password, as ``gridfed-edge enrol`` does where the clock is right."""
        key, _ = create_identity(self.config)
        enrolment = Enrolment(self.config, ca_of(self.config).url, key)
        enrolment.authority_file.write_bytes(authority)
        enrolment.request(is_renewal=False, password=password, serial=serial)
        enrolment.files.install()

    @property
    def state(self) -> str:
        kind, awake = self.clock.kind or "right", self.counts["seconds awake"]
        failure = self.program.renewal.failure if self.program else "no program"
        return f"{self.name}: clock {kind}; awake for {awake} s; {failure}; {self.why}"

    # --- time --------------------------------------------------------------------------------------

    def live(self, begin: float, end: float) -> None:
        """Simulate the device over a span of time.

        It counts the day anew: ``connected`` if the broker accepts the device; ``seconds awake`` with a
        network; and of these ``seconds served``, in which the EST server is in reach too.
        """
        now = begin
        self.counts.update(
            {x: -self.counts[x] for x in ("connected", "seconds awake", "seconds served")}
        )
        while now < end:
            sleeping = next((x for x in self.asleep if x[0] <= now < x[1]), None)
            if sleeping is not None:
                self._power_off()
                now = self._starts_at = sleeping[1]
                continue
            until = min([end, *(x[0] for x in self.asleep if x[0] > now)])
            now = self._pass(now, until)

    def _pass(self, now: float, until: float) -> float:
        """Let the device act once, and return when it acts next."""
        site, has_ended = self.site, False
        site.now, site.machine = now, self.clock
        self.clock.true = now
        if self._is_off:
            self._is_off = False
            self.clock.power_up(now, self.rng)
        site.is_network_up = not is_within(self.offline, now)
        if self.program is None and now < self._starts_at:
            following = min(until, self._starts_at)
        else:
            try:
                following = min(until, now + self._act(now, until))
            except KilledError:
                self._end(now)
                has_ended, following = True, min(until, max(now + 1.0, self._starts_at))
        is_off = has_ended and following - now >= HOUR
        if site.is_network_up and not is_off:
            self.counts["seconds awake"] += int(following - now)
            if not any(is_within(site.authority_down, x) for x in (now, following)):
                self.counts["seconds served"] += int(following - now)
        return following

    def _act(self, now: float, until: float) -> float:
        """Run the next step of the program, and return the time until the following one."""
        program = self.program
        if program is None:
            program = self._start(now)
            if program is None:
                return HOUR
        before = program.link.is_up, program.renewal.renewals, program.requests
        program.link.turn(now)
        program.renewal.turn(self.clock.monotonic())
        program.link.turn(now)
        if program.renewal.failure.status == PENDING:
            self.counts["waits for approval"] += 1
        if program.link.is_up and self.site.is_valid(program.link.shown):
            self.counts["connected"] += 1
        if now >= self._save_at:
            program.server_clock.save()
            self._save_at = now + HOUR
        if before != (program.link.is_up, program.renewal.renewals, program.requests):
            self._pace = 1.0
        if not self.site.is_network_up:
            ends = [x[1] - now for x in self.offline if x[0] <= now < x[1]]
            return min([until - now, 3 * HOUR, *ends])
        files = self.files
        is_quiet = program.link.is_up and not (files.next.exists() or files.previous.exists())
        if is_quiet and self._pace > 1.0:
            ends = [x[0] - now for x in self.offline if x[0] > now]
            if (failure := program.renewal.failure).failures:
                left = failure.retry - program.server_clock.best_time()
                ends.append(max(MINUTE, left))
            return min([until - now, *ends])
        pause, self._pace = self._pace, min(2 * self._pace, LONGEST_PAUSE)
        return pause

    def _start(self, now: float) -> _Program | None:
        self.counts["starts"] += 1
        self.site.faults.revive()
        self._pace = 1.0
        try:
            self.program = _Program(self)
        except (EdgeError, WireError) as error:
            self.counts["starts refused"] += 1
            self.why, self._starts_at = str(error), now + DAY
        return self.program

    def _end(self, now: float) -> None:
        self._stop()
        self.site.faults.revive()
        self.counts["kills"] += 1
        pause = self.rng.choices((5.0, MINUTE, 3 * HOUR, 2 * DAY, 20 * DAY), (70, 15, 10, 4, 1))[0]
        self._starts_at = min(now + pause, max(self.site.calm, now + MINUTE))
        if pause >= HOUR:
            self.asleep.append((now, self._starts_at))

    def _stop(self) -> None:
        if self.program is not None:
            self.counts["renewals"] += self.program.renewal.renewals
            self.counts["requests"] += self.program.requests
            self.program.close()
        self.program = None

    def _power_off(self) -> None:
        self._stop()
        self._is_off = True

    def cut(self) -> None:
        if self.program is not None:
            self.program.link.cut()

    def close(self) -> None:
        self._stop()
