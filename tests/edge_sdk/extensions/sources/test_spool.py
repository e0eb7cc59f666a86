"""The folder of recordings between the proxy and the agent."""

from __future__ import annotations

from contextlib import closing

import pytest

from edge_sdk.extensions.sources.base import RawFrame
from edge_sdk.extensions.sources.spool import SpoolWriter
from tests.edge_sdk.app.test_permissions import mode, modes, umask

__all__ = ["umask"]


@pytest.mark.usefixtures("umask")
def test_recordings_of_the_proxy_are_private_in_an_open_folder(tmp_path):
    folder = tmp_path / "spool"
    folder.mkdir(mode=0o755)
    (folder / "0.rec").write_bytes(b"")
    with closing(SpoolWriter(folder, "ocpp-tap")) as spool:
        spool.write(RawFrame(b"{}", at=1.0))
    assert mode(folder) == 0o700
    assert modes(folder) == {}
