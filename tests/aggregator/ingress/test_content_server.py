"""Common bodies on their way out: what one device misses, and what a crowd does."""

import pytest

from aggregator import daemon
from aggregator.ingress.admission_context import WelcomeTerms
from aggregator.ingress.rate_limits import BURST, RateLimits
from aggregator.rounds import announcements
from aggregator.store.types import DownloadBody
from edge_sdk.errors import Reason
from edge_sdk.protocol import envelope, topics
from edge_sdk.protocol.messages import BODY_LIMIT, HaveMessage
from edge_sdk.protocol.transfer import bitmap
from tests.aggregator.rig import FLEET, SIGNER, Desk, Device


class TestPull:
    @pytest.fixture
    def body(self, desk):
        body = bytes(range(256)) * 100
        content = DownloadBody("model", envelope.ref(envelope.digest(body)), body, 8192)
        desk.store.announce({}, [content])
        return content

    def test_a_device_gets_what_it_misses(self, desk, device, body):
        chunks = device.say(HaveMessage(body.id, b"", 2))
        assert [c.i for c in chunks] == [0, 1]
        chunks += device.say(HaveMessage(body.id, bitmap([0, 1], 4), 8))
        assert b"".join(c.blob for c in chunks) == body.body

    def test_progress_is_not_answered_with_what_is_on_its_way(self, desk, device, body):
        assert [c.i for c in device.say(HaveMessage(body.id, b"", 3))] == [0, 1, 2]
        assert [c.i for c in device.say(HaveMessage(body.id, bitmap([0], 4), 3))] == [3]

    def test_a_gap_is_sent_again(self, desk, device, body):
        device.say(HaveMessage(body.id, b"", 8))
        desk.clock.seconds += 2
        assert [c.i for c in device.say(HaveMessage(body.id, bitmap([0, 3], 4), 4))] == [1, 2]

    def test_what_is_not_ours_is_not_found(self, desk, device):
        (refusal,) = device.say(HaveMessage(bytes(16), b"", 1))
        assert (refusal.code, refusal.id) == (Reason.NOT_FOUND, bytes(16))

    def test_a_bitmap_that_cannot_be_is_malformed(self, desk, device, body):
        (refusal,) = device.say(HaveMessage(body.id, bytes(9), 1))
        assert refusal.code == Reason.MALFORMED

    def test_pulling_is_no_amplifier(self, desk, device, body):
        answers = [device.say(HaveMessage(body.id, b"", 1)) for _ in range(20)]
        assert sum(bool(a) for a in answers) == 8
        desk.clock.seconds += 1
        assert len(device.say(HaveMessage(body.id, b"", 1))) == 1


