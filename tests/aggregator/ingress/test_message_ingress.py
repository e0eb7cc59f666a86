"""Who may come in at the door and who is turned away, rule by rule of the protocol."""

import pytest

from aggregator.ingress.admission_context import WelcomeTerms
from aggregator.ingress.rate_limits import RateLimits
from edge_sdk.errors import Reason
from edge_sdk.protocol import codec, envelope, keys, topics
from edge_sdk.protocol.messages import ReceiptMessage, RefusalMessage
from tests.aggregator.rig import FLEET, START, Desk, Device, ref_of


class TestHello:
    def test_a_welcome_echoes_the_hello_and_promises_the_terms(self, desk):
        device = Device(desk)
        hello = device.hello(caps=("f2", "hpke"))
        (welcome,) = device.say(hello)
        assert (welcome.hello, welcome.life, welcome.run, welcome.wire) == (ref_of(hello), 1, 1, 1)
        assert (welcome.time, welcome.inline, welcome.window) == (START, 32768, 8)
        assert (welcome.hold, welcome.cmd, welcome.caps, welcome.spent) == (2, 0, (), 0)

    def test_a1_the_same_hello_again_changes_nothing(self, desk):
        device = Device(desk)
        hello = device.hello()
        device.say(hello)
        before = desk.store.ledgers.get("meter-1")
        desk.clock.seconds += 5
        (welcome,) = device.say(hello)
        assert welcome.time == START + 5000
        assert desk.store.ledgers.get("meter-1") == before

    def test_a1_a_used_life_gets_the_floor(self, desk, device):
        (floor,) = device.say(device.hello(life=1))
        assert (floor.kind, floor.life) == ("floor", 1)

    def test_a1_a_lost_store_raises_the_account_before_it_is_told(self, desk, device):
        device.say(device.update())
        device.spent = 0
        (welcome,) = device.greet(life=2, lost=True, spent=0)
        assert welcome.spent == 1 + 2
        assert desk.store.ledgers.get("meter-1").spent == 3
        (again,) = device.greet(life=3, lost=True, spent=0)
        assert again.spent == 5  # F3: repeated losses stay covered

    def test_a_first_store_has_nothing_unseen(self, desk):
        (welcome,) = Device(desk).greet(lost=True)
        assert welcome.spent == 0

    def test_an_aggregator_that_restarts_repeats_its_welcome(self, desk, device):
        hello = device.hello()
        device.say(hello)
        desk.crash()
        (welcome,) = device.say(hello)
        assert welcome.life == 2

    def test_a_device_of_another_major_version_is_told_to_upgrade(self, desk):
        (refusal,) = Device(desk).say(Device(desk).hello(wire=(2, 3)))
        assert refusal.code == Reason.UPGRADE_REQUIRED

    def test_commands_are_said_again_until_they_are_receipted(self, desk, device):
        command = desk.store.commands.issue("meter-1", "report", {"days": 2.0})
        welcome, told = device.greet(life=2)
        assert (welcome.cmd, told) == (1, command)
        assert device.say(ReceiptMessage(0, 1, ref_of(command), 0, 0, 0)) == []
        assert [m.kind for m in device.greet(life=3)] == ["welcome"]


