"""Root and aggregator change their keys; a kill at any step leaves a fleet that goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aggregator.commands import main as cli
from aggregator.config import AggregatorConfig, bind
from aggregator.config.root_files import ARCHIVE, FORMER, NEXT
from aggregator.extensions.key_rotation.key_rotation import path_of_next
from aggregator.operations.run_setup import verified_run
from aggregator.operations.signing_keys import RunSetupError, signer
from aggregator.store.opener import open_store
from edge_sdk.errors import OK, USAGE
from edge_sdk.extensions.lifecycle.operator_commands import statement_signers
from edge_sdk.protocol import codec, envelope, keys, topics
from edge_sdk.protocol.envelope import ALL, ROOT, root_signers, unseal
from edge_sdk.protocol.messages import BundleMessage, KeysMessage
from edge_sdk.protocol.root_keys import RootKeys, read_root
from edge_sdk.protocol.statements import command_statement
from edge_sdk.session.key_ring import KeyRing

REPO = Path(__file__).parents[4]


class Fleet:
    """A fleet whose daemon is stopped, and a device that hears what it would publish."""

    def __init__(self, path):
        self.path, self.state = path, path.parent / "state"
        assert self("init", str(path)) == OK
        self.ring = KeyRing(read_root(self.state / "root.pub"))
        self.listen()

    def __call__(self, *words):
        return cli.main([*words])

    def rotate(self, *words):
        return self("rotate", *words, "--config", str(self.path))

    def keys(self, name, count=1):
        return [
            word
            for n in range(count)
            for word in ("--next", str(self.path.parent / f"{name}-{n}.key"))
        ]

    def listen(self):
        """Let the device follow what the database has; return the list of keys."""
        config = AggregatorConfig.load(self.path, {})
        with open_store(config.database, read_only=True) as store:
            announced = store.announcements.all()
        listed = self._read(announced, KeysMessage)
        self.ring = self.ring.accept(listed)
        self._read(announced, BundleMessage)
        return listed

    def _read(self, announced, cls):
        sealed = unseal(
            announced[topics.common("north", cls.kind)], kind=cls.kind, sender=ROOT, recipient=ALL,
            fleet="north", key_of=lambda sender, kid: self.ring.key(sender, kid, None),
            is_enough=lambda signers: self.ring.is_enough(cls.kind, signers),
        )  # fmt: skip
        message = codec.decode(cls, sealed.body)
        if cls is KeysMessage and message.roots:
            signed = root_signers(sealed, message.roots, recipient=ALL, fleet="north")
            assert len(signed) >= message.root_min
        return message

    def starts(self):
        """Return whether the daemon would start; else the hint that it gives."""
        config = AggregatorConfig.load(self.path, {})
        with open_store(config.database, read_only=True) as store:
            try:
                verified_run(bind(config), store, signer(config))
            except RunSetupError as error:
                return error.hint
        return True


@pytest.fixture
def fleet(workplace):
    return Fleet(workplace())


def test_a_command_that_destroys_is_signed_by_as_many_keys_of_the_root_as_its_threshold(
    fleet, capsys
):
    assert fleet.rotate("root", *fleet.keys("next", 3), "--threshold", "2") == OK
    files = [str(fleet.path.parent / f"next-{n}.key") for n in range(3)]
    both = ["--root-key", files[0], "--root-key", files[2]]
    assert fleet.rotate("root", "--finish", *both) == OK
    device = keys.from_seed(b"d" * 32)
    enrol = ("enrol", "meter-1", "--public", device.public.hex(), "--config", str(fleet.path))
    assert fleet(*enrol) == OK
    wipe = ("command", "meter-1", "wipe", "--config", str(fleet.path))
    for words, why in (
        (("--root-key", files[0]), "1 of its private keys are present, expected 2"),
        (("--root-key", str(fleet.state / "aggregator.key")), "0 of its private keys"),
        ((*both, "--days", "0"), "--days: expected 1 to 400"),
    ):
        capsys.readouterr()
        assert fleet(*wipe, *words) == USAGE
        assert why in capsys.readouterr().err
    assert fleet(*wipe, *both) == OK
    assert fleet("command", "meter-1", "report", "--config", str(fleet.path)) == OK
    config, root = AggregatorConfig.load(fleet.path, {}), read_root(fleet.state / "root.pub")
    with open_store(config.database) as store:
        signed, plain = store.commands.open("meter-1")
        ref = envelope.ref(envelope.digest(codec.encode(signed)))
        again = store.commands.reissue("meter-1", ref)
    assert (plain.op, plain.root, plain.until) == ("report", b"", None)
    assert (again.num, again.until, again.root) == (3, signed.until, signed.root)
    statement = command_statement("north", "meter-1", device.public, "wipe", signed.until)
    assert root.is_enough(statement_signers(statement, signed.root, root.keys))


def test_a_root_becomes_two_of_three_and_the_former_one_ends(fleet, capsys):
    before = fleet.ring.root
    assert fleet.rotate("root", *fleet.keys("next", 3), "--threshold", "2") == OK
    fleet.listen()
    root = read_root(fleet.state / "root.pub")
    assert fleet.ring.root == root
    assert (len(root.keys), root.threshold) == (3, 2)
    assert fleet.starts() is True
    files = [fleet.path.parent / f"next-{n}.key" for n in range(3)]
    both = ["--root-key", str(files[0]), "--root-key", str(files[2])]
    assert fleet("announce", str(fleet.path), *both) == USAGE  # the former root signs too
    assert "former root" in capsys.readouterr().err
    assert (
        fleet("announce", str(fleet.path), *both, "--root-key", str(fleet.state / "root.key")) == OK
    )
    assert fleet.listen().roots == root.keys
    assert fleet.rotate("root", "--finish", *both) == OK
    assert fleet.listen().roots == ()
    assert fleet.starts() is True
    assert not (fleet.state / FORMER).exists()
    assert (fleet.state / ARCHIVE).read_text().split() == [key.hex() for key in before.keys]
    assert fleet("announce", str(fleet.path), *both) == OK
    fleet.listen()
    assert fleet("announce", str(fleet.path), *both[:2]) == USAGE
    assert "1 of its private keys are present, expected 2" in capsys.readouterr().err


def test_a_bundle_of_the_former_root_is_opened_after_the_rotation(fleet):
    """The bundle `toy` was signed by the former root."""
    assert fleet.rotate("root") == OK
    fleet.listen()
    (fleet.state / "root.key").rename(fleet.state / "gone.key")
    assert fleet.rotate("root", "--finish") == OK
    assert fleet.starts() is True
    fleet.listen()


def test_the_aggregators_former_key_is_valid_for_the_overlap(fleet):
    former = signer(AggregatorConfig.load(fleet.path, {})).public
    assert fleet.rotate("aggregator", "--overlap", "3") == OK
    listed = fleet.listen()
    present = signer(AggregatorConfig.load(fleet.path, {})).public
    assert listed.sign == (present, former)
    assert round((listed.until[0] - listed.until[1]) / 86_400_000) == 397
    assert fleet.ring.online(listed.until[1] - 1) == (present, former)
    assert fleet.ring.online(listed.until[1]) == (present,)
    assert fleet.starts() is True
    assert (fleet.state / "aggregator.pub").read_text().strip() == present.hex()


def test_a_stolen_key_of_the_aggregator_ends_at_once(fleet):
    former = signer(AggregatorConfig.load(fleet.path, {})).public
    assert fleet.rotate("aggregator", "--overlap", "0") == OK
    assert former not in fleet.listen().sign


def test_every_rotation_is_in_the_audit_log(fleet, capsys):
    assert fleet.rotate("aggregator", "--why", "yearly") == OK
    assert fleet.rotate("root") == OK
    capsys.readouterr()
    assert fleet("audit-log", "show", "--config", str(fleet.path)) == OK
    out = capsys.readouterr().out
    assert out.count("rotate") >= 2
    assert "yearly" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("root", "--finish"), "no rotation waits"),
        (("root", "--threshold", "2"), "threshold from 1 to 1"),
        (("root", "--root-key", "absent.key"), "file not found"),
        (("aggregator", "--overlap", "401"), "expected 0 to 400"),
    ],
)
def test_a_rotation_that_cannot_succeed_is_refused_before_anything_changes(
    fleet, capsys, words, says
):
    before = (fleet.state / "root.pub").read_bytes()
    assert fleet.rotate(*words) == USAGE
    assert says in capsys.readouterr().err
    assert (fleet.state / "root.pub").read_bytes() == before
    assert not (fleet.state / NEXT).exists()
    assert fleet.starts() is True


def test_a_second_rotation_waits_for_the_end_of_the_first(fleet, capsys):
    assert fleet.rotate("root") == OK
    assert fleet.rotate("root", *fleet.keys("other")) == USAGE
    assert "still changing over" in capsys.readouterr().err


# --- roles ------------------------------------------------------------------------------------


def test_a_bundle_key_announces_without_the_root(workplace, capsys):
    path = workplace()
    key = keys.generate()
    keys.save_signing_key(path.parent / "bundle.key", key)
    keys.save_public(path.parent / "bundle.pub", key.public)
    path.write_text(path.read_text() + '\n[keys]\nbundle = ["bundle.pub"]\n')
    fleet = Fleet(path)
    before = fleet.listen()
    assert before.bundle == (key.public,)
    (fleet.state / "root.key").rename(fleet.path.parent / "offline.key")
    assert fleet("announce", str(path), "--bundle-key", str(path.parent / "bundle.key")) == OK
    assert fleet.listen() == before  # the list of the root stays as it was
    assert fleet.starts() is True
    keys.save_signing_key(path.parent / "other.key", keys.generate())
    assert fleet("announce", str(path), "--bundle-key", str(path.parent / "other.key")) == USAGE
    assert "the root has delegated bundles to" in capsys.readouterr().err


def test_the_model_key_is_listed_and_needed(workplace):
    path = workplace()
    key = keys.generate()
    keys.save_signing_key(path.parent / "model.key", key)
    path.write_text(path.read_text() + '\n[keys]\nmodel = "model.key"\n')
    fleet = Fleet(path)
    listed = fleet.listen()
    assert listed.model == (key.public,)
    assert set(listed.model) < set(listed.sign)
    assert fleet.starts() is True
    keys.save_signing_key(path.parent / "model.key", keys.generate())
    assert "announce" in fleet.starts()


# --- kill -9 ----------------------------------------------------------------------------------

KILLED = """
import os, signal, sys

