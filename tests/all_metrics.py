"""The metrics of a daemon that has every extension."""


def all_metrics():
    """Return them in one registry."""
    from aggregator.config import AggregatorConfig  # noqa: PLC0415 - as below
    from aggregator.metrics import Metrics  # noqa: PLC0415 - of the extra aggregator

    own = Metrics()
    for entry in AggregatorConfig.index.values():
        if (register := entry.load("metrics")) is not None:
            register(own.registry)
    return own
