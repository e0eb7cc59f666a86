"""Real PKCS #11 tokens for tests: SoftHSM in files, and a TPM that swtpm emulates."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from edge_sdk.extensions.tokens import pkcs11_library
from firmware_sim.fleet.federation import free_port

PIN = "pin-7c41-secret"
SOFTHSM_MODULES = (
    "/usr/lib/softhsm/libsofthsm2.so",
    "/usr/lib64/pkcs11/libsofthsm2.so",
    "/usr/lib/pkcs11/libsofthsm2.so",
)
TPM_MODULES = ("/usr/lib/x86_64-linux-gnu/libtpm2_pkcs11.so.1",)


class Token:
    """A token with the label ``meter``.

    Attributes:
        module: The PKCS #11 module.
        environ: Variables by which a program finds this token and no other.
        pin: File with its PIN.
        can_ed25519: Whether it makes Ed25519 keys.
    """

    can_ed25519 = True

    def __init__(self, folder: Path, module: str) -> None:
        self.folder, self.module = folder, Path(module)
        self.environ: dict[str, str] = {}
        self.pin = folder / "pin"
        self.pin.write_text(PIN + "\n")
        self.pin.chmod(0o600)

    def section(self, uri: str = "pkcs11:token=meter;object=gridfed", curve: str = "p256") -> str:
        """Return the key ``identity`` of a configuration."""
        rest = f'module = "{self.module}", pin_file = "{self.pin}"'
        return f'identity = {{ curve = "{curve}", key = "{uri}", {rest} }}'

    def settle(self) -> None:
        """Clean up after programs that were killed, as the kernel does for a real TPM."""


class SoftHsm(Token):
    """SoftHSM; it is removed by renaming its folder."""

    def __init__(self, folder: Path, module: str) -> None:
        super().__init__(folder, module)
        self.tokens = folder / "tokens"
        self.tokens.mkdir()
        config = folder / "softhsm2.conf"
        config.write_text(
            f"directories.tokendir = {self.tokens}\nobjectstore.backend = file\nlog.level = ERROR\n"
        )
        self.environ = {"SOFTHSM2_CONF": str(config)}
        self.initialise("meter")

    def initialise(self, label: str) -> None:
        """Add a token."""
        words = ["softhsm2-util", "--init-token", "--free", "--label", label]
        words += ["--so-pin", "so-pin-1", "--pin", PIN]
        subprocess.run(words, env=os.environ | self.environ, check=True, capture_output=True)

    def remove(self) -> None:
        self.tokens.rename(self.folder / "removed")

    def put_back(self) -> None:
        (self.folder / "removed").rename(self.tokens)

    def close(self) -> None:
        """Nothing runs."""


class EmulatedTpm(Token):
    """A TPM 2.0 of swtpm behind tpm2-pkcs11; it is removed by ending swtpm."""

    can_ed25519 = False

    def __init__(self, folder: Path, module: str) -> None:
        super().__init__(folder, module)
        for name in ("state", "store"):
            (folder / name).mkdir()
        self._port, self._process = 0, None
        self.put_back()
        try:
            self._initialise()
        except BaseException:
            self.close()
            raise

    def _initialise(self) -> None:
        folder = self.folder
        connection = f"swtpm:host=127.0.0.1,port={self._port}"
        self.environ = {
            "TPM2TOOLS_TCTI": connection,
            "TPM2_PKCS11_TCTI": connection,
            "TPM2_PKCS11_STORE": str(folder / "store"),
            "TPM2_PKCS11_LOG_LEVEL": "0",
            "TSS2_LOG": "all+none",
        }
        self._run("tpm2_ptool", "init", "--path", str(folder / "store"))
        self.settle()
        module_words = ("--module", str(self.module), "--init-token", "--slot", "1")
        pins = ("--label", "meter", "--so-pin", "so-pin-1", "--pin", PIN)
        self._run("softhsm2-util", *module_words, *pins)
        self.settle()

    def _run(self, *words: str) -> None:
        subprocess.run(words, env=os.environ | self.environ, check=True, capture_output=True)

    def settle(self) -> None:
        self._run("tpm2_flushcontext", "-t")

    def remove(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)
        self._process = None

    def put_back(self) -> None:
        """Start swtpm, on the same port as before."""
        while not self._port:
            self._port = free_port()
            with socket.socket() as control, suppress(OSError):
                control.bind(("127.0.0.1", self._port + 1))  # where tpm2-pkcs11 expects control
                break
            self._port = 0
        words = ["swtpm", "socket", "--tpm2", "--tpmstate", f"dir={self.folder / 'state'}"]
        words += ["--server", f"type=tcp,port={self._port},bindaddr=127.0.0.1"]
        words += ["--ctrl", f"type=tcp,port={self._port + 1},bindaddr=127.0.0.1"]
        words += ["--flags", "not-need-init,startup-clear"]
        ready = self.folder / f"ready-{secrets.token_hex(4)}"
        words += ["--pid", f"file={ready}"]
        self._process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        end = time.monotonic() + 60
        while not ready.exists():
            assert self._process.poll() is None, "swtpm ended"
            assert time.monotonic() < end, "swtpm has not started"
            time.sleep(0.05)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _module(names: tuple[str, ...], programs: tuple[str, ...], packages: str) -> str:
    """Return the module that is installed, or skip the test with what is missing."""
    if find_spec("pkcs11") is None:
        pytest.skip("python-pkcs11 is not installed (the extra pkcs11)")
    found = next((one for one in names if Path(one).exists()), None)
    if found is None or not all(map(shutil.which, programs)):
        pytest.skip(f"not installed: {packages}")
    return found


@contextmanager
def opened(kind: str, folder: Path) -> Iterator[SoftHsm | EmulatedTpm]:
    """Make a token in a new folder; set the environment, so that this process finds it too."""
    if kind == "softhsm":
        module = _module(SOFTHSM_MODULES, ("softhsm2-util",), "softhsm2")
        make = SoftHsm
    else:
        programs = ("swtpm", "tpm2_ptool", "tpm2_flushcontext", "softhsm2-util")
        packages = "swtpm libtpm2-pkcs11-1 libtpm2-pkcs11-tools tpm2-tools softhsm2"
        module, make = _module(TPM_MODULES, programs, packages), EmulatedTpm
    folder.mkdir()
    token = make(folder, module)  # which ends its own program if it fails
    before = {name: os.environ.get(name) for name in token.environ}
    os.environ.update(token.environ)
    try:
        yield token
    finally:
        pkcs11_library.library_of(module).reset()
        pkcs11_library.library_of.cache_clear()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        token.close()
