"""Solve the fleet's model from the newest statistic of every device.

A statistic is a sum over windows, so the fleet's is the sum over devices: it depends neither on the
order of arrival nor on lateness, and a newer statistic of a device replaces its older one. The first
round computes the constants that standardise features, from sums that its statistics contain; every
later one re-weighs the windows by the residuals of the model before it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from aggregator.extensions.analytic.fleet import AnalyticFleet, Statistics
from aggregator.extensions.analytic.profile_fleet import ProfileFleet, profile_fleet
from aggregator.extensions.analytic.settings import Analytic, fault_of
from aggregator.extensions.analytic.summed_fleet import SummedFleet
from aggregator.methods.base import round_machine
from aggregator.methods.base.quorum import latest_update_hooks
from aggregator.methods.base.round_machine import RoundHooks, published
from aggregator.methods.base.types import Method, Setup, has_no_use
from aggregator.rules import TooFewRows
from edge_sdk.app.schema import SchemaError
from edge_sdk.extensions.analytic.profile_section import ProfileSection
from edge_sdk.protocol.contract import method

Fleet = AnalyticFleet | ProfileFleet


def analytic(setup: Setup) -> method.Half[Statistics]:
    """Return the server half.

    Raises:
        SchemaError: A rule where statistics are added, or a setting that the method does not use.
    """
    settings: Analytic = setup.settings
    has_no_use(setup, "weighting", "share")
    if settings.combine == "sum":
        has_no_use(setup, "rule")
    fleet = fleet_of(setup)
    rounds = replace(setup.rounds, limit=fleet.rounds(setup.rounds.limit, settings.passes))
    hooks = replace(latest_update_hooks(rounds, fleet.tasks, fleet.outcome), counts=fleet.counts)

    step = partial(_apply, fleet, hooks)
    return method.Half(fleet.begun, step, lambda state: {"p": published(state.w)})


def _apply(
    fleet: Fleet, hooks: RoundHooks[Statistics], state: Statistics, event: method.Event
) -> tuple[Statistics, method.Effects]:
    if isinstance(event, method.Played) and isinstance(fleet, SummedFleet):
        return fleet.played(hooks, state, event)
    if isinstance(event, method.Unlearned):
        return _unlearned(state, event.client, fleet, hooks.rounds.limit or 0)
    if (
        isinstance(event, method.Update)
        and state.is_open
        and not fleet.fits(event.base, state.version)
    ):
        return state, fleet.tasks(state, [event.sender])
    limit = (hooks.rounds.limit or 0) + state.more
    hooks = replace(hooks, rounds=replace(hooks.rounds, limit=limit))
    return round_machine.apply(hooks, state, event)


def fleet_of(setup: Setup) -> Fleet:
    """Return the inputs of a fleet's solution; raise SchemaError for a bundle that is not in closed form."""
    if setup.analytic is None or setup.spec is None:
        raise SchemaError("run.bundle", "a model in closed form, such as load-analytic")
    if isinstance(setup.analytic, ProfileSection):
        return profile_fleet(setup)
    shape = next(one.shape for one in setup.spec.layers if one.name == "coefficients")
    rule = setup.rule if setup.settings.combine == "votes" else None
    kind = SummedFleet if setup.settings.contract else AnalyticFleet
    return kind(setup.analytic, shape[0], rule, setup.settings.deviation)


def _unlearned(
    state: Statistics, client: str, fleet: Fleet, limit: int
) -> tuple[Statistics, method.Effects]:
    """Remove a client's statistic; after the run, also solve and publish the model without it.

    In an open round the next model is without it; if that round is the last, one more follows,
    after which no device is drawn towards a vector that contains the client's windows. Sums are taken in
    order of name over what is held, so they have the bits of a fleet that never had this client.
    """
    if client not in state.held and client not in state.quorum.arrived:
        return state, ()
    state = replace(
        state,
        w=fleet.cleared(state),
        held={name: one for name, one in state.held.items() if name != client},
        losses={name: one for name, one in state.losses.items() if name != client},
        others={},  # they contain its windows
        quorum=replace(
            state.quorum,
            arrived={name: base for name, base in state.quorum.arrived.items() if name != client},
        ),
    )
    if state.is_open:
        is_last = state.version + 1 >= limit + state.more
        return replace(state, more=state.more + is_last), ()
    try:
        w, memory = fleet.moved(state) if state.held else (fleet.forgotten(state), state.memory)
    except TooFewRows:
        w, memory = fleet.forgotten(state), state.memory
    report = {"unlearned": client, **fleet.report(state), "cohort": [], "stop": True}
    state = replace(state, w=w, memory=memory, round=state.round + 1, version=state.version + 1)
    return state, (method.Closed(state.round, state.version, moved=True, report=report),)


# the server half, its settings, and the check of a received statistic
ANALYTIC = Method(Analytic, analytic, fault=fault_of)
