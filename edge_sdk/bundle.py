"""Open a bundle: verify its signature and digests, load its graphs, run its golden forecast.

A bundle defines a model on this device: a signed manifest, exported graphs, and an initial
parameter vector. No part is used before all of it has been verified.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.extensions import ExtensionEntry, ExtensionIndex
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import EdgeError
from edge_sdk.protocol.contract.archive import INITIAL, MANIFEST, SIGNATURE, is_sealed, pack
from edge_sdk.protocol.contract.manifest import FORECAST, GRADIENT, Manifest, ManifestError
from edge_sdk.protocol.contract.parameter_layout import ParamSpec, Vector
from edge_sdk.protocol.keys import read_public
from edge_sdk.runtime import Graph, GraphError, inspect_graph, load_graph

SDK_VERSION = (0, 1, 3)
"""Version that ``min_sdk`` of a manifest is compared with."""

_EXTENSIONS = ExtensionIndex("edge_sdk")
_RELEASE = "release*.pub"

Floats = NDArray[np.float32]


class BundleError(EdgeError):
    """A bundle that is missing, damaged, not signed by a trusted key, or does not run here."""

    exit_code = 2


class BundleRollbackError(BundleError):
    """A bundle of which a newer version, or other content of the same version, is installed."""


@dataclass(frozen=True, slots=True)
class TrustedKeys:
    """Public keys that are trusted to sign a manifest."""

    # raw public keys of the fleet's pinned root or roots. A shipped bundle is trusted as the
    # package is; its own release key only proves its integrity.
    roots: tuple[bytes, ...] = ()


class BundleGraphs(Mapping[str, Graph]):
    """The functions of a bundle by name, each loaded on first use."""

    def __init__(self, manifest: Manifest, contents: Mapping[str, bytes]) -> None:
        """Keep the bytes; load nothing."""
        self._bytes = {name: contents[graph.file] for name, graph in manifest.graphs.items()}
        self._wanted = {name: (g.inputs, g.outputs) for name, g in manifest.graphs.items()}
        self._loaded: dict[str, Graph] = {}

    def __getitem__(self, name: str) -> Graph:
        """Return a loaded graph.

        Raises:
            BundleError: It does not load here, or its feeds differ from the manifest's.
        """
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._bytes)

    def __len__(self) -> int:
        return len(self._bytes)

    def inspect(self) -> None:
        """Check every graph, also those that no method has used yet; load none.

        Raises:
            BundleError: An operator, a size or a feed that a bundle must not have.
        """
        for name, data in self._bytes.items():
            try:
                found = inspect_graph(data)
            except GraphError as error:
                raise BundleError(f"graph {name!r}: {error}") from error
            self._compare(name, found)

    def _compare(self, name: str, found: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
        if found != self._wanted[name]:
            raise BundleError(
                f"graph {name!r} has other inputs or outputs than the manifest declares"
            )

    def _load(self, name: str) -> Graph:
        data = self._bytes[name]
        try:
            graph = load_graph(data)
        except GraphError as error:
            raise BundleError(f"graph {name!r} does not load: {error}") from error
        self._compare(name, (graph.inputs, graph.outputs))
        return graph


@dataclass(frozen=True, repr=False)
class Bundle:
    """A verified bundle."""

    manifest: Manifest
    initial: Vector  # initial parameter vector, float32, shape ``(P,)``
    graphs: Mapping[str, Graph]  # functions by name, loaded on first use
    digest: bytes  # SHA-256 of its archive; identifies it in announcements

    def __repr__(self) -> str:
        return f"Bundle({self.manifest.name} {self.manifest.version})"

    @classmethod
    def open(cls, name_or_path: str | Path, *, trust: TrustedKeys) -> Bundle:
        """Open a shipped bundle by name, or any bundle by its folder, and test it.

        Raises:
            BundleError: It is missing, damaged, not signed by a trusted key, needs a newer SDK, or
                does not reproduce its golden forecast on this device.
        """
        shipped = shipped_folder()
        if str(name_or_path) in shipped_names():
            folder = shipped / str(name_or_path)
            return opened(files_of(folder), release_keys(shipped), is_new=False)
        folder = Path(name_or_path).expanduser()
        if not (folder / MANIFEST).is_file():
            raise BundleError(
                f"bundle {str(name_or_path)!r} is neither shipped nor a folder with a {MANIFEST}",
                hint=f"shipped bundles: {', '.join(shipped_names()) or 'none'}",
            )
        return opened(files_of(folder), trust.roots)

    @cached_property
    def spec(self) -> ParamSpec:
        """Layout of the parameter vector, with the bundle's default for the shared layers."""
        return self.manifest.spec()

    @property
    def gradient(self) -> Graph:
        """Gradient graph: ``p [P], x [B, L, C], y [B, H]`` to ``loss [], g [P]``."""
        return self.graphs[GRADIENT]

    @property
    def forecast(self) -> Graph:
        """Forecast graph, in scaled units.

        Maps ``p [P], x [B, L, C]`` to ``yhat [B, H]`` or ``[B, H, levels]``.
        """
        return self.graphs[FORECAST]


def shipped_folder() -> Path:
    return Path(__file__).parent / "bundles"


def release_keys(folder: Path) -> tuple[bytes, ...]:
    return tuple(read_public(path) for path in sorted(folder.glob(_RELEASE)))


def shipped_names() -> list[str]:
    return sorted(found.parent.name for found in shipped_folder().glob(f"*/{MANIFEST}"))


