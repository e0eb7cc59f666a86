"""Start Debian's PostgreSQL server on a socket, for tests and measurements."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_NAMES = itertools.count(1)


def binaries() -> Path | None:
    """Return the folder of the newest server that is installed, or None."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    which = shutil.which("initdb")
    if found:
        return found[-1].parent
    return Path(which).resolve().parent if which else None


class PostgresServer:
    """A server of its own, in a new folder; its socket is in that folder.

    It does not run as root: where the tests do, it runs as the user ``postgres`` of the package.
    """

    def __init__(self, folder: Path, bin_folder: Path, *, fsync: bool = False) -> None:
        self.folder, self._bin, self._fsync = folder, bin_folder, fsync
        self._user: str | None = "postgres" if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Create the data and start the server."""
        if self._user is not None:
            found = pwd.getpwnam(self._user)
            os.chown(self.folder, found.pw_uid, found.pw_gid)
        data = self.folder / "data"
        self._run(
            "initdb", "-D", str(data), "-A", "trust", "-U", "gridfed", "--no-sync", "-E", "UTF8"
        )
        options = f"-c listen_addresses='' -c unix_socket_directories='{self.folder}'"
        if not self._fsync:
            options += " -c fsync=off"
        options += " -c shared_buffers=16MB -c max_connections=40"
        log = self.folder / "log"
        self._run(
            "pg_ctl", "-D", str(data), "-l", str(log), "-o", options, "-w", "-t", "60", "start"
        )

    def stop(self) -> None:
        """Stop the server."""
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-m", "immediate", "-w", "stop")

    def restart(self) -> None:
        """Restart the server, which ends every session."""
        data = str(self.folder / "data")
        self._run(
            "pg_ctl", "-D", data, "-l", str(self.folder / "log"), "-m", "fast", "-w", "restart"
        )

    def database(self) -> str:
        """Create an empty database; return its URL."""
        import psycopg  # noqa: PLC0415 - extra

        name = f"fleet{os.getpid()}_{next(_NAMES)}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as db:
            db.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)

    def schema(self) -> str:
        """Create an empty schema in the database ``postgres``; return a URL that names it."""
        import psycopg  # noqa: PLC0415 - extra

        name = f"fleet{os.getpid()}_{next(_NAMES)}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as db:
            db.execute(f"CREATE SCHEMA {name}".encode())
        return f"{self.url('postgres')}&options=-c%20search_path%3D{name}"

    def url(self, database: str) -> str:
        """Return the URL of a database."""
        return f"postgresql://gridfed@/{database}?host={self.folder}"

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._bin / program), *arguments]
        if self._user is not None:
            command = [
                "setpriv",
                f"--reuid={self._user}",
                f"--regid={self._user}",
                "--clear-groups",
                *command,
            ]
        done = (
            subprocess.run(
                command,
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=120,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
            )
            if program != "pg_ctl" or "stop" in arguments
            else self._detached(command)
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed: {(done.stdout or b'').decode(errors='replace')}")

    def _detached(self, command: list[str]) -> subprocess.CompletedProcess[bytes]:
        """Run ``pg_ctl start`` without a pipe, which the server would keep open."""
        return subprocess.run(
            command,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=120,
        )


def missing() -> str:
    """Return why no server can be started here; empty if one can."""
    if binaries() is None:
        return "no PostgreSQL server is installed (apt-get install postgresql)"
    try:
        import psycopg  # noqa: F401, PLC0415 - extra
    except ImportError:
        return "psycopg is not installed (pip install 'gridfed[postgres]')"
    if os.geteuid() == 0:
        try:
            pwd.getpwnam("postgres")
        except KeyError:
            return "there is no user postgres, and the server refuses to run as root"
        if shutil.which("setpriv") is None:
            return "setpriv is not installed, and the server refuses to run as root"
    return ""


@contextmanager
def running(*, fsync: bool = False) -> Iterator[PostgresServer]:
    """Start a server in a new folder below /tmp, and stop it at the end."""
    found = binaries()
    assert found is not None
    folder = Path(tempfile.mkdtemp(prefix="gridfed-pg-", dir="/tmp"))
    server = PostgresServer(folder, found, fsync=fsync)
    try:
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Provide one server for the session; skip the test where none can be started."""
    if why := missing():
        pytest.skip(why)
    with running() as server:
        yield server