at, seen, is_armed = int(sys.argv[1]), 0, False


def step(event, args):
    global seen
    changes = event in ("os.rename", "os.remove", "sqlite3.connect") or (
        event == "open" and isinstance(args[2], int) and args[2] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR)
    )
    if is_armed and changes:
        seen += 1
        if seen == at:
            os.kill(os.getpid(), signal.SIGKILL)


from aggregator.commands import announce, main as cli
from aggregator.extensions.key_rotation import command
sys.addaudithook(step)
is_armed = True
code = cli.main(sys.argv[2:])
print(seen)
sys.exit(code)
"""


def killed_at(fleet, at, *words):
    command = [sys.executable, "-c", KILLED, str(at), "rotate", *words, "--config", str(fleet.path)]
    return subprocess.run(
        command, check=False, cwd=fleet.path.parent, capture_output=True, timeout=120,
        env={"PYTHONPATH": str(REPO), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("what", ["root", "aggregator"])
def test_a_kill_at_any_step_leaves_a_fleet_that_goes_on_and_the_command_completes_it(
    workplace, what, capsys
):
    """At each change of a file the process is killed; then device and daemon are asked, and the command repeated."""
    fleet, at, killed = Fleet(workplace()), 1, 0
    while True:
        before = fleet.ring.root, signer(AggregatorConfig.load(fleet.path, {})).public
        words = fleet.keys(f"next-{at}") if what == "root" else []
        ended = killed_at(fleet, at, what, *words)
        if ended.returncode == OK:
            break
        assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
        killed += 1
        fleet.listen()
        assert fleet.starts() is True
        again = fleet.rotate(what, *words)
        if again != OK:  # it was complete: nothing was left to do
            assert "still changing over" in capsys.readouterr().err
        fleet.listen()
        assert fleet.starts() is True
        assert not (fleet.state / NEXT).exists()
        present = signer(AggregatorConfig.load(fleet.path, {})).public
        if what == "root":
            assert fleet.ring.root == read_root(fleet.state / "root.pub") != before[0]
            _finish(fleet, at, capsys)
        else:
            assert present != before[1]
            assert not path_of_next(fleet.state / "aggregator.key").exists()
        at += 3  # every third change: a process takes a second to start
    assert killed > 3


def _finish(fleet, at, capsys):
    """Finish, so that the next rotation can begin; killed on the way as well."""
    key = fleet.path.parent / f"next-{at}-0.key"
    words = ("root", "--finish", "--root-key", str(key))
    ended = killed_at(fleet, at, *words)
    fleet.listen()
    assert fleet.starts() is True
    if ended.returncode != OK:
        again = fleet.rotate(*words)
        assert again == OK or "no rotation waits" in capsys.readouterr().err
    fleet.listen()
    assert fleet.ring.root == read_root(fleet.state / "root.pub")
    (fleet.state / "root.key").write_bytes(key.read_bytes())


def test_a_root_of_several_is_named_by_the_command(fleet, capsys):
    assert fleet.rotate("root", *fleet.keys("next", 2), "--threshold", "2") == OK
    root = read_root(fleet.state / "root.pub")
    assert isinstance(root, RootKeys)
    assert root.name in capsys.readouterr().out
