from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from edge_sdk.app.schema import Between, Length, Matches, SchemaError, build


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Rule:
    name: Literal["mean", "trimmed_mean", "krum"]
    trim: Annotated[int, Between(0, 8)] = 0


@dataclass(frozen=True)
class Settings:
    quorum: int
    rate: float = 0.1
    rule: Rule = field(default_factory=lambda: Rule("mean"))
    from_: str = ""
    on: bool = False
    raw: bytes = b""
    colour: Colour = Colour.RED
    folder: Path = Path()
    maybe: int | None = None
    either: int | str = 0
    many: tuple[int, ...] = ()
    pair: tuple[int, str] = (0, "")
    rows: Mapping[str, Rule] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    anything: Any = None
    short: Annotated[str, Length(1, 4)] = "x"
    word: Annotated[str, Matches("[a-z]+")] = "x"


def misfit(mapping, **options):
    with pytest.raises(SchemaError) as caught:
        build(Settings, mapping, **options)
    return str(caught.value)


def test_every_kind_of_field_is_built():
    assert build(
        Settings,
        {
            "quorum": 3, "rate": 1, "rule": {"name": "krum", "trim": 2}, "from": "x", "on": True,
            "raw": b"\0", "colour": "blue", "folder": "/tmp/x", "maybe": 4, "either": "a",
            "many": [1, 2], "pair": [1, "b"], "rows": {"a": {"name": "mean"}},
            "rules": [{"name": "krum"}], "anything": [None], "short": "abcd", "word": "abc",
        },
    ) == Settings(
        3, 1.0, Rule("krum", 2), "x", True, b"\0", Colour.BLUE, Path("/tmp/x"), 4, "a", (1, 2),
        (1, "b"), {"a": Rule("mean")}, (Rule("krum"),), [None], "abcd", "abc",
    )  # fmt: skip


def test_an_int_becomes_a_float_and_nothing_else_is_converted():
    assert type(build(Settings, {"quorum": 1, "rate": 2}).rate) is float
    assert misfit({"quorum": "16"}) == "quorum: expected int, got str ('16')"
    assert misfit({"quorum": 1.0}) == "quorum: expected int, got float (1.0)"


@pytest.mark.parametrize(("key", "wanted"), [("quorum", "int"), ("rate", "float")])
def test_a_bool_is_never_a_number(key, wanted):
    assert misfit({"quorum": 1, key: True}) == f"{key}: expected {wanted}, got bool (True)"


def test_a_number_is_never_a_bool():
    assert misfit({"quorum": 1, "on": 1}) == "on: expected bool, got int (1)"


def test_the_path_leads_to_the_place():
    where = "aggregator.toml"
    bad = {"quorum": 1, "rule": {"name": "trimed_mean"}}
    assert misfit(bad, where=where) == (
        'aggregator.toml.rule.name: unknown "trimed_mean"; known: mean, trimmed_mean, krum'
    )
    assert misfit({"quorum": 1, "rules": [{"name": "mean"}, {"name": 1}]}) == (
        "rules[1].name: unknown 1; known: mean, trimmed_mean, krum"
    )
    assert misfit({"quorum": 1, "rows": {"m": {}}}) == "rows.m.name: missing"
    assert misfit({"quorum": 1, "many": [0, "x"]}) == "many[1]: expected int, got str ('x')"


def test_an_unknown_key_is_a_misspelling_or_a_newer_peer():
    bad = {"quorum": 1, "rule": {"name": "mean", "trimm": 2}}
    assert misfit(bad) == "rule.trimm: unknown key; did you mean 'trim'?"
    assert "known: quorum, rate" in misfit({"quorum": 1, "zzzzzz": 1})
    assert build(Settings, bad, unknown="ignore").rule == Rule("mean")


def test_a_missing_key_is_named():
    assert misfit({}) == "quorum: missing"


def test_a_field_named_by_a_keyword_is_read_without_its_underscore():
    assert build(Settings, {"quorum": 1, "from": "here"}).from_ == "here"
    assert "unknown key" in misfit({"quorum": 1, "from_": "here"})


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("rule", [], "expected a table"),
        ("rows", 3, "expected a table"),
        ("rows", {1: {}}, "expected str keys"),
        ("many", "12", "expected a list"),
        ("pair", [1], "expected a list of 2, got 1 items"),
        ("either", 1.5, "expected int or str, got float"),
        ("colour", "green", 'unknown "green"; known: red, blue'),
        ("short", "", "of length 1 to 4"),
        ("short", "ééé", "of length 1 to 4"),
        ("word", "abc1", "like [a-z]+"),
        ("folder", 3, "expected str"),
        ("maybe", "x", "expected int"),
        ("raw", "x", "expected bytes"),
    ],
)
def test_each_misfit_names_the_expected_value(key, value, says):
    assert says in misfit({"quorum": 1, key: value})


def test_a_rule_in_a_nested_table_is_kept():
    says = misfit({"quorum": 1, "rule": {"name": "mean", "trim": 9}})
    assert says == "rule.trim: expected int from 0 to 8, got int (9)"


def test_a_long_value_is_not_printed_whole():
    assert len(misfit({"quorum": "x" * 10_000})) < 150


def test_a_true_is_not_the_literal_one():
    @dataclass(frozen=True)
    class Wire:
        version: Literal[1]

    with pytest.raises(SchemaError):
        build(Wire, {"version": True})


def test_the_top_must_be_a_table():
    assert misfit([]) == "expected a table, got list ([])"


def test_a_cross_check_of_the_class_becomes_a_misfit_with_its_place():
    @dataclass(frozen=True)
    class Window:
        low: int
        high: int

        def __post_init__(self):
            if self.low > self.high:
                raise ValueError("low is above high")

    with pytest.raises(SchemaError, match=r"meter\.toml: low is above high"):
        build(Window, {"low": 2, "high": 1}, where="meter.toml")
