import dataclasses
import inspect
import re

import pytest

from edge_sdk.protocol import messages, topics
from edge_sdk.protocol.messages import (
    CHUNKS_LIMIT,
    KINDS,
    RESERVED,
    ContentBody,
    KeysMessage,
    TaskMessage,
)


@pytest.mark.parametrize("cls", [*KINDS.values(), ContentBody], ids=lambda cls: cls.kind)
def test_a_message_is_frozen_and_has_slots(cls):
    assert dataclasses.is_dataclass(cls)
    assert cls.__dataclass_params__.frozen
    assert "__dict__" not in dir(cls)


@pytest.mark.parametrize("cls", [*KINDS.values(), ContentBody], ids=lambda cls: cls.kind)
def test_every_field_has_a_sentence_of_meaning(cls):
    lines = inspect.getsource(cls).splitlines()
    for f in dataclasses.fields(cls):
        (line,) = [x for x in lines if re.match(rf"    {f.name}: ", x)]
        assert "  # " in line, f"{cls.__name__}.{f.name} says nothing"


def test_each_kind_is_the_kind_of_its_class():
    assert all(cls.kind == kind for kind, cls in KINDS.items())
    assert all(re.fullmatch("[a-z]{1,16}", kind) for kind in {*KINDS, *RESERVED})


def test_reserved_kinds_are_not_built():
    assert not RESERVED & KINDS.keys()


def test_content_never_travels_by_itself():
    assert "content" not in KINDS


def test_lists_of_keys_belong_together():
    with pytest.raises(ValueError, match="same length"):
        KeysMessage(serial=1, sign=(bytes(32),), open=(), from_=(), until=(1,), min_wire=1)


def test_a_model_has_as_many_slots_as_a_body_may_have_chunks():
    assert topics.SLOTS_LIMIT == CHUNKS_LIMIT
    assert messages.BODY_LIMIT == CHUNKS_LIMIT * messages.CHUNK_LIMIT


def test_a_task_describes_its_content_wholly_or_not_at_all():
    plain = {"run": 1, "round": 2, "base": 1, "ask": "step", "spec": bytes(16)}
    content = {"digest": bytes(32), "size": 3, "chunk": 32768}
    assert TaskMessage(**plain).turn == (2, 0, 0)
    assert TaskMessage(**plain, **content, blob=b"abc").size == 3
    with pytest.raises(ValueError, match="belong together"):
        TaskMessage(**plain, size=3)
    with pytest.raises(ValueError, match="whole content body"):
        TaskMessage(**plain, **content, blob=b"ab")
    with pytest.raises(ValueError, match="whole content body"):
        TaskMessage(**plain, blob=b"ab")


def test_tasks_of_a_run_are_ordered_by_round_then_attempt_then_step():
    plain = {"run": 1, "base": 1, "ask": "step", "spec": bytes(16)}
    tasks = [
        TaskMessage(round=r, attempt=a, step=s, **plain)
        for r in (1, 2)
        for a in (0, 1)
        for s in (0, 9)
    ]
    assert sorted(tasks, key=lambda task: task.turn) == tasks
