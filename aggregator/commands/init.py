"""Make keys, begin a run, and sign its announcements.

A configuration that does not exist yet is written first: with the values of the options, of the
person at the terminal, or with defaults. A new fleet forecasts tomorrow's profile; with --robust, one
step ahead, by a model that a minority of hostile devices cannot move without bound.

Copy root.pub to every device. Then move root.key offline: the daemon does not need it. Run
again, it keeps every existing file.

  gridfed-aggregator init aggregator.toml
  gridfed-aggregator init aggregator.toml --kind charger --fleet east --yes
  gridfed-aggregator init aggregator.toml --robust --quorum 16 --yes
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from aggregator.commands import announce
from aggregator.commands.announce import sign_announcements
from aggregator.config import AggregatorConfig, bind
from edge_sdk.app.cli import CommandResult
from edge_sdk.app.permissions import make_private_folder
from edge_sdk.app.wizard import Wizard, write_new

# rule of a new robust fleet: among the rules that bound a minority, without a cost where all are honest
RULE = "centred_clipping"

# shipped bundles of each kind of device, which need nothing but its own readings: tomorrow's profile,
# and one step ahead
BUNDLES = {
    "meter": ("load-day-1", "load-week-1"),
    "charger": ("chargers-day", "chargers-week-1"),
    "station": ("cells-day", "cells-week-1"),
}

PROFILES = """\
bundle = "{bundle}"
method = "analytic"             # three rounds, each the exact sum of all devices: docs/analytic.md
# A sum has no rule: one hostile device can move the model, and a device that adds noise of its own
# cannot take part. `init --robust` writes a fleet with a rule, which forecasts one step ahead.
"""
ROBUST = """\
bundle = "{bundle}"
method = "fedadam"              # docs/methods.md compares the methods
rule = {rule}    # tolerates a minority of hostile devices: docs/rules.md
"""


def add_new_config_arguments(parser: ArgumentParser) -> None:
    """Add the values of a file that does not exist yet."""
    new = parser.add_argument_group("for a configuration that does not exist yet")
    new.add_argument("--kind", choices=tuple(BUNDLES), help="kind of the fleet's devices (meter)")
    new.add_argument("--fleet", help="name of the fleet (north)")
    new.add_argument("--broker", metavar="URL", help="the fleet's broker (auto)")
    new.add_argument("--quorum", type=int, help="devices that close a round at once (3)")
    new.add_argument(
        "--robust", action="store_true", help="a rule against hostile devices, one step ahead"
    )
    new.add_argument("--yes", action="store_true", help="ask nothing; take the defaults")


def is_wanted(args: Namespace) -> bool:
    """Return whether to write a missing configuration: an option is given, or stdin is a terminal."""
    asked = (args.kind, args.fleet, args.broker, args.quorum)
    return (
        args.yes
        or args.robust
        or any(x is not None for x in asked)
        or Wizard.of(accept_defaults=False).is_interactive
    )


def write_config(path: Path, args: Namespace) -> str:
    """Write the configuration, once it is valid; return the choices and their reasons.

    Raises:
        Failure: A value is invalid, or the file cannot be written.
    """
    wizard = Wizard.of(accept_defaults=args.yes)
    kind = wizard.choice(args.kind, "kind of devices", tuple(BUNDLES), "meter")
    fleet = wizard.value(args.fleet, "name of the fleet", "north")
    broker = wizard.value(args.broker, "broker: auto, or an address", "auto")
    given = None if args.quorum is None else str(args.quorum)
    quorum = wizard.value(given, "devices that close a round", "3")
    text = written(kind, fleet, broker, quorum, is_robust=args.robust)
    write_new(path, text, lambda new: bind(AggregatorConfig.load(new, {})))
    return f"{path}: {chosen_rule(quorum) if args.robust else NO_RULE}"


def written(kind: str, fleet: str, broker: str, quorum: str, *, is_robust: bool = False) -> str:
    """Return the text of a configuration."""
    words = {"bundle": BUNDLES[kind][is_robust], "rule": rule_text(quorum)}
    learning = (ROBUST if is_robust else PROFILES).format(**words)
    files = (
        'ca_file = "broker-ca.pem"       # authority that signed the broker\'s certificate\n'
        'cert_file = "aggregator.pem"    # certificate of this aggregator\n'
        'key_file = "aggregator-tls.key"\n'
        if broker.startswith("mqtts:")
        else '# For a broker on another machine: "mqtts://host:8883" with ca_file, cert_file and key_file.\n'
    )
    return f"""\
# The aggregator of a fleet of {kind}s. Paths are relative to this file's folder.
# All keys: docs/configuration.md
fleet = {json.dumps(fleet)}
state = "aggregator-state"      # folder for the database, the keys and other persistent files

[broker]
url = {json.dumps(broker)}
{files}
[http]
listen = "127.0.0.1:9464"       # status page and metrics; "off" disables them

[run]
{learning}quorum = {quorum}                      # devices that close a round at once
min_updates = {_least(quorum)}                 # devices that suffice at the deadline
deadline = "15m"

# The load of a feeder needs no forecast of a device, but [sums] of masked numbers: docs/sums.md.
"""


def rule_text(quorum: str) -> str:
    """Return the rule of a new fleet, as a TOML table; ``f`` is the largest that the smallest round tolerates.

    >>> rule_text("3"), rule_text("10")
    ('{ name = "centred_clipping" }', '{ name = "centred_clipping", f = 2 }')
    """
    f = (int(_least(quorum)) - 1) // 2
    return f'{{ name = "{RULE}"{f", f = {f}" * bool(f)} }}'


NO_RULE = (
    "tomorrow's profile by exact sums: one hostile device can move the model, and a device that adds noise of "
    "its own cannot take part; --robust writes a fleet with a rule, one step ahead (docs/rules.md)"
)


def chosen_rule(quorum: str) -> str:
    """Return a sentence about the rule of a new fleet, and why it is not the mean.

    >>> print(chosen_rule("3").partition(":")[0])
    rule centred_clipping
    """
    least = _least(quorum)
    f = (int(least) - 1) // 2
    few = f"a round of {least} answers, the fewest that close one, tolerates {f or 'no'} Byzantine devices"
    more = "" if f else "; it takes a quorum of 5 to tolerate one in every round"
    return (
        f"rule {RULE}: a minority of broken or hostile devices cannot move the model without bound, as "
        f"it could with the mean, and an honest fleet loses nothing measurable (docs/rules.md); {few}{more}"
    )


def _least(quorum: str) -> str:
    """Return half of the quorum, at least one.

    >>> _least("3"), _least("1"), _least("many")
    ('2', '1', '1')
    """
    return str(max(1, (int(quorum) + 1) // 2)) if quorum.isdecimal() else "1"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``announce``, and the values of a new configuration."""
    announce.add_arguments(parser)
    add_new_config_arguments(parser)


def run(args: Namespace) -> CommandResult:
    """Create missing files, begin the run, and report the files that devices need."""
    path = Path(args.config)
    chosen = ""
    if not path.exists() and is_wanted(args):
        chosen = write_config(path, args)
    config = AggregatorConfig.load(args.config)
    make_private_folder(config.state)
    done = sign_announcements(args, config)
    if not chosen:
        return done
    return CommandResult({**done.data, "chosen": chosen}, f"{chosen}\n{done.text}")
