"""Verify signed meter readings (OCMF) with the meter's public key.

``OCMF|{payload}|{signature}``: two JSON objects; the signature covers the payload's bytes as they
stand. (Open Charge Metering Format 1.0, sections 3 to 5.)
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from edge_sdk.errors import ConfigError
from edge_sdk.extensions.sources.base import Rejected, SourceSample

_LONGEST = 8192
_IMPORT = ("1-b:1.8.0", "1-0:1.8.0", "01-00:01.08.00*FF", "01-00:B2.08.00*FF")
"""OBIS codes of imported energy in chargers' meters."""

_NAME = "Energy.Active.Import.Register"
_CURVES = {
    "ECDSA-secp256r1-SHA256": "secp256r1",
    "ECDSA-secp256k1-SHA256": "secp256k1",
    "ECDSA-brainpool256r1-SHA256": "brainpoolP256r1",
    "ECDSA-secp384r1-SHA256": "secp384r1",
}


def verifier(path: Path) -> Callable[[str], list[SourceSample]]:
    """Return a function that verifies the readings of one meter.

    Args:
        path: Public key: PEM, or the hex digits of its DER form as chargers show them.

    Raises:
        ConfigError: The key is missing or invalid.
    """
    try:
        raw = path.read_bytes()
        if raw.lstrip().startswith(b"-----"):
            key = serialization.load_pem_public_key(raw)
        else:
            key = serialization.load_der_public_key(bytes.fromhex(raw.decode("ascii").strip()))
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path}: no public key of a meter ({error})") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError(f"{path}: not a key on an elliptic curve")
    return lambda text: verified(text, key)


def verified(text: str, key: ec.EllipticCurvePublicKey) -> list[SourceSample]:
    """Verify a signed record; return its readings.

    Raises:
        Rejected: Not OCMF, a wrong signature, or another curve than the key's.
    """
    kind, _, rest = text.partition("|")
    payload, bar, seal = rest.rpartition("|")
    if kind != "OCMF" or not bar or len(text) > _LONGEST:
        raise Rejected("not OCMF")
    content, signature = _object(payload), _object(seal)
    curve = _CURVES.get(str(signature.get("SA", "ECDSA-secp256r1-SHA256")))
    if curve != key.curve.name or signature.get("SE", "hex") != "hex":
        raise Rejected("another signature scheme")
    try:
        raw = bytes.fromhex(str(signature.get("SD")))
        key.verify(raw, payload.encode(), ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError):
        raise Rejected("forged signature") from None
    return _readings(content)


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        raise Rejected("not OCMF") from None
    if not isinstance(found, dict):
        raise Rejected("not OCMF")
    return found


def _readings(content: dict[str, Any]) -> list[SourceSample]:
    rows = content.get("RD")
    samples, inherited = [], dict[str, Any]()
    for row in rows if isinstance(rows, list) else []:
        if not isinstance(row, dict):
            raise Rejected("not OCMF")
        inherited |= row  # a reading inherits omitted fields from the one before
        if inherited.get("RI", _IMPORT[0]) not in _IMPORT or inherited.get("ST") != "G":
            continue
        value = inherited.get("RV")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is None or not is_number or not math.isfinite(value):
            raise Rejected("bad value")
        unit = str(inherited.get("RU", "kWh"))
        samples.append(SourceSample(_NAME, _moment(str(inherited.get("TM"))), float(value), unit))
    return samples


def _moment(text: str) -> float:
    """Parse ``2024-05-14T14:00:00,000+0200 S``; the letter gives the state of the clock."""
    clock = text.rpartition(" ")[0] or text
    try:
        read = datetime.fromisoformat(clock.replace(",", "."))
    except ValueError:
        raise Rejected("bad time") from None
    if read.tzinfo is None:
        raise Rejected("bad time")
    return read.timestamp()
