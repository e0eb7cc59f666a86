"""Parse the options of a trial: its runs, and the attacks on them."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from typing import get_args

from edge_sdk.app.schema import SchemaError, build
from edge_sdk.app.settings import SettingsError
from edge_sdk.protocol.block_quantisation import UpdateEncoding
from edge_sdk.protocol.contract.method import CONTRACTS, Up
from firmware_sim.attacks.attack_plan import AttackPlan
from firmware_sim.commands.options import of_methods, pairs, rule, value_of, words
from firmware_sim.scenario import Scenario

OPTIONS = {"timeout": "patience", "selection": "malicious"}
"""Option by key of an attack, where their names differ."""


def attacks_of(args: Namespace) -> tuple[AttackPlan, ...]:
    """Return the attacks that the options name, in order.

    Raises:
        SettingsError: A number is out of range, or there is a Byzantine share without an attack.
    """
    names = words(args.attack)
    if args.byzantine is not None and not names:
        raise SettingsError("--byzantine needs --attack", hint="gridfed-sim attacks lists them")
    given_options = {
        "byzantine": args.byzantine,
        "start_round": args.start_round,
        "selection": args.malicious,
        "timeout": args.patience,
        "colluding": args.colluding or None,
    }
    options = pairs(args.attack_option, "--attack-option")
    table = {key: value for key, value in given_options.items() if value is not None}
    table |= {"options": options, "seed": args.seed}
    try:
        found = tuple(build(AttackPlan, {"attack": name, **table}) for name in names)
    except SchemaError as misfit:
        key = misfit.path.partition(".")[0]
        option = OPTIONS.get(key, key.replace("_", "-"))
        raise SettingsError(f"--{option}{str(misfit).removeprefix(key)}") from misfit
    for one in found:
        _ = one.bound  # names what does not fit
    return found


def with_trial(chosen: Scenario, args: Namespace) -> Scenario:
    """Add runs and attacks to a scenario."""
    given = attacks_of(args) or chosen.attacks
    f = max((one.count(chosen.devices) for one in given), default=0) if args.f is None else args.f
    options = pairs(args.rule_option, "--rule-option")
    rules = [rule(text, options, f) for text in words(args.rule)]
    methods, encodings = words(args.method), _encodings(args)
    ways = (chosen.run, *chosen.comparisons)
    if rules or methods or encodings:
        ways = tuple(
            replace(chosen.run, method=method, rule=table, encoding=encoding)
            for method in methods or (chosen.run.method,)
            for table in rules or (chosen.run.rule,)
            for encoding in encodings or (chosen.run.encoding,)
        )
    given_settings = {key: value_of(text) for key, text in pairs(args.setting, "--setting").items()}
    settings = of_methods(given_settings, (way.method for way in ways), "--setting")
    ways = tuple(replace(way, settings={**way.settings, **settings[way.method]}) for way in ways)
    for way in ways:
        _check_signs(way.method, chosen)
        for one in given:
            _check(way.method, one)
    return replace(chosen, run=ways[0], comparisons=ways[1:], attacks=given)


def _encodings(args: Namespace) -> list[UpdateEncoding]:
    known: tuple[UpdateEncoding, ...] = get_args(UpdateEncoding)
    names = words(args.encoding)
    if unknown := set(names) - set(known):
        raise SettingsError(f"--encoding {unknown.pop()}: expected {', '.join(known)}")
    return [name for name in known if name in names]


def _check(method: str, plan: AttackPlan) -> None:
    """Refuse an attack on a message that a method never sends; the aggregator checks the method."""
    if method not in CONTRACTS:
        return
    kinds = {ask.up for ask in CONTRACTS[method].values()}
    if plan.bound.attack.kind == "signal" and Up.SIGNAL not in kinds:
        raise SettingsError(f"--attack {plan.attack}: devices of {method} send no activations")
    try:
        for part in kinds - {Up.SIGNAL, Up.NOTHING}:
            plan.bound.on(part)
    except ValueError as error:
        raise SettingsError(f"--attack-option target: {method}: {error}") from error


def _check_signs(method: str, chosen: Scenario) -> None:
    encodings = {ask.enc for ask in CONTRACTS.get(method, {}).values()}
    if "b1" in encodings and dict(chosen.privacy.get("mechanism", {})).get("point") != "sign":
        raise SettingsError(
            f"--method {method}: its devices must make their signs noisy",
            hint="--privacy FILE with a mechanism at point 'sign'; docs/privacy.md has one",
        )


def is_trial(chosen: Scenario) -> bool:
    return bool(chosen.attacks or chosen.comparisons)
