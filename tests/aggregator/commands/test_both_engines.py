"""Every command that opens the database says the same with ``store.url`` as with the file.

The folders are equal, keys included, so the outputs are equal too, but for the place of the database, its
size and the moment.
"""

import json
import re
import shutil
import sqlite3

import pytest

from aggregator.commands import main as cli
from aggregator.store.dialect import DatabaseUrl
from edge_sdk.protocol import keys
from tests.postgres_server import postgres_server

__all__ = ["postgres_server"]

URL = "GRIDFED_AGGREGATOR_STORE__URL"
PUBLIC = {
    name: keys.from_seed(name.encode().ljust(32)).public.hex() for name in ("m-1", "m-2", "m-3")
}
SETTING_UP = (
    ("init",),
    ("enrol", "m-1", "--public", PUBLIC["m-1"]),
    ("enrol", "m-2", "--public", PUBLIC["m-2"], "--label", "area=north"),
)
READING = (
    ("list", "--json"),
    ("status", "--json"),
    ("audit", "--all", "--json"),
    ("check-config", "--json"),
    ("broker", "access", "--json"),
    ("bundle", "list", "--json"),
    ("rollout", "status", "--json"),
    ("dead-letters", "list", "--json"),
    ("audit-log", "show", "--last", "0", "--json"),
    ("audit-log", "verify", "--json"),
)
WRITING = (
    ("enrol", "m-3", "--public", PUBLIC["m-3"], "--json"),
    ("label", "area=south", "m-1", "--json"),
    ("command", "m-1", "report", "--json"),
    ("revoke", "m-2", "--why", "sold", "--json"),
    ("announce", "--fresh", "--json"),
)
REFUSED = (
    ("enrol", "m-9", "--public", PUBLIC["m-1"]),
    ("revoke", "m-9"),
    ("command", "m-9", "report"),
    ("audit", "--run", "9"),
    ("credit",),
    ("replay", "--rounds", "1:2"),
    ("health",),
    ("pause",),
    ("resume",),
    ("round", "now"),
    ("unlearn", "m-2"),
    ("certificate",),
    ("audit-log", "export"),
    ("audit-log", "verify", "nothing.jsonl", "--public", "state/root.pub"),
    ("forecasts", "list"),
)


@pytest.fixture
def call(monkeypatch, capsys):
    """Run a command in a folder; return its exit code and output without moments and places."""

    def run(folder, words, url=""):
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            if url:
                patch.setenv(URL, url)
            try:
                code = cli.main(list(words))
            except SystemExit as ended:
                code = ended.code
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        text = re.sub(r"\b1[67]\d{8,11}\b", "1600000000", said.out + said.err)
        place = f"{folder}/state/aggregator.db"
        text = text.replace(place, "PLACE").replace(str(folder), "FOLDER")
        return code, text.replace(str(DatabaseUrl(url)), "PLACE") if url else text

    return run


def common(answer):
    """Return an answer in JSON without what an engine has of its own, and without digests of moments."""
    code, text = answer
    found = json.loads(text)
    if "settings" in found:
        found["settings"] = [row for row in found["settings"] if row["key"] != "store.url"]
    found.get("store", {}).pop("bytes", None)
    for record in found.get("records", []) if "found" in found else []:
        for name in ("previous", "signature"):  # each has its moment in it
            del record[name]
    found.pop("head", None)
    if "standards" in found:
        del found["made"], found["acts"]["head"]
        for row in (*found["acts"]["by_act"], *found["acts"]["newest"]):
            row.pop("last", row.pop("time", None))
        found["retention"] = [row for row in found["retention"] if "database" not in row["what"]]
    return code, found


@pytest.mark.extension
def test_every_command_answers_alike_on_both_engines(workplace, postgres_server, tmp_path, call):
    pytest.importorskip("psycopg")
    place = postgres_server.schema()
    file = workplace().parent
    for words in SETTING_UP:
        assert call(file, words)[0] == 0, words
    served = tmp_path / "served"
    served.mkdir()
    for name in ("state", "toy", "aggregator.toml"):
        whole = shutil.copytree if (file / name).is_dir() else shutil.copy
        whole(file / name, served / name)
    code, text = call(served, ("migrate", "aggregator.toml", "--json"), place)
    assert (code, len(json.loads(text)["tables"]) > 0) == (0, True)
    (served / "state" / "aggregator.db").unlink()  # nothing may read it from now on

    wrong = []

    def compare(words, code):
        alone, beside = call(file, words), call(served, words, place)
        if "--json" in words and alone[0] == 0:
            alone, beside = common(alone), common(beside)
        if beside != alone or (alone[0] != code if code is not None else alone[0] == 0):
            wrong.append((words, alone, beside))

    for words in READING:
        compare(words, 0)
    for words in REFUSED:
        compare(words, None)
    for words in WRITING:
        compare(words, 0)
    for words in READING:
        compare(words, 0)

    assert not wrong, "\n".join(map(repr, wrong))
    assert call(served, ("backup", "copy.db"), place)[0] == 0
    with sqlite3.connect(served / "copy.db") as db:
        assert db.execute("SELECT count(*) FROM clients").fetchone() == (3,)
    assert call(served, ("revoke", "m-3"), place)[0] == 0
    assert call(served, ("restore", "copy.db"), place)[0] == 0
    listed = json.loads(call(served, ("list", "--json"), place)[1])["devices"]
    assert {one["id"]: one["state"] for one in listed}["m-3"] != "revoked"
    shutil.copy(served / "copy.db", file / "copy.db")
    assert call(file, ("restore", "copy.db"))[0] == 0
    compare(("list", "--json"), 0)
    assert not wrong, "\n".join(map(repr, wrong))
    assert not (served / "state" / "aggregator.db").exists()
