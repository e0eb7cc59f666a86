"""A data file is kept only if it is, to the byte, the one that was recorded."""

from __future__ import annotations

import hashlib
import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tools.fetch import DataSet, FetchError, check_set, data_sets, download, import_set, main

BODY = b"time,load\n" * 1000
DIGEST = hashlib.sha256(BODY).hexdigest()
SET = DataSet("t", "measured", "CC0", "p", "m", "c", (), {"a.csv": DIGEST})


@pytest.fixture
def server():
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path == "/moved":
                self.send_response(302)
                self.send_header("Location", "https://elsewhere.example/data.csv?x=1")
            elif self.path == "/plain":
                self.send_response(302)
                self.send_header("Location", "http://elsewhere.example/data.csv")
            elif self.path == "/data.csv?x=1":
                self.send_response(200)
                self.send_header("Content-Length", str(len(BODY)))
                self.end_headers()
                self.wfile.write(BODY)
                return
            else:
                self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        port = running.server_address[1]
        yield lambda _host, _port: http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        running.shutdown()
        thread.join()


def test_a_good_download_follows_redirects_and_is_kept(tmp_path, server):
    target = tmp_path / "new" / "data.csv"
    download("https://publisher.example/moved", target, DIGEST.upper(), connect=server)
    assert target.read_bytes() == BODY
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize(
    ("path", "checksum", "why"),
    [
        ("data.csv?x=1", "0" * 64, "not kept"),
        ("nothing", DIGEST, "404"),
        ("plain", DIGEST, "only https"),
    ],
)
def test_a_bad_download_leaves_nothing(tmp_path, server, path, checksum, why):
    with pytest.raises(FetchError, match=why):
        download(f"https://publisher.example/{path}", tmp_path / "x", checksum, connect=server)
    assert list(tmp_path.iterdir()) == []


def test_plain_http_is_not_even_tried(tmp_path):
    with pytest.raises(FetchError, match="only https"):
        download("http://publisher.example/data.csv", tmp_path / "x", DIGEST)


def test_an_import_copies_what_matches_and_refuses_the_rest(tmp_path):
    source, out = tmp_path / "source", tmp_path / "out"
    (source / "set").mkdir(parents=True)
    (source / "set" / "a.csv").write_bytes(BODY)
    import_set("set", SET, source, out)
    check_set("set", SET, out)
    (source / "set" / "a.csv").write_bytes(BODY + b"1")
    with pytest.raises(FetchError, match="not kept"):
        import_set("set", SET, source, out)
    assert (out / "set" / "a.csv").read_bytes() == BODY, "the good copy stays"
    (out / "set" / "a.csv").write_bytes(b"")
    with pytest.raises(FetchError, match="recorded is"):
        check_set("set", SET, out)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FetchError, match=r"a\.csv is missing"):
        import_set("set", SET, tmp_path, tmp_path / "out")


def test_every_set_states_its_terms_and_its_checksums(capsys):
    assert len(data_sets()) >= 9
    for row in data_sets().values():
        assert row.licence
        assert row.publisher.startswith("https://")
        assert row.files
        assert all(len(x) == 64 for x in row.files.values())
    assert main(["list"]) == 0
    assert "CC BY-SA 4.0" in capsys.readouterr().out


def test_an_unknown_set_is_one_sentence(tmp_path, capsys):
    assert main(["check", "--out", str(tmp_path), "nonsense"]) == 1
    assert "fetch: unknown set 'nonsense'; known:" in capsys.readouterr().err
