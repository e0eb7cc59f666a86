"""Create this site's key for its parent's fleet, and print the line that the parent's operator needs.

The line has the site's id, the public key, and a proof that this site holds the private key, as
`gridfed-edge enrol` prints it for a device. The private key never leaves this machine. An existing
key is kept.

  gridfed-aggregator join substation.toml
"""

from __future__ import annotations

from argparse import Namespace

from aggregator.commands.arguments import CommandError, add_config
from aggregator.config import AggregatorConfig
from aggregator.extensions.tree.session_config import enrol_site
from edge_sdk.app.cli import CommandResult

add_arguments = add_config


def run(args: Namespace) -> CommandResult:
    """Create the key, and return the operator's line."""
    config = AggregatorConfig.load(args.config)
    parent = config.section("parent")
    if parent is None:
        raise CommandError(f"{config.file.name}: parent: missing; join needs the section [parent]")
    found = enrol_site(config, parent)
    made = "created a key" if found["is_new"] else "this site has a key already"
    line = f"{found['id']},{found['public']},{found['proof']}"
    text = "\n".join((f"{made}: {found['key']}", "give this line to the parent's operator:", line))
    return CommandResult(found, text)
