"""Check that a site's run fits below a parent's."""

from __future__ import annotations

from aggregator.config.parent import SITE_METHODS
from aggregator.config.sections import AggregatorConfig
from edge_sdk.app.settings import SettingsError


def check_parent(config: AggregatorConfig, enough: int) -> None:
    """Refuse a run that cannot follow a parent.

    Args:
        config: Configuration with one run.
        enough: Number of updates that suffice to close a round.

    Raises:
        SettingsError: The message names the key, its value and the remedy.
    """
    parent, run = config.parent, config.run
    if parent is None:
        return
    if run.method not in SITE_METHODS:
        why = f"{run.method!r} cannot follow a parent; methods of a site: {', '.join(SITE_METHODS)}"
        raise _wrong(config, "run.method", why, hint="use one of them, or remove [parent]")
    for key, is_set in (
        ("rounds", run.rounds is not None),
        ("rate_stages", bool(run.rate_stages)),
    ):
        if is_set:
            why = "expected none beside [parent], whose run decides how long the site's lasts"
            raise _wrong(config, f"run.{key}", why, hint="remove it")
    if enough < 2:
        key = "run.quorum" if run.min_updates is None else "run.min_updates"
        why = f"expected at least 2 beside [parent], got {enough}"
        hint = "a difference made from one device's update would be that device's"
        raise _wrong(config, key, why, hint=hint)
    if parent.fleet == config.fleet:
        why = f"{config.fleet!r} is this aggregator's own fleet; expected that of its parent"
        raise _wrong(config, "parent.fleet", why)


def _wrong(config: AggregatorConfig, key: str, why: str, *, hint: str = "") -> SettingsError:
    return SettingsError(f"{config.file.name}: {key}: {why}", hint=hint)
