"""What is kept of a round that was learned: the half's state, and the one answer, sealed."""

from __future__ import annotations

from typing import Any

from edge_sdk.config import Config
from edge_sdk.session.announcements import NewestAnnouncements
from edge_sdk.store.store import LearnedState
from edge_sdk.training.model_runtime import ModelRuntime
from edge_sdk.wire.contract.method import CONTRACTS, Task, Update
from edge_sdk.wire.keys import Signer
from edge_sdk.wire.protocol import messages as m
from edge_sdk.wire.protocol.codec import encode, pack_tensor
from edge_sdk.wire.protocol.envelope import AGGREGATOR, digest, prove
from edge_sdk.wire.protocol.outbox import OutboxEntry, UplinkCounters

OWN = 2**40
"""Rounds that a device sets itself are numbered from here: no server gets that far."""


def record(
    state: Any,  # noqa: ANN401 - the half's own type
    task: Task,
    learner: ModelRuntime,
    seen: NewestAnnouncements,
) -> LearnedState:
    """Describe what is to be saved; a round set by ourselves does not count as the run's.

    Args:
        state: What the half has learned.
        task: The task that it answered so.
        learner: The bundle at work.
        seen: The run, and what of it was learned before.
    """
    is_ours, scale = task.round >= OWN, learner.scale
    turn = (seen.attempt, seen.step) if is_ours else (task.attempt, task.step)
    return LearnedState(
        run=seen.run,
        round=seen.round if is_ours else task.round,
        version=seen.version if is_ours else task.base,
        spec=learner.spec.whole_digest,
        leaves={
            "half": state.arrays(),
            "scale": [scale.low, scale.high] if scale else [],
            "turn": list(turn),
            "noise": learner.mechanism.origin,
        },
    )


def sealed(
    update: Update,
    task: Task,
    numbers: UplinkCounters,
    *,
    run: int,
    learner: ModelRuntime,
    config: Config,
    signer: Signer,
) -> OutboxEntry:
    """Number, encode and sign an update: from here on its bytes never change.

    Args:
        update: As it may leave.
        task: Which it answers.
        numbers: The last number used, and what was spent with this answer.
        run: Which the task belongs to.
        learner: The bundle at work.
        config: Says who we are.
        signer: Signs for us.
    """
    ask = CONTRACTS[learner.role.method][task.ask]
    declared = {"n", *(number.name for number in ask.report)}  # any other number stays here
    values = {name: value for name, value in update.values.items() if name in declared}
    said = m.UpdateMessage(
        run=run,
        round=update.round,
        base=update.base,
        life=numbers.life,
        seq=numbers.seq + 1,
        spent=numbers.spent,
        spec=learner.spec.digest,
        part=ask.up.value,
        enc=ask.enc,
        n=int(values.pop("n", 0)),
        vals={name: value for name, value in values.items() if abs(value) <= m.FLOAT_LIMIT},
        check=update.check or None,
        blob=pack_tensor(update.vector, ask.enc),
    )
    body = encode(said)
    proof = prove(
        digest(body),
        kind=said.kind,
        sender=config.id,
        recipient=AGGREGATOR,
        fleet=config.fleet,
        signer=signer,
    )
    return OutboxEntry(
        life=said.life,
        seq=said.seq,
        body=body,
        proof=proof,
        run=said.run,
        round=said.round,
        base=said.base,
        spec=said.spec,
        spent=said.spent,
    )
