"""Client ids: the certificate's name, so that one from before is kept, else the qualified one."""

from __future__ import annotations

import pytest

from edge_sdk.link.tls_files import client_id_of, qualified, unqualified
from tests.broker.authority import Authority


def test_without_a_certificate_the_fleet_qualifies_the_name(tmp_path):
    assert client_id_of("north", "meter-1", None) == "north.meter-1"
    assert client_id_of("north", "meter-1", tmp_path / "missing.pem") == "north.meter-1"
    (tmp_path / "key.pem").write_text(
        "-----BEGIN PRIVATE KEY-----\nMC4C\n-----END PRIVATE KEY-----"
    )
    assert client_id_of("north", "meter-1", tmp_path / "key.pem") == "north.meter-1"


@pytest.mark.parametrize("name", ["meter-1", "north.meter-1", "_agg"])
def test_a_certificate_keeps_its_own_name(tmp_path, name):
    """One that was issued before fleets were qualified finds its session of before."""
    certificate, _ = Authority(tmp_path, "authority").issue("one", subject=name)
    assert client_id_of("north", "meter-1", certificate) == name


def test_a_name_too_long_for_a_certificate_is_refused():
    assert unqualified(qualified("n" * 32, "m" * 31)) == ("n" * 32, "m" * 31)
    with pytest.raises(ValueError, match="has 65 characters; a certificate's name has at most 64"):
        qualified("n" * 32, "m" * 32)
