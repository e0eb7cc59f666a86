"""Emulated board: an emulator, Debian's Python for its core, and the device's wheels.

Everything lies in one folder and nothing is installed: packages are fetched with apt from this
machine's own sources, wheels with pip from its own index, and both are unpacked. No root is needed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "constraints" / "device.txt"
FOLDER = ROOT / ".venv-arm64"
PYTHON = "3.11"

_EMULATOR = "qemu-aarch64-static"
_DEBIAN = (f"python{PYTHON}:arm64", "libstdc++6:arm64")
_GLIBC = (17, 27, 28, 31, 34)  # of wheels that install where glibc is Debian 12's 2.36
_PATIENCE, _TOO_LONG = 300.0, 124
_FETCHING = 120.0  # a machine that is offline in a way that answers nothing must not hold CI up
_PIN = re.compile(r"^([a-z-]+)==([\d.]+)$", re.MULTILINE)


class Absent(Exception):  # noqa: N818 - not an error: what is missing here, as a sentence
    """No board can be made on this machine; the message has the reason."""


class Unfit(Exception):  # noqa: N818 - an answer, as Absent; but this one is the lock file's fault
    """The board can be made, but the lock file's packages cannot be installed on it."""


def pins(text: str) -> dict[str, str]:
    """Return the versions that a lock file names, by package."""
    return dict(_PIN.findall(text))


