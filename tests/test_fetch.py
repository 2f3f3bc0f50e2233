"""The large data sets from a server of this machine: on from where it ended, verified, converted, counted."""

from __future__ import annotations

import gzip
import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from benchmarks import fetch
from cacore.errors import InputError
from cacore.io import native

ROWS, FEATURES, TRAIN = 60, 3, 40


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        body, asked = self.server.body, self.headers.get("Range")
        self.server.asked.append(asked)
        begin = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        if begin >= len(body):
            self.send_error(416)
            return
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(body) - begin))
        self.end_headers()
        self.wfile.write(body[begin : self.server.until])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    """Serves rows whose first column is their target, up to byte `until`; `asked` has the ranges that came."""
    table = np.random.default_rng(0).normal(size=(ROWS, FEATURES + 1))
    text = "\n".join(",".join(f"{value:.6f}" for value in row) for row in table).encode()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as made:
        made.body, made.until, made.asked = gzip.compress(text, mtime=0), None, []
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        made.url = f"http://127.0.0.1:{made.server_port}/small.csv.gz"
        words = ("--target", "0", "--split", str(TRAIN))
        monkeypatch.setitem(fetch.SETS, "SUSY", fetch.Source((made.url,), ROWS, FEATURES, words))
        yield made
        made.shutdown()
        thread.join()


def test_converted(server, tmp_path, capsys):
    out = fetch.fetch("SUSY", tmp_path)
    shapes = native.NativeFile(out).describe()
    assert (shapes["train"].n, shapes["test"].n, shapes["train"].d) == (TRAIN, ROWS - TRAIN, FEATURES)
    assert "none is published for comparison" in capsys.readouterr().out
    digest = hashlib.sha256(server.body).hexdigest()
    assert (tmp_path / fetch.SUMS).read_text() == f"{digest}  small.csv.gz\n"
    assert {file.name for file in tmp_path.iterdir()} == {"SUSY.h5", fetch.SUMS}
    fetch.fetch("SUSY", tmp_path, keep=True)
    assert "as in the first download" in capsys.readouterr().out
    assert (tmp_path / "small.csv.gz").read_bytes() == server.body


def test_interrupted_download_resumes(server, tmp_path):
    """The bytes that an interrupted download left are not fetched again."""
    server.until = 100
    with pytest.raises(InputError, match="100 bytes of"):
        fetch.fetch("SUSY", tmp_path)
    server.until = None
    assert fetch.fetch("SUSY", tmp_path).exists()
    assert server.asked == [None, "bytes=100-"]


def test_complete_but_not_renamed(server, tmp_path):
    (tmp_path / "small.csv.gz.part").write_bytes(server.body)
    assert fetch.fetch("SUSY", tmp_path).exists()


def test_changed_remote_file_is_refused(server, tmp_path):
    """Against the first download, and against a published checksum."""
    fetch.fetch("SUSY", tmp_path)
    server.body = gzip.compress(b"1,2,3,4\n" * ROWS, mtime=0)
    with pytest.raises(InputError, match="the one in "):
        fetch.fetch("SUSY", tmp_path)
    with pytest.raises(InputError, match="the published one is 00"):
        fetch.verify(tmp_path / "small.csv.gz", "00")


def test_wrong_row_count_is_refused(server, tmp_path, monkeypatch):
    wrong = fetch.Source((server.url,), ROWS + 1, FEATURES, fetch.SETS["SUSY"].convert)
    monkeypatch.setitem(fetch.SETS, "SUSY", wrong)
    with pytest.raises(InputError, match="61 rows of 3 were expected"):
        fetch.fetch("SUSY", tmp_path)
    assert not (tmp_path / "SUSY.h5").exists()


def test_no_server(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["fetch", "HIGGS", str(tmp_path), "--url", "http://127.0.0.1:9/HIGGS.csv.gz"])
    with pytest.raises(SystemExit) as ended:
        fetch.main()
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
