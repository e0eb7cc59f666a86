"""``gridfed-witness`` as another organisation runs it: it cosigns no second log, and needs no aggregator."""

import os
import signal
import subprocess
import sys

import pytest

from aggregator.extensions.model_log.cosignatures import cosign, note_path, saved_note
from aggregator.extensions.model_log.log_export import verified
from aggregator.extensions.model_log.program import main
from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.model_log.signed_note import WitnessKey, read_note
from edge_sdk.protocol import keys
from tests.aggregator.extensions.audit.exported_log import ROOT, printed, write_log
from tests.aggregator.extensions.model_log.log_writer import ENDS, history

PUBLIC = [ENDS.signer.public]
WITNESS = keys.from_seed(b"w" * 32)


@pytest.fixture
def honest(tmp_path):
    return history(tmp_path / "honest.db", [b""] * 7)


@pytest.fixture
def split(tmp_path):
    """Three models as the others have them, then models of its own."""
    return history(tmp_path / "split.db", [b"", b"", b"", b"own", b"own", b"own", b"own"])


def test_a_witness_cosigns_what_continues_its_note_alone(honest, split):
    first = cosign(verified(honest[3], PUBLIC), None, "example.org", WITNESS, 1_790_000_000)
    key = WitnessKey("example.org", WITNESS.public)
    assert first.cosigned_at(key) == 1_790_000_000
    second = cosign(verified(honest[5], PUBLIC), first, "example.org", WITNESS, 1_790_000_001)
    assert second.checkpoint.size == 6
    for lines, reason in ((split[6], Reason.LOG_FORK), (honest[4], Reason.ROLLBACK)):
        with pytest.raises(Refused) as refused:
            cosign(verified(lines, PUBLIC), second, "example.org", WITNESS, 1_790_000_002)
        assert refused.value.reason is reason


# --- the program ----------------------------------------------------------------------------------


def arguments(folder, lines):
    write_log(folder, lines, PUBLIC[0])
    return [
        sys.executable, "-m", "aggregator.extensions.model_log", "cosign", "export.jsonl",
        "--public", "aggregator.pub", "--name", "example.org",
    ]  # fmt: skip


def call(folder, command):
    return printed(folder, *command[2:])


def test_the_witness_keeps_the_evidence_of_a_fork(tmp_path, honest, split):
    code, first = call(tmp_path, arguments(tmp_path, honest[4]))
    assert (code, first["models"]) == (0, 5)
    key = WitnessKey.parse(first["witness"])
    assert read_note(first["note"]).cosigned_at(key) is not None
    code, refused = call(tmp_path, arguments(tmp_path, split[6]))
    assert (code, refused["reason"]) == (1, "LOG_FORK")
    evidence = (tmp_path / refused["evidence"]).read_text("utf-8")
    assert evidence.count("gridfed-log/1/north/1\n") == 2
    assert call(tmp_path, arguments(tmp_path, honest[2]))[1]["reason"] == "ROLLBACK"
    code, again = call(tmp_path, arguments(tmp_path, honest[6]))
    assert (code, again["models"]) == (0, 7)
    note_path(tmp_path / "witness", "gridfed-log/1/north/1").write_text("lost", "utf-8")
    assert call(tmp_path, arguments(tmp_path, honest[6]))[1]["reason"] == "MALFORMED"


def test_kill_9_leaves_a_witness_that_still_refuses_the_other_log(tmp_path, honest, split):
    """Whenever the process dies: its note is absent or whole, and never of a shorter log than before."""
    call(tmp_path, arguments(tmp_path, honest[3]))
    size = 4
    for n, patience in enumerate((0.2, 0.5, 1.0, 2.0)):
        command = arguments(tmp_path, honest[min(4 + n, 6)])
        with subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
        ) as process:
            try:
                process.wait(patience)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
        note = saved_note(tmp_path / "witness", "gridfed-log/1/north/1")
        assert note.checkpoint.size >= size
        size = note.checkpoint.size
    assert call(tmp_path, arguments(tmp_path, split[6]))[1]["reason"] == "LOG_FORK"


def test_the_key_can_be_given_away_before_the_first_cosignature(tmp_path, honest):
    program = [sys.executable, "-m", "aggregator.extensions.model_log"]
    code, key = call(tmp_path, [*program, "key", "--name", "example.org"])
    assert code == 0
    assert call(tmp_path, [*program, "show"]) == (0, {"logs": [], "forks": []})
    _, cosigned = call(tmp_path, arguments(tmp_path, honest[2]))
    assert cosigned["witness"] == key["witness"]
    _, shown = call(tmp_path, [*program, "show"])
    root = verified(honest[2], PUBLIC).note.checkpoint.root.hex()
    assert shown == {
        "logs": [{"log": "gridfed-log/1/north/1", "models": 3, "root": root}],
        "forks": [],
    }


def test_wrong_arguments_end_with_a_sentence_and_make_no_key(tmp_path, honest, capsys):
    export = tmp_path / "export.jsonl"
    export.write_text("".join(f"{line}\n" for line in honest[0]), "utf-8")
    public = tmp_path / "aggregator.pub"
    keys.save_public(public, PUBLIC[0])
    key = tmp_path / "witness.key"
    common = ["--public", str(public), "--key", str(key), "--folder", str(tmp_path / "notes")]
    assert main(["cosign", str(export), *common, "--name", "two words"]) == 2
    assert "no spaces, no plus signs" in capsys.readouterr().err
    assert not key.exists()
    assert main(["cosign", str(tmp_path / "absent"), *common, "--name", "example.org"]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert not (tmp_path / "notes").exists()


def test_an_outsider_needs_one_package_and_no_part_that_opens_a_network_or_database(
    tmp_path, honest
):
    """What is imported by a whole run is little enough to be read by somebody who trusts nobody."""
    command = arguments(tmp_path, honest[2])[3:]
    code = (
        "import sys; from aggregator.extensions.model_log.program import main\n"
        f"assert main({command!r}) == 0\n"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "cryptography" in loaded
    absent = {"numpy", "onnxruntime", "torch", "paho", "prometheus_client", "sqlite3", "psycopg"}
    assert not loaded & absent
    assert not [
        name for name in loaded if name.startswith(("aggregator.config", "aggregator.daemon"))
    ]
