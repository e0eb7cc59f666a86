"""The aggregator's configuration: its sections, and their binding to objects."""

from aggregator.config.binding import (
    BoundRun,
    answer_size,
    bind,
    broker_of,
    config_schedule,
    renamed_settings,
    root_of,
    settings_of,
)
from aggregator.config.bundle_registry import registry_of
from aggregator.config.sections import (
    PREFIX,
    RENAMED,
    AdmissionSection,
    AggregatorConfig,
    RetentionSection,
    RunSection,
    load_with_origins,
)

__all__ = [
    "PREFIX",
    "RENAMED",
    "AdmissionSection",
    "AggregatorConfig",
    "BoundRun",
    "RetentionSection",
    "RunSection",
    "answer_size",
    "bind",
    "broker_of",
    "config_schedule",
    "load_with_origins",
    "registry_of",
    "renamed_settings",
    "root_of",
    "settings_of",
]
