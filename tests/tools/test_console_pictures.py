"""The pictures of docs/console.md are made here, from pages that a browser shows while a fleet learns.

``GRIDFED_PICTURES=docs/images/console`` writes them into the documentation.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tools import chromium

pytest.importorskip("starlette", reason="the console extra is not installed")
if chromium.missing():
    pytest.skip(chromium.missing(), allow_module_level=True)

from tools import console_pictures

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]


def size(path):
    """Return width and height of a picture, read from the header of its WebP file."""
    head = path.read_bytes()[:30]
    assert (head[:4], head[8:12]) == (b"RIFF", b"WEBP")
    if head[12:16] == b"VP8X":
        return tuple(int.from_bytes(head[at : at + 3], "little") + 1 for at in (24, 27))
    assert head[12:16] == b"VP8 "
    return tuple(int.from_bytes(head[at : at + 2], "little") & 0x3FFF for at in (26, 28))


@pytest.mark.soak
def test_every_picture_of_the_documentation_is_made(tmp_path):
    out = Path(os.environ.get("GRIDFED_PICTURES") or tmp_path / "pictures")
    console_pictures.main(["--out", str(out)])
    made = {path.name: size(path) for path in out.glob("*.webp")}
    page = Path("docs/console.md").read_text("utf-8")
    assert sorted(made) == sorted(re.findall(r"images/console/([\w-]+\.webp)", page))
    for name, (width, height) in made.items():
        phone = name == "fleet-phone.webp"
        assert width == (390 if phone else console_pictures.WIDTH), name
        assert height >= 700, name
        kept = size(Path("docs/images/console") / name)
        assert kept == (width, height), f"{name}: docs have {kept}"
