"""What tells two processes from one that is slow, replayed or restored."""

from hypothesis import given
from hypothesis import strategies as st

from aggregator.ingress.update_admission import MEMORY, SIGNS, CloneDetector


def test_two_processes_give_a_sign_for_every_life():
    twins, told = CloneDetector(), []
    for life in range(2, 2 + SIGNS):
        twins.greeted("m", life=life, spent=10 * life)
        told.append(twins.outlived("m", life=life - 1, spent=10 * life + 1, now=float(life)))
    assert told == list(range(1, SIGNS + 1))


def test_a_restored_image_gives_one_sign_however_much_is_replayed():
    twins = CloneDetector()
    twins.greeted("m", life=6, spent=18)
    told = [
        twins.outlived("m", life=life, spent=spent, now=1.0)
        for life in (3, 4, 5)
        for spent in range(10, 26)
    ]
    assert sum(told) == 1
    twins.greeted("m", life=7, spent=26)
    assert not any(twins.outlived("m", life=5, spent=spent, now=2.0) for spent in range(27))


def test_signs_are_forgotten_after_a_week_and_after_a_judgement():
    twins = CloneDetector()
    for life, now in ((2, 0.0), (3, MEMORY)):
        twins.greeted("m", life=life, spent=0)
        assert twins.outlived("m", life=1, spent=1, now=now) == 1
    twins.forget("m")
    assert twins.outlived("m", life=1, spent=9, now=MEMORY) == 0


def test_devices_are_kept_apart():
    twins = CloneDetector()
    twins.greeted("a", life=2, spent=0)
    twins.greeted("b", life=2, spent=9)
    assert twins.outlived("b", life=1, spent=5, now=0.0) == 0
    assert twins.outlived("a", life=1, spent=5, now=0.0) == 1


@given(st.lists(st.booleans(), max_size=40), st.randoms(use_true_random=False))
def test_one_process_with_one_store_gives_no_sign_in_any_order_of_arrival(steps, random):
    """Releases and restarts of an honest process; what it sends arrives late, twice and mixed."""
    life, spent, sent = 1, 0, [("hello", 1, 0)]
    for is_release in steps:
        if is_release:
            spent += 1
        else:
            life += 1
        sent.append(("release" if is_release else "hello", life, spent))
    arriving = [*sent, *random.sample(sent, len(sent))]
    random.shuffle(arriving)
    twins, top = CloneDetector(), 0
    for kind, of, count in arriving:
        if kind == "hello" and of > top:  # an older one is answered with the floor
            twins.greeted("m", life=of, spent=count)
            top = of
        elif kind == "release":
            assert twins.outlived("m", life=of, spent=count, now=0.0) == 0
