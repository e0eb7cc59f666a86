"""Dead letters on disk: bounded, for the owner only, readable after a restart, and the commands."""

import json
import stat

import pytest

from aggregator.commands import main as cli
from aggregator.ingress import dead_letters
from aggregator.ingress.dead_letters import (
    DIGESTS,
    MOST,
    PER_SITE,
    DeadLetters,
    Letter,
    arrival_digest,
)
from aggregator.operations.control_queue import waiting
from aggregator.store.opener import open_store


def letter(number, site="KeyError rule.py:1", payload=b"bytes", **more):
    digest = arrival_digest("topic", payload + str(number).encode()).hex()
    name = f"{number:013d}-000000"
    return Letter(name, number, "update", site, "KeyError: 'w'", payload=payload, digests=(digest,))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "dead-letters"


def test_one_place_in_the_code_has_few_letters_and_all_their_digests(folder):
    letters = DeadLetters(folder)
    kept = [letters.keep(letter(number)) for number in range(20)]
    assert kept == [True] * PER_SITE + [False] * (20 - PER_SITE)
    again = DeadLetters(folder)
    assert again.count == PER_SITE
    assert all(again.holds("topic", b"bytes" + str(n).encode()) for n in range(20))


def test_the_oldest_files_go_and_their_digests_stay(folder, monkeypatch):
    monkeypatch.setattr(dead_letters, "MOST_BYTES", 10_000)
    letters = DeadLetters(folder)
    for number in range(MOST + 5):
        letters.keep(letter(number, site=f"KeyError rule.py:{number}"))
    assert sum(path.stat().st_size for path in folder.glob("*.json")) <= 10_000
    assert 1 <= letters.count <= MOST
    assert letters.letters()[-1].at == MOST + 4
    assert letters.holds("topic", b"bytes0")


def test_the_list_of_digests_is_bounded_in_memory_and_on_disk(folder):
    letters = DeadLetters(folder)
    for number in range(2 * DIGESTS + 10):
        letters._remember([f"{number:064x}"])
    lines = (folder / "digests").read_text("ascii").split()
    assert len(lines) <= 2 * DIGESTS
    again = DeadLetters(folder)
    assert list(again._digests) == list(letters._digests)
    assert len(again._digests) == DIGESTS


def test_only_the_owner_reads_them(folder):
    letters = DeadLetters(folder)
    letters.keep(letter(1))
    letters.halt("", "deadline: KeyError")
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_what_is_no_letter_is_passed_over(folder):
    letters = DeadLetters(folder)
    letters.keep(letter(1))
    (folder / "2-x.json").write_text("{", "utf-8")
    (folder / "3-x.json").write_text('{"payload": 3, "proof": ""}', "utf-8")
    (folder / "digests").write_bytes(b"\xff\xfe")
    again = DeadLetters(folder)
    assert [one.name for one in again.letters()] == [letter(1).name]
    assert not again.holds("topic", b"bytes1")


def test_a_disk_that_takes_nothing_is_no_reason_to_stop(tmp_path):
    (tmp_path / "file").write_text("not a folder", "utf-8")
    letters = DeadLetters(tmp_path / "file" / "dead-letters")
    assert not letters.keep(letter(1))
    assert letters.holds("topic", b"bytes1")  # for as long as the process lives


def called(config, capsys, *words):
    code = cli.main(["dead-letters", *words, "--config", str(config.file), "--json"])
    out = capsys.readouterr().out
    return code, json.loads(out) if out else {}


def test_the_commands_list_show_retry_and_clear(founded, capsys):
    config = founded()
    letters = DeadLetters(config.state / "dead-letters")
    letters.keep(letter(1))
    letters.keep(letter(2))
    first = letter(1).name
    assert [one["name"] for one in called(config, capsys, "list")[1]["dead_letters"]] == [
        first,
        letter(2).name,
    ]
    assert called(config, capsys, "show", first)[1]["payload"] == b"bytes".hex()
    assert called(config, capsys, "show", "none")[0] == 2
    assert called(config, capsys, "retry", first)[1] == {"retried": [first]}
    assert [order.do for _, order in waiting(config.inbox)] == ["retry"]
    assert called(config, capsys, "clear", first)[1] == {"cleared": first, "count": 1}
    with open_store(config.database):  # as a running daemon holds it
        assert called(config, capsys, "clear")[1] == {"cleared": "_all"}
    assert [order.do for _, order in waiting(config.inbox)] == ["retry", "clear"]
    assert [one["name"] for one in called(config, capsys, "list")[1]["dead_letters"]] == [
        letter(2).name
    ]