class TestWhoSpeaks:
    def test_other_topics_and_fleets_are_passed_over(self, desk, device):
        payload = device.seal(device.update())
        for topic in (
            "gf/1/south/meter-1/up/update",
            topics.down(FLEET, "meter-1", "update"),
            topics.common(FLEET, "model"),
            "gf/1/north/meter-1/peer/meter-2",
            "nonsense",
        ):
            assert desk.take(topic, payload) == []
        assert desk.take(topics.status(FLEET, "meter-1"), b"") == []
        assert desk.journalled() == []

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"sender": "meter-2"}, Reason.WRONG_SENDER),
            ({"fleet": "south"}, Reason.BAD_SIGNATURE),
            ({"recipient": "meter-2"}, Reason.BAD_SIGNATURE),
            ({"kind": "hello"}, Reason.MALFORMED),
        ],
        ids=str,
    )
    def test_an_envelope_for_elsewhere_proves_nothing(self, desk, device, changes, reason):
        payload = device.seal(device.update(), **changes)
        (refusal,) = desk.take(topics.up(FLEET, "meter-1", "update"), payload)
        assert refusal.code == reason
        assert desk.journalled() == []

    def test_strangers_and_other_keys(self, desk, device):
        stranger = Device(desk, "meter-9")
        (refusal,) = stranger.say(stranger.hello())
        assert refusal.code == Reason.UNKNOWN_CLIENT
        thief = Device(desk)
        thief.key = keys.from_seed(bytes(32))
        (refusal,) = thief.say(thief.hello(life=9))
        assert refusal.code == Reason.UNKNOWN_CLIENT  # no such key of this device

    def test_a_revoked_device_is_told_so_once_an_hour(self, desk, device):
        desk.registry.revoke("meter-1", "sold")
        assert device.say(device.update())[0].code == Reason.REVOKED
        desk.clock.seconds += 3000
        assert device.say(device.update()) == []
        desk.clock.seconds += 3700
        assert device.say(device.update())[0].code == Reason.REVOKED
        assert desk.intake.counts["REVOKED"] == 3

    def test_refusals_of_form_are_said_once_a_minute(self, desk, device):
        topic = topics.up(FLEET, "meter-1", "update")
        answers = [desk.take(topic, b"garbage") for _ in range(5)]
        assert [len(a) for a in answers] == [1, 0, 0, 0, 0]
        assert desk.intake.counts["MALFORMED"] == 5
        desk.clock.seconds += 61
        assert len(desk.take(topic, b"garbage")) == 1

    def test_oversized_payloads_are_not_looked_at(self, desk, device):
        (refusal,) = desk.take(topics.up(FLEET, "meter-1", "update"), bytes(65_537))
        assert refusal.code == Reason.TOO_LARGE

    def test_kinds_that_only_we_say_or_nobody_built(self, desk, device):
        for kind in ("welcome", "model", "rekey", "peer", "zfeat"):
            desk.take(topics.up(FLEET, "meter-1", kind), b"\x95")
        assert desk.intake.counts["UNKNOWN_KIND"] == 5

    def test_too_many_messages_and_too_many_bytes(self, tmp_path):
        terms = WelcomeTerms(quotas=RateLimits(control=3, volume=1000))
        desk = Desk(tmp_path, terms=terms)
        device = Device(desk)
        kinds = [device.say(device.hello(life=n + 1)) for n in range(4)]
        assert [a[0].kind for a in kinds] == ["welcome"] * 3 + ["refusal"]
        assert kinds[3][0].code == Reason.QUOTA
        desk.clock.seconds += 60
        device.say(device.hello(life=5))
        device.say(device.hello(life=6))
        device.say(device.hello(life=7))
        assert desk.intake.counts["QUOTA"] == 2  # 1,000 bytes are five hellos
        desk.close()

    def test_forged_signatures_silence_the_name_for_ten_minutes(self, desk, device):
        topic = topics.up(FLEET, "meter-1", "update")
        good = device.seal(device.update())
        bad = good[:-1] + bytes([good[-1] ^ 1])
        for _ in range(6):
            desk.take(topic, bad)
        assert desk.take(topic, good) == []
        assert desk.intake.counts["IGNORED"] == 1
        desk.clock.seconds += 601
        (receipt,) = desk.take(topic, good)
        assert receipt.code == 0

    def test_every_flipped_bit_of_an_update_is_refused_or_changes_nothing(self, desk, device):
        desk.intake._limiter.failed = lambda *_: None
        good = device.seal(device.update())
        topic = topics.up(FLEET, "meter-1", "update")
        for at in range(len(good)):
            for answer in desk.take(topic, good[:at] + bytes([good[at] ^ 0x41]) + good[at + 1 :]):
                assert answer.kind == "refusal"
            desk.clock.seconds += 60
        assert desk.journalled() == []

    def test_unknown_keys_are_passed_over_and_counted(self, desk, device):
        update = device.update()
        body = codec.encode(update)
        import msgpack  # noqa: PLC0415 - a newer device, which writes a key we do not know

        header, blob = msgpack.unpackb(body)
        newer = msgpack.packb([dict(sorted({**header, "zeal": 3}.items())), blob])
        sealed = envelope.seal(
            newer, kind="update", sender="meter-1", recipient="_agg", fleet=FLEET, signer=device.key
        )
        (receipt,) = desk.take(topics.up(FLEET, "meter-1", "update"), sealed)
        assert receipt.code == 0
        assert desk.intake.counts["UNKNOWN_KEYS"] == 1


class TestPresence:
    def test_coming_and_going_is_told_once(self, desk, device):
        device.say(device.status())
        assert desk.taken.member.present
        device.say(device.status("sleeping"))
        assert desk.taken.member is None
        device.say(device.status("lost"))
        assert not desk.taken.member.present
        assert desk.registry.states() == {"lost": 1}

    def test_an_old_will_does_not_take_a_device_away(self, desk, device):
        device.say(device.status(conn=5))
        device.say(device.status("lost", conn=4))
        assert desk.taken.member is None
        assert desk.registry.presence("meter-1").is_present
        assert desk.intake.counts["STALE_STATUS"] == 1

    def test_last_seen_is_server_time(self, desk, device):
        desk.clock.seconds = 90
        device.say(device.status())
        assert desk.registry.presence("meter-1").seen == START + 90_000


class TestFullDisk:
    def test_nothing_is_recorded_and_the_device_may_try_again(self, desk, device):
        desk.store._db.execute("PRAGMA max_page_count = 1")
        update, (refusal,) = _until_full(desk, device)
        assert (refusal.code, refusal.wait, refusal.ref) == (
            Reason.NO_SPACE,
            60_000,
            ref_of(update),
        )
        assert desk.intake.is_full
        assert desk.taken.entries == ()
        count = len(desk.journalled())
        desk.store._db.execute("PRAGMA max_page_count = 100000")
        (receipt,) = device.say(update)
        assert receipt.code == 0
        assert not desk.intake.is_full
        assert len(desk.journalled()) == count + 1


def _until_full(desk, device):
    for number in range(2, 500):
        desk.open(round_number=number, version=0)
        update = device.update()
        answers = device.say(update)
        desk.clock.seconds += 60
        if answers[0].kind == "refusal":
            return update, answers
    raise AssertionError("the disk never filled")


def test_a_device_without_windows_is_counted(desk, device):
    for _ in range(2):
        device.say(RefusalMessage(Reason.NO_WINDOWS, 0, id=bytes(16)))
    device.say(RefusalMessage(Reason.ABORTED, 0, id=bytes(16)))
    assert desk.intake.counts["NO_WINDOWS_ON_DEVICE"] == 2
    assert desk.intake.counts["REFUSED_BY_DEVICE"] == 3
