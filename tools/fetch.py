"""Get the public data sets that experiments read, with checksums.

    python tools/fetch.py list
    python tools/fetch.py import --from FOLDER --out FOLDER [SET ...]
    python tools/fetch.py check --out FOLDER [SET ...]
    python tools/fetch.py download URL --out FILE --sha256 HEX

``import`` copies prepared tables from a local folder and keeps a file only if its SHA-256 is the
recorded one. ``download`` fetches one source file over HTTPS and keeps it only if its checksum is
the one you give. Turning raw sources into the tables is described in ``docs/data.md``, not done
here. The download path is tested against a local server, not against the publishers' hosts.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import os
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

TABLE = Path(__file__).with_name("datasets.toml")
LARGEST = 4 << 30  # bytes of one download
PIECE = 1 << 20
HOPS = 5

Connect = Callable[[str, int | None], http.client.HTTPConnection]


class FetchError(Exception):
    """A file that is missing, differs from its checksum, or cannot be downloaded."""


@dataclass(frozen=True, slots=True)
class DataSet:
    """One public set, in the form that experiments read."""

    title: str
    kind: str
    licence: str
    publisher: str
    mirror: str
    commit: str
    sources: tuple[str, ...]
    files: Mapping[str, str]  # name -> SHA-256


def data_sets(path: Path = TABLE) -> dict[str, DataSet]:
    """Read the table of sets."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))
    return {
        name: DataSet(**(row | {"sources": tuple(row["sources"])})) for name, row in rows.items()
    }


def digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def import_set(name: str, chosen: DataSet, source: Path, out: Path) -> None:
    """Copy a set's tables from ``source/NAME`` to ``out/NAME``; a wrong file stays behind.

    Raises:
        FetchError: A file is missing or differs; the message names it.
    """
    (out / name).mkdir(parents=True, exist_ok=True)
    for file, wanted in chosen.files.items():
        origin, target = source / name / file, out / name / file
        if not origin.is_file():
            raise FetchError(f"{origin} is missing")
        part = target.with_name(target.name + ".part")
        shutil.copyfile(origin, part)
        _keep(part, target, wanted)


def check_set(name: str, chosen: DataSet, out: Path) -> None:
    """Raise ``FetchError`` if a table of the set is missing or differs from its checksum."""
    for file, wanted in chosen.files.items():
        path = out / name / file
        if not path.is_file():
            raise FetchError(f"{path} is missing")
        if (found := digest(path)) != wanted:
            raise FetchError(f"{path} has SHA-256 {found}, recorded is {wanted}")


def download(url: str, target: Path, sha256: str, *, connect: Connect | None = None) -> None:
    """Fetch one file over HTTPS and keep it only if its digest matches.

    Args:
        url: ``https://…``; redirects are followed to other HTTPS addresses only.
        target: Where it goes; appears whole or not at all.
        connect: Makes a connection to a host and port; for tests.

    Raises:
        FetchError: Not HTTPS, not found, too large, or another checksum.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    try:
        with part.open("wb") as out:
            _get(url, out, connect or http.client.HTTPSConnection, HOPS)
    except (OSError, http.client.HTTPException) as error:
        part.unlink(missing_ok=True)
        raise FetchError(f"{url}: {error}") from error
    except FetchError:
        part.unlink(missing_ok=True)
        raise
    _keep(part, target, sha256)


def _get(url: str, out: BinaryIO, connect: Connect, hops: int) -> None:
    where = urlsplit(url)
    if where.scheme != "https" or where.hostname is None:
        raise FetchError(f"{url}: only https:// addresses are fetched")
    with closing(connect(where.hostname, where.port)) as connection:
        connection.request("GET", (where.path or "/") + (f"?{where.query}" if where.query else ""))
        answer = connection.getresponse()
        onward = answer.getheader("Location")
        if answer.status in {301, 302, 303, 307, 308} and onward and hops:
            _get(onward, out, connect, hops - 1)
            return
        if answer.status != http.HTTPStatus.OK:
            raise FetchError(f"{url}: the server says {answer.status} {answer.reason}")
        while piece := answer.read(PIECE):
            if out.tell() + len(piece) > LARGEST:
                raise FetchError(f"{url}: more than {LARGEST >> 30} GiB")
            out.write(piece)


def _keep(part: Path, target: Path, wanted: str) -> None:
    found = digest(part)
    if found != wanted.lower():
        part.unlink()
        raise FetchError(f"{target.name} has SHA-256 {found}, expected {wanted}: not kept")
    os.replace(part, target)  # noqa: PTH105 - one system call, atomic


def _chosen(names: Iterable[str]) -> dict[str, DataSet]:
    known = data_sets()
    unknown = set(names) - set(known)
    if unknown:
        raise FetchError(f"unknown set {min(unknown)!r}; known: {', '.join(known)}")
    return {name: known[name] for name in names} or known


def _list() -> None:
    for name, row in data_sets().items():
        print(f"{name}\n  {row.title} ({row.kind})\n  licence: {row.licence}")
        print(f"  publisher: {row.publisher}\n  taken from: {row.mirror} at {row.commit}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    table = parser.add_subparsers(dest="command", required=True)
    table.add_parser("list", help="every set with its terms")
    for name, told in (("import", "copy prepared tables"), ("check", "compare checksums")):
        sub = table.add_parser(name, help=told)
        sub.add_argument("--out", type=Path, required=True)
        sub.add_argument("sets", nargs="*", metavar="SET", help="all, if none is named")
        if name == "import":
            sub.add_argument("--from", type=Path, required=True, dest="source")
    sub = table.add_parser("download", help="one file over HTTPS")
    sub.add_argument("url")
    sub.add_argument("--out", type=Path, required=True)
    sub.add_argument("--sha256", required=True)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; 1 and a sentence on standard error if it fails."""
    args = _parser().parse_args(argv)
    try:
        if args.command == "list":
            _list()
        elif args.command == "download":
            download(args.url, args.out, args.sha256)
        else:
            for name, row in _chosen(args.sets).items():
                if args.command == "import":
                    import_set(name, row, args.source, args.out)
                else:
                    check_set(name, row, args.out)
                print(f"{name}: {len(row.files)} files as recorded")
    except FetchError as error:
        print(f"fetch: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