def load_installed(folder: Path, digest: bytes, *, trust: TrustedKeys) -> Bundle:
    """Open an installed bundle by its digest.

    Raises:
        BundleError: It is not installed here, or was damaged since.
    """
    path = folder / digest.hex()
    if not path.is_dir():
        raise BundleError(f"bundle {digest.hex()[:12]} is not installed in {folder}")
    bundle = opened(files_of(path), trust.roots, is_new=False)
    if bundle.digest != digest:
        raise BundleError(f"{path}: the files differ from those installed")
    return bundle


def opened(
    contents: Mapping[str, bytes], keys: tuple[bytes, ...], *, is_new: bool = True
) -> Bundle:
    """Verify files as a bundle: signature, manifest, digests, SDK, graphs, vector, golden forecast.

    An installed bundle had all of its graphs checked before; each is checked again when it loads.
    """
    raw = contents.get(MANIFEST, b"")
    if not is_sealed(raw, contents.get(SIGNATURE, b""), keys):
        raise BundleError(
            "no key that this device trusts has signed the bundle's manifest",
            hint="the fleet's root key must sign it; compare keys.root with root.pub",
        )
    try:
        manifest = Manifest.parse(raw)
        manifest.spec()
    except ManifestError as error:
        _check_sdk(*_named(raw))  # a newer manifest may have fields that are unknown here
        raise BundleError(str(error)) from error
    _check_files(manifest, contents)
    _check_sdk(manifest.name, manifest.min_sdk)
    graphs = _functions(manifest, contents, is_new=is_new)
    digest = hashlib.sha256(pack(contents)).digest()
    bundle = Bundle(manifest, _initial(manifest, contents[INITIAL]), graphs, digest)
    _check_golden_forecast(bundle)
    if (computed := extension_of(manifest)) is not None:
        computed.load("golden")(bundle)
    return bundle


def _functions(
    manifest: Manifest, contents: Mapping[str, bytes], *, is_new: bool
) -> Mapping[str, Graph]:
    graphs = BundleGraphs(manifest, contents)
    if is_new:
        graphs.inspect()
    computed = extension_of(manifest)
    if computed is None:
        return graphs
    try:
        return {**graphs, **computed.load("functions")(manifest, graphs)}
    except (ManifestError, ValueError) as error:
        raise BundleError(str(error)) from error


def extension_of(manifest: Manifest) -> ExtensionEntry | None:
    """Return the extension that computes functions of a bundle, by a section of the manifest; or None."""
    entries = (entry for entry in _EXTENSIONS.values() if "bundle" in entry.row)
    return next((e for e in entries if getattr(manifest, e.row["bundle"], None) is not None), None)


def _check_files(manifest: Manifest, contents: Mapping[str, bytes]) -> None:
    needed = {INITIAL, *(graph.file for graph in manifest.graphs.values())}
    if set(manifest.files) != needed or set(contents) != needed | {MANIFEST, SIGNATURE}:
        raise BundleError(
            f"bundle {manifest.name}: its files are not those that the manifest lists"
        )
    for name, wanted in manifest.files.items():
        if hashlib.sha256(contents[name]).hexdigest() != wanted:
            raise BundleError(
                f"bundle {manifest.name}: {name} is not the file that was signed",
                hint="fetch the bundle again",
            )


def _named(raw: bytes) -> tuple[str, str]:
    """Return the name and the least SDK of a signed manifest that this SDK cannot read."""
    try:
        content = json.loads(raw)
        name, least = content["name"], content["min_sdk"]
    except (ValueError, RecursionError, TypeError, KeyError):
        return "", "0.0.0"
    is_version = isinstance(least, str) and re.fullmatch(r"\d{1,4}\.\d{1,4}\.\d{1,4}", least)
    return str(name)[:64], str(least) if is_version else "0.0.0"


def _check_sdk(name: str, least: str) -> None:
    if tuple(int(part) for part in least.split(".")) > SDK_VERSION:
        raise BundleError(
            f"bundle {name} needs SDK {least} or newer",
            hint="upgrade gridfed on this device first",
        )


def _initial(manifest: Manifest, data: bytes) -> Vector:
    if len(data) != 4 * manifest.size:
        raise BundleError(
            f"bundle {manifest.name}: {INITIAL} has {len(data)} bytes, "
            f"the layout needs {4 * manifest.size}"
        )
    vector = np.frombuffer(data, "<f4").astype(np.float32)
    if not np.isfinite(vector).all():
        raise BundleError(f"bundle {manifest.name}: {INITIAL} holds values that are not finite")
    return vector


def _check_golden_forecast(bundle: Bundle) -> None:
    """Run the golden forecast, so that a wrong engine is found before the bundle is used."""
    golden = bundle.manifest.golden
    x = np.array([golden.x], np.float32)
    try:
        (yhat,) = bundle.forecast(p=bundle.initial, x=x)
    except GraphError as error:
        raise BundleError(f"bundle {bundle.manifest.name}: {error}") from error
    wanted = np.array(golden.yhat, np.float32).reshape(1, *bundle.manifest.forecast_shape)
    if yhat.shape != wanted.shape or not np.allclose(yhat, wanted, rtol=0, atol=golden.tolerance):
        raise BundleError(
            f"bundle {bundle.manifest.name}: the golden forecast comes out as "
            f"{np.ravel(yhat).tolist()}, not {np.ravel(wanted).tolist()}",
            hint="the engine on this device computes something else; report its version",
        )


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the files of a bundle's folder by name.

    Raises:
        BundleError: The folder cannot be read.
    """
    try:
        return {
            path.name: path.read_bytes()
            for path in sorted(folder.iterdir())
            if path.is_file() and not path.name.startswith(".")
        }
    except OSError as error:
        raise BundleError(f"{folder}: cannot read the bundle: {error.strerror}") from error
