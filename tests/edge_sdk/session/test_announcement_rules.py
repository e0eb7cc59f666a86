"""The threat model lists every rule for announcements, in order, with its function."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from edge_sdk.errors import Reason, Refused
from edge_sdk.link.transport import Message
from edge_sdk.protocol import keys, topics
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.codec import encode
from edge_sdk.protocol.envelope import AGGREGATOR, ALL, ROOT, seal
from edge_sdk.session import manifest_checks
from edge_sdk.session.signed_link import SignedLink

PAGE = (Path(__file__).parents[3] / "docs" / "threat-model.md").read_text("utf-8")
LISTED = PAGE.partition("## Rules for announcements")[2].partition("\n## ")[0]
RULE = re.compile(r"^(\d+)\. (.*?)\(`([\w.]+)`\)", re.MULTILINE)
RULES = [(int(number), text, name) for number, text, name in RULE.findall(LISTED)]
REASON = re.compile(r"\b[A-Z]+(?:_[A-Z]+)*\b")


def function_of(name: str):
    """Return the function or method with a dotted name below ``edge_sdk``."""
    parts = name.split(".")
    for split in range(len(parts) - 1, 0, -1):
        try:
            found = import_module(".".join(["edge_sdk", *parts[:split]]))
        except ModuleNotFoundError:
            continue
        for part in parts[split:]:
            found = getattr(found, part)
        return found
    raise LookupError(name)


def reasons_of(function) -> set[str]:
    """Return the reasons with which a function itself refuses."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found |= {node.attr} if node.value.id == "Reason" else set()
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "malformed":
            found.add("MALFORMED")
    return found


def listed(name: str) -> set[str]:
    text = " ".join(text for _, text, of in RULES if of == name)
    return {word for word in REASON.findall(text) if word in Reason.__members__}


def test_the_rules_are_numbered_from_one():
    assert [number for number, _, _ in RULES] == list(range(1, len(RULES) + 1))
    assert len(RULES) == len(re.findall(r"^\d+\. ", LISTED, re.MULTILINE))


@pytest.mark.parametrize("name", sorted({name for _, _, name in RULES}))
def test_each_rule_names_a_function_and_every_reason_with_which_it_refuses(name):
    function = function_of(name)
    assert callable(function)
    assert reasons_of(function) <= listed(name)


def test_every_reason_of_judging_a_bundle_has_a_rule_of_its_own():
    reasons = [
        REASON.findall(text)[-1]
        for _, text, name in RULES
        if name == "session.manifest_checks.judge_bundle"
    ]
    assert reasons == ["ROLLBACK", "UNKNOWN_KIND", "WRONG_ENCODING", "PLAIN_REFUSED"]


FLAWS = [
    ("ROLLBACK", {"serial": 1}),
    ("UNKNOWN_KIND", {"method": "other"}),
    ("WRONG_ENCODING", {"encs": ("b1",)}),
    ("PLAIN_REFUSED", {"seal": ("update", "model")}),
]


@pytest.mark.parametrize("first", range(len(FLAWS)))
def test_the_first_broken_rule_of_a_bundle_refuses_it(first):
    sound = m.BundleMessage(
        serial=2, name="linear", version=1, digest=bytes(32), size=3, spec=bytes(16),
        sdk="0.1.0", method="fedavg", run=1, shared=("body.",),
    )  # fmt: skip
    manifest_checks.judge_bundle(sound, sound, ["fedavg"])
    broken = replace(sound, **{k: v for _, flaw in FLAWS[first:] for k, v in flaw.items()})
    with pytest.raises(Refused) as refused:
        manifest_checks.judge_bundle(broken, sound, ["fedavg"])
    assert refused.value.reason.name == FLAWS[first][0]


# --- the rules of every announcement ----------------------------------------------------------

ROOT_KEY, OTHER = keys.from_seed(b"r" * 32), keys.from_seed(b"o" * 32)
KEYS = m.KeysMessage(1, (OTHER.public,), (), (0,), (2**47,), 1)


class Broker:
    """A link on which messages have already arrived."""

    def __init__(self, *arrived):
        self.arrived, self.acknowledged = list(arrived), []

    def open(self):
        pass

    def poll(self, _timeout):
        found, self.arrived = self.arrived, []
        return found

    def acknowledge(self, message):
        self.acknowledged.append(message)


def payload(fleet="north", kind="keys", sender=ROOT, signer=ROOT_KEY, body=None):
    body = encode(KEYS) if body is None else body
    return seal(body, kind=kind, sender=sender, recipient=ALL, fleet=fleet, signer=signer)


TOPIC = topics.common("north", "keys")
ARRIVALS = {
    "another fleet's topic": (topics.common("south", "keys"), payload(), Reason.MALFORMED),
    "bytes that are no envelope": (TOPIC, b"\xff", Reason.MALFORMED),
    "another version": (TOPIC, b"\x95\x02" + payload()[2:], Reason.UNKNOWN_WIRE),
    "another kind than the topic's": (TOPIC, payload(kind="bundle"), Reason.MALFORMED),
    "keys from the aggregator": (TOPIC, payload(sender=AGGREGATOR), Reason.WRONG_SENDER),
    "another key": (TOPIC, payload(signer=OTHER), Reason.UNKNOWN_CLIENT),
    "another fleet's signature": (TOPIC, payload(fleet="south"), Reason.BAD_SIGNATURE),
    "an encrypted body": (TOPIC, payload(body=b"\x94"), Reason.CANNOT_OPEN),
    "a missing field": (TOPIC, payload(body=b"\x92\x80\xc4\x00"), Reason.MALFORMED),
}


def arrive(topic, content):
    link, device = Broker(Message(topic, content, True)), keys.from_seed(b"d" * 32)
    signed = SignedLink(device, fleet="north", device="meter-1")
    signed.connect(link)
    ring = {keys.kid_of(ROOT_KEY.public): ROOT_KEY.public}
    events = list(signed.poll(0.0, lambda _sender, kid: ring.get(kid)))
    assert len(link.acknowledged) == 1  # a refused announcement does not come again
    return events, signed.refused


def test_a_sound_announcement_arrives():
    events, refused = arrive(TOPIC, payload())
    assert [event.message for event in events] == [KEYS]
    assert not refused


@pytest.mark.parametrize(("topic", "content", "reason"), ARRIVALS.values(), ids=ARRIVALS)
def test_an_announcement_that_breaks_a_rule_is_refused_with_its_reason(topic, content, reason):
    events, refused = arrive(topic, content)
    assert events == []
    assert refused == {reason: 1}
