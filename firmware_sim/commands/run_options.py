"""Options of a simulated run that several subcommands have, and the scenario that they give."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from edge_sdk.app.schema import SchemaError, build
from edge_sdk.app.settings import SettingsError
from edge_sdk.protocol.codec import DownlinkEncoding, UpdateEncoding
from edge_sdk.protocol.contract.method import CONTRACTS, Up
from firmware_sim.attacks.attack_plan import AttackPlan
from firmware_sim.commands.options import arguments, of_methods, pairs, rule, value_of, words
from firmware_sim.samples import SampleSet, sample_set
from firmware_sim.scenario import (
    DEFAULT_BUNDLES,
    GRAPHS,
    LONG_DEADLINE,
    PrivacyFile,
    RunSettings,
    Scenario,
    bundle_at,
    scenario,
)

# option by key of an attack, where their names differ
OPTIONS = {"timeout": "patience", "selection": "malicious"}


def attacks_of(args: Namespace) -> tuple[AttackPlan, ...]:
    """Return the attacks of the options, in order; raise SettingsError for wrong numbers, or a share without one."""
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


# graph model of a method with a graph between the devices' encoders and decoders: the paper's
SITE_METHODS = {
    "pfgl": "pfgl",
    "cnfgnn": "graphnet",
    "lstm_cnn_fedavg": "conv2d",
    "lstm_cnn_pfl": "conv2d",
}
_NEIGHBOURS = frozenset({"pfgl", "lstm_cnn_pfl", "pfl", "bigfl"})  # have a setting of that name
_SITES_HINT = "--graph FILE (first line client,latitude,longitude or client,neighbour), or complete"


def with_graph(way: RunSettings, args: Namespace, devices: int) -> RunSettings:
    """Return a run with the graph of the options, where its method has one.

    Raises:
        SettingsError: A method whose stations need a graph, and none was given.
    """
    options = {key: _flag(text) for key, text in pairs(args.graph_option, "--graph-option").items()}
    file = None if args.graph is None else str(Path(args.graph).absolute())
    if way.is_among_peers:
        name = args.graph if args.graph in GRAPHS else file
        table = {"name": name or "ring"} | ({} if name else dict(way.graph)) | options
        return replace(way, graph=table)
    if args.graph == "complete":
        file = None
    elif args.graph in GRAPHS and (way.method in SITE_METHODS or way.method in _NEIGHBOURS):
        raise SettingsError(
            f"--graph {args.graph}: {way.method} has no such graph", hint=_SITES_HINT
        )
    if way.method in SITE_METHODS:
        if args.graph is None and not way.graph:
            raise SettingsError(f"--method {way.method}: needs a graph of sites", hint=_SITES_HINT)
        made = {"kind": SITE_METHODS[way.method], "capacity": max(2, devices)} if args.graph else {}
        way = replace(
            way, graph={**way.graph, **made, **({"sites": file} if file else {}), **options}
        )
    if file is not None and way.method in _NEIGHBOURS and file.endswith(".csv"):
        way = replace(way, settings={**way.settings, "neighbours": file})
    return way


def _flag(text: str) -> Any:  # noqa: ANN401 - what a TOML file would say
    return {"true": True, "false": False}.get(text, value_of(text))


def _with_graphs(chosen: Scenario, args: Namespace) -> Scenario:
    ways, users = (chosen.run, *chosen.comparisons), _NEIGHBOURS | SITE_METHODS.keys()
    is_used = any(one.is_among_peers or one.method in users for one in ways)
    if (args.graph or args.graph_option) and not is_used:
        raise SettingsError(f"--graph: {ways[0].method} has no graph", hint="leave it out")
    ways = tuple(with_graph(way, args, chosen.devices) for way in ways)
    return replace(chosen, run=ways[0], comparisons=ways[1:])


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


def add_run_options(parser: ArgumentParser) -> None:
    """Add the options of devices, runs, readings, attacks and rules."""
    add = parser.add_argument
    add("--devices", type=int, metavar="N", help="number of devices (8; with --data one a file)")
    add("--rounds", type=int, metavar="N", help="number of rounds (20)")
    add("--method", metavar="NAMES", help="method; several with commas are compared (fedavg)")
    words = "encoding of the updates: f4, q8, q4; several with commas are compared (f4)"
    add("--encoding", metavar="NAMES", help=words)
    words = "encoding of new models: f4, or q8 for steps of 8 bits from the last one (f4)"
    add("--downlink", choices=get_args(DownlinkEncoding), help=words)
    words = "devices whose updates close a round (all; half for asynchronous methods)"
    add("--quorum", type=int, metavar="N", help=words)
    words = "setting of every method, or of one: fedprox.prox=0.1"
    add("--setting", action="append", default=[], metavar="K=V", help=words)
    words = "graph of the devices: ring, torus, erdos_renyi, complete or a CSV file of pairs for methods"
    words += " without a server (ring); a file of sites for pfgl, cnfgnn and lstm_cnn_*"
    add("--graph", metavar="GRAPH", help=words)
    words = (
        "option of the graph, such as probability=0.5, directed=true, present=0.8; kind=diffusion"
    )
    add("--graph-option", action="append", default=[], metavar="K=V", help=words)
    words = "prefixes of the shared layers with commas; all; none"
    add("--shared", type=_layers, metavar="LAYERS", help=words)
    add("--steps", type=int, help="local steps per round (the bundle's)")
    add("--rate", type=float, help="learning rate (the bundle's)")
    add("--bundle", help="a shipped name, or a path (one that suits the set)")
    add("--days", type=int, default=28, help="history of a device, from its first reading (28)")
    words = "days after them to evaluate on (7)"
    add("--evaluation-days", type=int, default=7, metavar="N", help=words)
    add("--seed", type=int, default=0, help="seed of the simulator's random draws (0)")
    words = (
        "repeat every run with each of these seeds: minibatches, the aggregator's draws, attacks"
    )
    add("--seeds", type=int, nargs="+", metavar="N", help=words)
    add("--scenario", default="", help="scenario to start from: a shipped name, or a TOML file")
    words = "the shipped set to use, or that --data resembles (homes)"
    add("--like", "--samples", metavar="SET", help=words)
    add("--data", type=Path, metavar="FOLDER", help="CSV files of your own, one a device")
    words = "a TOML file with the [privacy] of every device (no mechanism)"
    add("--privacy", type=Path, metavar="FILE", help=words)
    add("--limit", type=float, default=600.0, help="time limit of the run, in seconds (600)")
    arguments(parser)


def chosen_scenario(args: Namespace) -> tuple[Scenario, SampleSet]:
    """Return the scenario with the options applied."""
    base = scenario(args.scenario) if args.scenario else Scenario("a fleet", run=LONG_DEADLINE)
    if not args.scenario:
        base = replace(base, bundle=DEFAULT_BUNDLES.get(args.like or base.samples, base.bundle))
    options = {"samples": args.like, "devices": args.devices, "bundle": args.bundle}
    learned = {"quorum": args.quorum, "rounds": args.rounds, "shared": args.shared}
    learned |= {"downlink": args.downlink}
    settings = {"steps": args.steps, "rate": args.rate}
    given = {key: value for key, value in settings.items() if value is not None}
    learning = replace(
        base.run,
        settings={**base.run.settings, **given},
        **{key: value for key, value in learned.items() if value is not None},
    )
    chosen = replace(
        base, run=learning, **{key: value for key, value in options.items() if value is not None}
    )
    if args.bundle is not None:
        chosen = replace(chosen, bundle=bundle_at(args.bundle, Path.cwd(), "--bundle"))
    if args.privacy:
        chosen = replace(chosen, privacy=PrivacyFile.load(args.privacy).privacy)
    samples = sample_set(chosen.samples)
    if args.data:
        samples = samples.of_folder(args.data)
        if args.devices is None and not args.scenario:
            chosen = replace(chosen, devices=len(samples.samples))
    chosen = (
        chosen if args.scenario else chosen.first_days(args.days, samples, args.evaluation_days)
    )
    return _with_graphs(with_trial(chosen, args), args), samples


def _layers(text: str) -> tuple[str, ...]:
    """Parse ``--shared``: prefixes separated by commas; ``all`` and ``none`` are keywords.

    >>> _layers("lstm.,head.0"), _layers("all"), _layers("none")
    (('lstm.', 'head.0'), ('',), ())
    """
    words = {"all": ("",), "none": ()}
    return words.get(text, tuple(part for part in text.split(",") if part))
