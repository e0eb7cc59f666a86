"""One device's sums: made once, sent as the same bytes until they are receipted, no moment twice."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from edge_sdk.errors import ConfigError, Refused
from edge_sdk.extensions.sums.masked_sum import FollowedContract
from edge_sdk.extensions.sums.messages import (
    SumContract,
    SumMessage,
    SumReceiptMessage,
    SumsMessage,
)
from edge_sdk.extensions.sums.period_numbers import numbers_of
from edge_sdk.extensions.sums.seed import ExchangeKey
from edge_sdk.extensions.sums.sum_checks import budget_use, checked, refuse_privacy
from edge_sdk.extensions.sums.sum_sender import OFFER_AGAIN, RETRY, SumSender
from edge_sdk.forecasting.forecast import Forecast
from edge_sdk.forecasting.series import Series, SeriesColumn
from edge_sdk.privacy.ledger import PrivacyAccount, PrivacyLimit
from edge_sdk.protocol.codec import decode, encode
from edge_sdk.protocol.contract.method import END, Ask, Task
from edge_sdk.protocol.envelope import digest, ref
from edge_sdk.protocol.keys import from_seed
from edge_sdk.protocol.messages import GrantMessage, HaveMessage, OfferMessage
from edge_sdk.protocol.transfer import bitmap
from edge_sdk.session.signed_link import VerifiedMessage
from edge_sdk.store.store import DeviceStore

pytestmark = pytest.mark.extension

STREAM, HOUR, DAY = "elec.import.energy", 3600, 86_400_000
WITNESS = ExchangeKey(bytes(range(32))).public
TODAY = 20_000 * DAY
INDEX = SimpleNamespace(loaders=lambda _table: {"blocks": lambda: blocks})


def blocks(_device, about, _period):
    return np.arange(LONG, dtype=float) if about == "long" else None


LONG = 10_000


def contract(**changed):
    given = {
        "name": "feeder-history", "source": "history", "stream": STREAM, "unit": "kWh",
        "length": 24, "lowest": 0.0, "highest": 50.0, "resolution": 0.001, "period": DAY,
        "due": DAY + 6 * 3_600_000, "least": 8, "witness": WITNESS,
    }  # fmt: skip
    return SumContract(**given | changed)


def message(serial, *contracts):
    announced = SumsMessage(serial, tuple(map(encode, contracts)))
    return VerifiedMessage(announced, encode(announced), bytes(16))


class Session:
    """The part of a session that a sender uses."""

    participation = SimpleNamespace(is_held=False)
    may_request = True

    def __init__(self):
        self.now, self.at, self.sent = 0.0, TODAY + 3_600_000, []
        self.connection = SimpleNamespace(linked_at=1.0)
        self.time = SimpleNamespace(now=lambda: self.at)
        self.serials = []
        self.outbox = SimpleNamespace(entries=(), chunk=32_768)
        link = SimpleNamespace(subscribe_further=lambda kinds: None)
        self.parts = SimpleNamespace(link=link, announcements=SimpleNamespace(serials=self.serials))

    def count(self, name): ...

    def encryption(self, _kind):
        return bytes

    def send(self, one):
        self.sent.append(one)
        return True


class Accountant:
    account = PrivacyAccount()

    def current(self):
        return self.account

    def adopt_account(self, account):
        self.account = account


class Device:
    def __init__(self, folder, hours):
        self.folder, self.session = folder, Session()
        self.series = Series(HOUR, [STREAM])
        first = TODAY // 3_600_000 - 48
        slots = first + np.arange(hours)
        self.series.load_columns([SeriesColumn(STREAM, slots, 0.25 * np.arange(hours))])
        self.forecasts, self.accountant = 0, Accountant()
        self.begin()

    def forecast(self, _state):
        self.forecasts += 1
        after = (self.series.newest + 1 + np.arange(24)) * HOUR
        return Forecast(after, np.full(24, 7.0), "kWh", "model")

    def begin(self):
        self.store = DeviceStore.open(self.folder)
        target = SimpleNamespace(stream=STREAM, unit="kWh")
        learner = SimpleNamespace(
            series=self.series, manifest=SimpleNamespace(target=target), forecast=self.forecast
        )
        parts = SimpleNamespace(
            config=SimpleNamespace(fleet="north", id="meter-1", index=INDEX),
            store=self.store,
            session=self.session,
            active=SimpleNamespace(learner=learner, latest=object(), accountant=self.accountant),
            identity=from_seed(bytes(32)),
        )
        self.sender = SumSender(parts)
        self.sender.start()

    def restart(self):
        self.store.close()
        self.begin()

    def tick(self, seconds=1.0):
        self.session.now += seconds
        self.sender.on_tick()
        return len(self.session.sent)


@pytest.fixture
def device(tmp_path):
    made = Device(tmp_path / "meter", 48)
    yield made
    made.store.close()


def test_a_message_is_sent_again_as_the_same_bytes_until_it_is_receipted(device):
    assert device.tick() == 0
    device.sender.on_message(message(5, contract()))
    assert device.tick() == device.tick() == 1
    assert device.session.sent[0].period == TODAY - DAY
    device.session.connection.linked_at = 2.0
    assert device.tick() == 2
    device.restart()
    assert device.tick() == 3
    assert device.tick(RETRY) == 4
    assert len({encode(one) for one in device.session.sent}) == 1
    receipt = SumReceiptMessage(ref(digest(encode(device.session.sent[0]))))
    device.sender.on_message(VerifiedMessage(SumReceiptMessage(bytes(16)), b"", bytes(16)))
    assert device.tick(RETRY) == 5
    device.sender.on_message(VerifiedMessage(receipt, encode(receipt), bytes(16)))
    device.restart()
    assert device.tick(RETRY) == 5
    assert device.sender.status()["sums"]["feeder-history"]["receipted"] is True


def test_nothing_is_sent_after_the_period_is_closed(device):
    device.sender.on_message(message(5, contract()))
    device.tick()
    device.session.at = TODAY + 6 * 3_600_000 + 1
    device.session.connection.linked_at = 2.0
    assert device.tick(RETRY) == 1


def test_no_moment_is_sent_twice_under_whatever_contract(device):
    device.sender.on_message(message(5, contract()))
    assert device.tick() == 1
    for serial, changed in enumerate(
        (
            {"name": "other"},
            {"resolution": 0.002},
            {"offset": 3_600_000, "name": "shifted"},
            {"period": 2 * DAY, "length": 48, "offset": 0, "due": 3 * DAY},
        ),
        6,
    ):
        device.sender.on_message(message(serial, contract(**changed)))
        assert device.tick(RETRY) == 1, changed


def test_a_gap_sends_nothing(tmp_path):
    device = Device(tmp_path / "meter", 47)
    device.sender.on_message(message(5, contract()))
    assert device.tick() == 0
    device.store.close()


def test_tomorrow_is_sent_when_readings_and_forecast_cover_it(tmp_path):
    device = Device(tmp_path / "meter", 49)
    tomorrow = contract(name="feeder-tomorrow", source="tomorrow")
    device.sender.on_message(message(5, tomorrow))
    assert device.tick() == 1
    assert device.session.sent[0].period == TODAY
    assert device.tick() == 1
    assert device.forecasts == 1
    values = numbers_of(tomorrow, TODAY, device.series, device.forecast(None))
    assert values.tolist() == [12.0] + [7.0] * 23
    device.store.close()


@pytest.mark.parametrize(
    "changed", [{"stream": "gas.import.volume"}, {"unit": "Wh"}, {"length": 32}], ids=str
)
def test_a_contract_that_does_not_fit_is_declined(device, changed):
    device.sender.on_message(message(5, contract(**changed)))
    assert device.tick() == 0
    assert device.sender.status()["sums"]["feeder-history"]["declined"] is True


def test_an_older_announcement_and_one_that_cannot_be_kept_are_refused(device):
    device.sender.on_message(message(5, contract()))
    device.sender.on_message(message(5, contract()))
    for serial, contracts in ((4, [contract()]), (5, []), (6, [contract(), contract()])):
        with pytest.raises(Refused):
            device.sender.on_message(message(serial, *contracts))
    device.restart()
    assert device.tick() == 1
    assert FollowedContract.read(encode(contract())).ref == device.session.sent[0].of


def test_sums_beside_a_privacy_mechanism_are_refused():
    def config(name):
        mechanism = SimpleNamespace(name=name)
        return SimpleNamespace(privacy=SimpleNamespace(mechanism=mechanism))

    refuse_privacy(config("none"))
    with pytest.raises(ValueError, match="voids the claim"):
        refuse_privacy(config("gaussian"))


def long_contract(**changed):
    given = {"name": "blocks", "source": "blocks", "stream": "long", "length": LONG, "highest": 1e4}
    return contract(**given | changed)


def test_a_long_message_is_offered_and_its_chunks_follow_what_is_asked_for(device):
    device.sender.on_message(message(5, long_contract()))
    device.session.outbox.entries = ("update",)
    assert device.tick() == 0  # the aggregator has one transfer of a device at a time
    device.session.outbox.entries = ()
    assert device.tick() == device.tick() == 1
    (offer,) = device.session.sent
    assert isinstance(offer, OfferMessage)
    assert (offer.of, offer.size > 8 * LONG, offer.chunk) == ("sum", True, 32_768)
    assert device.tick(OFFER_AGAIN) == 2
    assert device.session.sent.pop() == offer
    device.session.sent.clear()
    device.sender.on_message(asked(GrantMessage(bytes(16), b"", 8, 0)))
    assert device.session.sent == []
    device.sender.on_message(asked(GrantMessage(offer.digest[:16], b"", 2, 0)))
    device.sender.on_message(asked(HaveMessage(offer.digest[:16], bitmap([0, 1], 3), 2)))
    sent = device.session.sent
    assert [one.i for one in sent] == [0, 1, 2]
    assert device.tick(OFFER_AGAIN) == 4  # an update may have taken the transfer's place
    assert sent.pop() == offer
    body = b"".join(one.blob for one in sent)
    assert digest(body) == offer.digest
    found = decode(SumMessage, body)
    receipt = SumReceiptMessage(ref(digest(body)))
    assert (len(found.blob), found.of) == (8 * LONG, offer.spec)
    device.sender.on_message(VerifiedMessage(receipt, encode(receipt), bytes(16)))
    assert device.tick(RETRY) == 3
    device.restart()
    assert device.tick(RETRY) == 3


def test_after_a_restart_the_same_long_message_is_offered(device):
    device.sender.on_message(message(5, long_contract()))
    assert device.tick() == 1
    device.restart()
    assert device.tick() == 2
    assert device.session.sent[0] == device.session.sent[1]


@pytest.mark.parametrize("changed", [{"source": "unknown"}, {"stream": "short"}, {"length": 9}])
def test_a_source_that_the_device_does_not_have_is_declined(device, changed):
    device.sender.on_message(message(5, long_contract(**changed)))
    assert device.tick() == 0


def asked(request):
    return VerifiedMessage(request, encode(request), bytes(16))


def test_check_lists_the_followed_contracts_and_refuses_an_unknown_source(device, tmp_path):
    config = SimpleNamespace(state=tmp_path / "meter", index=INDEX)
    assert checked(SimpleNamespace(state=tmp_path / "none", index=INDEX)) == {}
    assert checked(config) == {}
    device.sender.on_message(message(1, contract()))
    assert checked(config) == {"sum contracts": "feeder-history (history)"}
    device.sender.on_message(message(2, contract(), contract(name="new", source="newer")))
    with pytest.raises(
        ConfigError, match=r"contract new.*'newer'; known: blocks, history, tomorrow"
    ):
        checked(config)


def test_the_noise_of_a_sum_is_charged_once_in_the_ledger(device):
    noisy = contract(Noise=400.0)
    device.sender.on_message(message(5, noisy))
    assert device.tick() == 1
    device.restart()
    device.tick(RETRY)
    (charge,) = device.store.ledger()
    assert (charge.point, charge.unit, charge.mechanism) == ("sum", "device", "gaussian")
    assert charge.multiplier == pytest.approx(400.0 / (50.0 * 24**0.5))
    shown, text = budget_use(None, device.accountant.account)
    assert shown["sums"]["epsilon"] == pytest.approx(2.5037, rel=1e-3)
    assert "1 sums" in text


def test_a_noisy_sum_beyond_the_budget_is_not_made(device):
    device.accountant.account = PrivacyAccount(limit=PrivacyLimit("device", epsilon=2.0))
    device.sender.on_message(message(5, contract(Noise=400.0)))
    assert device.tick() == device.tick() == 0
    assert list(device.store.ledger()) == []


def test_a_statistic_that_sums_have_is_not_sent_alone(device, caplog):
    asks = {"train": Ask(has_statistic=True), "other": Ask()}
    device.sender.device.active.contract = asks
    alone, summed = Task("a", 1, "train"), Task("a", 1, "train", values={"period": 1.0})
    assert not device.sender.on_task(alone)
    device.sender.on_message(message(1, contract(source="statistic", length=LONG)))
    assert device.sender.on_task(alone)
    assert "statistic not sent alone" in caplog.text
    assert not device.sender.on_task(summed)
    assert not device.sender.on_task(Task("a", 1, "other"))
    assert not device.sender.on_task(Task("a", 1, END))


def test_numbers_beyond_the_clip_of_a_named_source_are_counted(device, caplog):
    device.sender.on_message(message(1, contract(source="blocks", stream="long", length=LONG)))
    device.tick()
    assert f"numbers={LONG - 51}" in caplog.text  # 0 to 50 are within