class TestQuota:
    """A request of 300 bytes costs the aggregator hundreds of times as many: that is bounded."""

    LARGE = bytes(range(256)) * 4 * 1024 * 8  # 8 MiB, the largest body there is

    @staticmethod
    def offered(desk, body, chunk=32_768):
        content = DownloadBody("bundle", envelope.ref(envelope.digest(body)), body, chunk)
        desk.store.announce({}, [content])
        return content

    @staticmethod
    def greedy(desk, device, content, seconds):
        """Ask for everything once a second, as if nothing had ever come; return what was sent."""
        sent, codes = 0, []
        for _ in range(seconds):
            desk.clock.seconds += 1
            said = device.say(HaveMessage(content.id, b"", 8))
            sent += sum(len(answer.payload) for answer in desk.taken.answers)
            codes += [one.code for one in said if one.kind == "refusal"]
        return sent, codes

    def test_one_device_gets_its_quota_and_is_told_when_it_is_used(self, desk, device):
        content = self.offered(desk, self.LARGE)
        quotas = desk.terms.quotas
        sent, codes = self.greedy(desk, device, content, 300)
        assert sent <= quotas.download + 300 * quotas.refill + 40_000
        assert sent > quotas.download
        assert codes
        assert set(codes) == {Reason.QUOTA}
        assert desk.intake.counts["QUOTA"] > len(codes)  # an answer is no amplifier either

    def test_the_refusal_names_the_transfer_and_when_to_ask_again(self, desk, device):
        content = self.offered(desk, self.LARGE)
        for _ in range(100):
            desk.clock.seconds += 1
            said = device.say(HaveMessage(content.id, b"", 8))
            if said[0].kind == "refusal":
                break
        assert (said[0].kind, said[0].id, said[0].wait) == ("refusal", content.id, 60_000)
        desk.clock.seconds += 60
        assert {one.kind for one in device.say(HaveMessage(content.id, b"", 8))} == {"chunk"}

    def test_a_device_that_lost_its_store_fetches_bundle_and_model(self, desk, device):
        for body in (self.LARGE, self.LARGE[::-1]):
            content, have = self.offered(desk, body), set()
            for _ in range(32):
                desk.clock.seconds += 1
                for said in device.say(HaveMessage(content.id, bitmap(have, 256), 8)):
                    assert said.kind == "chunk"
                    have.add(said.i)
            assert len(have) == 256

    def test_all_devices_together_get_what_the_downlink_carries(self, tmp_path):
        names = [f"meter-{n}" for n in range(30)]
        terms = WelcomeTerms(quotas=RateLimits(downlink=1_000_000))
        desk = Desk(tmp_path, devices=names, terms=terms)
        content = self.offered(desk, self.LARGE)
        liars = [Device(desk, name) for name in names[1:]]
        sent, codes = 0, set()
        for _ in range(5):
            desk.clock.seconds += 1
            for liar in liars:
                said = liar.say(HaveMessage(content.id, b"", 8))
                sent += sum(len(answer.payload) for answer in desk.taken.answers)
                codes |= {one.code for one in said if one.kind == "refusal"}
        assert codes == {Reason.BUSY}
        assert sent <= (BURST + 5) * 1_000_000 + 300_000
        honest = Device(desk, names[0])
        desk.clock.seconds += 1
        assert {one.kind for one in honest.say(HaveMessage(content.id, b"", 8))} == {"chunk"}
        desk.close()

    def test_the_configuration_says_how_much(self, founded):
        config = founded(
            replacing=[('jitter = "0s"', 'jitter = "0s", broadcast_bytes_per_second = 7000.0')]
        )
        quotas = daemon.terms_of(config).quotas
        assert quotas.downlink == 7000.0
        assert quotas.download == 2 * BODY_LIMIT  # more than an eighth of 64 MB
        assert quotas.refill == pytest.approx(64e6 / 8 / 3600)


class TestCrowd:
    """A retained slot was lost on the way to a hundred devices: one publish, not a hundred."""

    @pytest.fixture
    def crowd(self, tmp_path):
        desk = Desk(tmp_path, devices=[f"meter-{n}" for n in range(30)])
        yield desk, [Device(desk, f"meter-{n}") for n in range(30)]
        desk.close()

    @staticmethod
    def slotted(desk, *, version=0):
        run = announcements.Body(version, bytes([version]) * 20_000)
        slots = announcements.slots(announcements.Ends(FLEET, SIGNER), run, chunk=8192)
        content = DownloadBody("model", run.id, run.data, 8192)
        desk.store.announce({one.topic: one.payload for one in slots}, [content])
        return run, slots

    def test_the_twenty_first_gets_the_slot_and_the_next_ones_wait_for_it(self, crowd):
        desk, devices = crowd
        body, slots = self.slotted(desk)
        said = []
        for device in devices:
            device.say(HaveMessage(body.id, bitmap([0, 2], 3), 8))
            said.append(desk.taken.answers)
        assert all(topics.parse(a.topic).kind == "chunk" for (a,) in said[:20])
        assert said[20] == ((slots[1].topic, slots[1].payload, True),)
        assert said[21:] == [()] * 9
        assert desk.intake.counts["SLOTS_AGAIN"] == 1

    def test_ten_seconds_later_they_are_no_crowd(self, crowd):
        desk, devices = crowd
        body, _ = self.slotted(desk)
        for device in devices:
            desk.clock.seconds += 0.6
            assert device.say(HaveMessage(body.id, bitmap([0, 2], 3), 8))
        assert desk.intake.counts["SLOTS_AGAIN"] == 0

    def test_one_device_that_asks_often_is_no_crowd(self, crowd):
        desk, (device, *_) = crowd
        body, _ = self.slotted(desk)
        for _ in range(40):
            desk.clock.seconds += 2
            assert device.say(HaveMessage(body.id, bitmap([0, 2], 3), 8))

    def test_an_older_model_is_not_put_where_the_present_one_lies(self, crowd):
        desk, devices = crowd
        old, _ = self.slotted(desk, version=1)
        self.slotted(desk, version=2)
        for device in devices:
            device.say(HaveMessage(old.id, bitmap([0, 2], 3), 8))
            assert [a.retain for a in desk.taken.answers] == [False]