@dataclass(frozen=True, slots=True)
class Board:
    """An unpacked system in a folder."""

    folder: Path  # holds the emulator, the system's ``root`` and a folder of wheels for each lock

    @property
    def is_made(self) -> bool:
        """Return True if the system is there; wheels are separate."""
        return (self.folder / "root").is_dir()

    @property
    def emulator(self) -> Path:
        return self.folder / _EMULATOR

    def wheels(self, lock: str) -> Path:
        """Return the folder of a lock file's wheels, which may not exist yet."""
        return self.folder / f"wheels-{hashlib.sha256(lock.encode()).hexdigest()[:12]}"

    def make(self) -> None:
        """Fetch and unpack emulator and system, unless they are there.

        Raises:
            Absent: This machine has no apt, or its sources have not what is needed.
        """
        if not self.is_made:
            with _aside(self.folder) as aside:
                _unpack(_packages(aside / "apt"), aside)
                shutil.move(aside / _EMULATOR, self.emulator)
                (aside / "root").rename(self.folder / "root")  # last: whole, or not at all

    def install(self, lock: str) -> Path:
        """Unpack the wheels of a lock file and their requirements, unless they are there.

        Raises:
            Absent: No package index answers.
            Unfit: One of them has no wheel for this core, or they contradict each other.
        """
        place = self.wheels(lock)
        if not place.is_dir():
            with _aside(self.folder) as aside:
                _pip(lock, aside)
                (aside / "wheels").rename(place)
        return place

    def command(self, cpu: str, *arguments: str) -> list[str]:
        """Return a command line that runs the board's Python on an emulated core."""
        root = self.folder / "root"
        python = root / "usr" / "bin" / f"python{PYTHON}"
        return [str(self.emulator), "-L", str(root), "-cpu", cpu, str(python), "-sB", *arguments]

    def environ(self, lock: str) -> dict[str, str]:
        """Return the environment in which it imports the wheels and this checkout, and nothing else."""
        paths = os.pathsep.join((str(self.wheels(lock)), str(ROOT)))
        alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        return {"PYTHONPATH": paths, "LC_ALL": "C.UTF-8", **alone}

    def run(self, cpu: str, lock: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the board's Python to its end.

        Returns:
            Its output; ``returncode`` is negative for a signal that ended it, 124 for our patience.
        """
        return _ended(self.command(cpu, *arguments), self.environ(lock))


@contextmanager
def _aside(folder: Path) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="making-", dir=folder) as made:
        yield Path(made)


def _packages(apt: Path) -> list[Path]:
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise Absent("no apt-get and dpkg-deb here: the board is made of Debian's packages")
    for name in ("lists/partial", "cache/archives/partial"):
        (apt / name).mkdir(parents=True)
    (apt / "status").touch()
    ours = _said("dpkg", "--print-architecture").stdout.strip()
    get = ["apt-get", "-q", *_options(apt, ours)]
    heard = _said(*get, "update")
    wanted = (*_DEBIAN, f"qemu-user-static:{ours}")
    got = _said(*get, "install", "--download-only", "-y", "--no-install-recommends", *wanted)
    if got.returncode:
        raise Absent(why_not_apt(got.stderr, heard.stderr))
    return sorted((apt / "cache" / "archives").glob("*.deb"))


def _options(apt: Path, ours: str) -> Iterator[str]:
    """Yield the options that separate apt's state from this machine's packages, except its sources."""
    settings = {
        "Dir::State": apt,
        "Dir::State::lists": apt / "lists",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt / "cache",
        "APT::Architecture": "arm64",
        "APT::Architectures::": "arm64",
        "APT::Sandbox::User": "root",  # or apt would ask for a folder that its own user can read
        "Acquire::Languages": "none",
        "Acquire::Retries": 1,
        "Acquire::http::Timeout": 20,
        "Debug::NoLocking": "true",
    }
    for name, value in settings.items():
        yield from ("-o", f"{name}={value}")
    yield from ("-o", f"APT::Architectures::={ours}")


def why_not_apt(install: str, update: str) -> str:
    """Return in one line why apt could not get the packages, and its first message."""
    errors = [line[3:] for line in install.splitlines() if line.startswith("E: ")]
    before = [line[3:] for line in update.splitlines() if line.startswith(("E: ", "W: "))]
    why = errors[0] if errors else "it could not download"
    return f"apt: {why} ({before[0]})" if before else f"apt: {why}"


def _unpack(packages: Sequence[Path], aside: Path) -> None:
    """Unpack the system; of the emulator's package only the emulator."""
    root = aside / "root"
    for name in ("lib", "bin", "sbin"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for package in packages:
        if package.name.startswith("qemu-"):
            _untar(package, aside, "--strip-components=3", f"./usr/bin/{_EMULATOR}")
        else:
            _untar(package, root, "--keep-directory-symlink")


def _untar(package: Path, place: Path, *how: str) -> None:
    tar = ["tar", "-x", "-C", str(place), "--no-same-owner", *how]
    with subprocess.Popen(
        ["dpkg-deb", "--fsys-tarfile", str(package)],  # noqa: S607 - whichever is in the path
        stdout=subprocess.PIPE,
    ) as files:
        done = subprocess.run(tar, stdin=files.stdout, check=False)
    if files.returncode or done.returncode:
        raise Absent(f"{package.name} could not be unpacked")


def _pip(lock: str, aside: Path) -> None:
    asked = aside / "lock.txt"
    asked.write_text(lock, "utf-8")
    kinds = [f"--platform=manylinux_2_{minor}_aarch64" for minor in _GLIBC]
    target = [f"--target={aside / 'wheels'}", f"--python-version={PYTHON}", "--implementation=cp"]
    quiet = ["--quiet", "--disable-pip-version-check", "--no-compile", "--retries=1"]
    how = [*target, *kinds, *quiet, "--only-binary=:all:"]
    done = _said(sys.executable, "-m", "pip", "install", *how, "-r", str(asked))
    if done.returncode:
        raise why_not_pip(done.stderr)


def why_not_pip(said: str) -> Absent | Unfit:
    """Distinguish an index that does not respond from a lock file that no board can install.

    An index that knows other versions of a package has answered.
    """
    errors = [line[7:] for line in said.splitlines() if line.startswith("ERROR: ")]
    why = f"pip: {errors[0]}" if errors else "pip: " + (said.strip().splitlines() or ["failed"])[-1]
    is_known = "from versions: none" not in said and ("from versions:" in said or "onflict" in said)
    return Unfit(why) if is_known else Absent(why)


def _said(*command: str) -> subprocess.CompletedProcess[str]:
    done = _ended(command, os.environ | {"LC_ALL": "C"}, _FETCHING)
    if done.returncode == _TOO_LONG:
        raise Absent(f"{Path(command[0]).name} {done.stderr}")
    return done


def _ended(
    command: Sequence[str], environ: Mapping[str, str], patience: float = _PATIENCE
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=patience, check=False
        )
    except subprocess.TimeoutExpired:
        why = f"took longer than {patience:.0f} s"
        return subprocess.CompletedProcess(command, _TOO_LONG, "", why)
