"""List every field that a device sends, what it reveals, and what covers it, as docs/privacy.md does.

The table of that page and this one are equal: tests/aggregator/operations/test_data_sheet.py compares them,
and tests/edge_sdk/privacy/test_sent.py compares the page with the messages themselves.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SentFields:
    """Some fields of a message from a device.

    Attributes:
        kind: Kind of the message.
        fields: Names of the fields.
        reveals: What they reveal.
        covered_by: ``mechanism``, ``public``, ``process``, ``opt-in`` or ``own noise``.
    """

    kind: str
    fields: tuple[str, ...]
    reveals: str
    covered_by: str


SENT: tuple[SentFields, ...] = (
    SentFields(
        "status",
        ("state", "life", "conn"),
        (
            "that the device is here, and how often it connected; the broker repeats the "
            "last one as the will"
        ),
        "public",
    ),
    SentFields(
        "hello",
        ("life", "spent", "lost", "open", "conn"),
        "restarts, a lost store, how many updates left, which wait for a receipt",
        "public",
    ),
    SentFields(
        "hello",
        ("log", "root"),
        (
            "the last model announcement that the device has seen: run, number and root of "
            "the log of models"
        ),
        "public",
    ),
    SentFields("hello", ("wire", "caps", "sdk"), "the software", "public"),
    SentFields("hello", ("nonce",), "nothing: random", "process"),
    SentFields(
        "hello",
        ("key",),
        "the public key to which messages to this device are encrypted; only with `encryption.required`",
        "public",
    ),
    SentFields(
        "offer",
        ("of", "run", "round", "base", "spec", "life", "seq", "spent"),
        "as in the update that is offered",
        "public",
    ),
    SentFields(
        "offer",
        ("size", "chunk", "ahead"),
        (
            "bytes of the update, the layout's and the encoding's, and in how many chunks "
            "they follow at once"
        ),
        "public",
    ),
    SentFields("offer", ("digest", "sig"), "hash and signature of the update's bytes", "mechanism"),
    SentFields(
        "chunk",
        ("id", "blob"),
        "a piece of the update's bytes, and the start of their hash",
        "mechanism",
    ),
    SentFields("chunk", ("i", "life", "seq"), "which piece of which update", "public"),
    SentFields(
        "have",
        ("id", "have", "win"),
        "which model or bundle the device fetches, and what of it has arrived",
        "public",
    ),
    SentFields(
        "update",
        ("run", "round", "base", "spec", "part", "enc"),
        "which question is answered: as it was asked",
        "public",
    ),
    SentFields("update", ("life", "seq", "spent"), "how many updates left", "public"),
    SentFields(
        "update",
        ("blob", "vals", "n", "check"),
        (
            "the answer, its numbers, how many windows it was computed from, and a hash of "
            "the dual that both ends hold"
        ),
        "mechanism",
    ),
    SentFields("update", ("flags",), "reserved: this software never sets it", "public"),
    SentFields(
        "signal",
        ("run", "round", "ask", "attempt", "enc", "shape", "off", "num"),
        "which question is answered: as it was asked",
        "public",
    ),
    SentFields(
        "signal",
        ("step",),
        "the turn; of `serve` the number of the newest window, so when the newest reading came",
        "public",
    ),
    SentFields(
        "signal", ("blob", "vals"), "activations, gradients of the loss, numbers", "mechanism"
    ),
    SentFields(
        "peer",
        ("run", "epoch", "step", "part", "degree", "spec", "enc", "off", "num"),
        "which exchange, and how many neighbours there are",
        "public",
    ),
    SentFields("peer", ("blob",), "the model, or the tracker of gradients", "mechanism"),
    SentFields(
        "settle",
        ("run", "epoch", "step", "used"),
        "whether a neighbour's vector came in time",
        "public",
    ),
    SentFields(
        "receipt",
        ("life", "seq", "ref", "code", "run", "round"),
        "that an operator's command was done",
        "public",
    ),
    SentFields(
        "refusal",
        ("code", "ref", "id"),
        (
            "why the device does not follow a bundle or an old command, or that no complete "
            "window of readings exists for a round"
        ),
        "public",
    ),
    SentFields("refusal", ("wait",), "nothing: always 0", "public"),
    SentFields(
        "metrics",
        (
            "up",
            "sent",
            "resent",
            "refused",
            "bytes_up",
            "bytes_down",
            "outbox",
            "flash",
            "rss",
            "step",
            "mixed",
            "missed",
            "new",
        ),
        (
            "counters of the process; `flash` grows with the number of readings that are "
            "kept, `new` with those since the last update"
        ),
        "process",
    ),
    SentFields(
        "forecast",
        (
            "t",
            "start",
            "step",
            "num",
            "stream",
            "model",
            "bundle",
            "run",
            "source",
            "by",
            "version",
            "error",
            "coverage",
            "blob",
        ),
        (
            "the expected load of the next hours with its error, when the newest reading "
            "came, and the model: nearly as much as readings; only with `[[output]] type = "
            '"fleet"`'
        ),
        "opt-in",
    ),
    SentFields(
        "trial",
        ("of", "state", "day", "lost"),
        (
            "which version of a rollout the device scores or serves, and for each day one of "
            "three words: whether the new version forecast the device's own readings worse "
            "than the served one, at most 1.6 bits a day and no error in numbers; only with "
            "`accept.rollouts = true`, while a rollout runs and the device is in its share"
        ),
        "opt-in",
    ),
    SentFields(
        "score",
        ("day", "name", "cells", "how", "eps", "blob"),
        (
            "in which of eight ranges the error of the device's forecast is, as one noisy "
            "answer a day; only with `report` in `[scores]`"
        ),
        "own noise",
    ),
)
