"""A backup is put back while devices know more: the fleet goes on, and nothing counts twice."""

from __future__ import annotations

import pytest

from aggregator.commands import main as cli
from aggregator.operations.run_setup import RUN_LEAP
from edge_sdk.errors import TEMPORARY, USAGE


def backed_up(one):
    """Let a fleet work, and copy its database at version 2."""
    one.start_all()
    one.until(lambda: one.version >= 2)
    copy = str(one.folder / "copy.db")
    assert cli.main(["backup", copy, "--config", str(one.config)]) == 0
    return copy


def restored(one, copy):
    if one.daemon is not None:
        one.kill_daemon()
    assert cli.main(["restore", copy, "--config", str(one.config)]) == 0
    one.start_daemon()


def updates(one, run):
    return [e.event for e in one.daemon._store.journal.entries(run) if hasattr(e.event, "vector")]


def accepted(one):
    return sum(client.status()["counts"].get("accepted", 0) for client in one.fleet.clients)


def test_devices_newer_than_the_backup_say_hello_and_continue(world):
    one = world(run={"quorum": 3})
    copy = backed_up(one)
    one.until(lambda: one.version >= 4)
    one.die(1)
    one.start(1)  # a life that the backup does not know
    one.until(lambda: one.version >= 6)
    one.until(lambda: one.clients[1]._session.outbox.entries)  # and a release that nobody recorded
    one.kill_daemon()
    owed = {entry.key for entry in one.clients[1]._session.outbox.entries}
    before = accepted(one)
    restored(one, copy)
    run = 1 + RUN_LEAP
    assert one.daemon._engine.number == run
    one.until(lambda: one.version >= 3)
    counts = one.daemon._ingress.counts
    assert counts["SAY_HELLO"] >= 1
    assert counts["WRONG_RUN"] >= 1, "what was made for the lost rounds is refused, and settled"
    one.until(lambda: not owed & {e.key for e in one.clients[1]._session.outbox.entries})
    used = updates(one, run)
    assert len({(u.sender, u.round) for u in used}) == len(used)
    assert len({u.vector.tobytes() for u in used}) == len(used)
    assert accepted(one) - before <= len(used)
    assert all(
        set(v.report["cohort"]) == {"home-0", "home-1", "home-2"}
        for v in one.daemon._store.runs.versions(run)
    )


def test_a_run_started_after_the_backup_is_abandoned(world):
    one = world(run={"quorum": 3})
    copy = backed_up(one)
    one.kill_daemon()
    assert cli.main(["announce", str(one.config), "--fresh"]) == 0
    one.start_daemon()
    one.until(lambda: one.version >= 4)
    assert all(client._session.seen.run == 2 for client in one.fleet.clients)
    restored(one, copy)
    one.until(lambda: one.version >= 2)
    assert all(client._session.seen.run == 1 + RUN_LEAP for client in one.fleet.clients)


def test_a_command_after_a_restore_has_a_new_number(world):
    one = world(run={"quorum": 2})
    copy = backed_up(one)
    for op in ("stop", "resume"):
        told = ["command", "home-0", op, "--config", str(one.config)]
        assert cli.main(told) == 0
        one.until(lambda op=op: bool(one.clients[0].why_stopped) == (op == "stop"))
    restored(one, copy)
    assert cli.main(["command", "home-0", "stop", "--config", str(one.config)]) == 0
    one.until(lambda: one.clients[0].why_stopped == "command")


def test_restore_is_refused_while_the_daemon_runs(world, capsys):
    one = world(run={"quorum": 3})
    copy = backed_up(one)
    files = sorted(path.name for path in one.daemon.config.state.iterdir())
    capsys.readouterr()
    assert cli.main(["restore", copy, "--config", str(one.config)]) == TEMPORARY
    assert "another process holds this database" in capsys.readouterr().err
    assert sorted(path.name for path in one.daemon.config.state.iterdir()) == files
    one.until(lambda: one.version >= 4)


def test_a_backup_of_another_fleet_is_refused(world, capsys):
    one = world()
    one.start_daemon()
    state = one.daemon.config.state
    one.kill_daemon()
    strange = one.folder / "strange.db"
    strange.write_bytes(b"not a database")
    missing, same = one.folder / "missing.db", state / "aggregator.db"
    for path, says in (
        (missing, "file not found"),
        (same, "is the database itself"),
        (strange, "not a database"),
    ):
        capsys.readouterr()
        code = cli.main(["restore", str(path), "--config", str(one.config)])
        assert code in (1, USAGE)
        assert says in capsys.readouterr().err
    (state / "root.pub").rename(state / "elsewhere.pub")
    copy = one.folder / "copy.db"
    assert cli.main(["backup", str(copy), "--config", str(one.config)]) == 0
    capsys.readouterr()
    assert cli.main(["restore", str(copy), "--config", str(one.config)]) == USAGE
    assert "put root.pub and aggregator.key back" in capsys.readouterr().err


@pytest.mark.parametrize("is_lost", [False, True])
def test_the_replaced_database_is_kept(world, capsys, is_lost):
    one = world(run={"quorum": 3})
    copy = backed_up(one)
    one.until(lambda: one.version >= 4)
    state = one.daemon.config.state
    one.kill_daemon()
    if is_lost:
        for path in state.glob("aggregator.db*"):
            path.unlink()
    capsys.readouterr()
    restored(one, copy)
    kept = list(state.glob("aggregator-before-*.db"))
    assert len(kept) == (0 if is_lost else 1)
    assert "run 1, version 2, restored" in capsys.readouterr().out
    one.until(lambda: one.version >= 2)
