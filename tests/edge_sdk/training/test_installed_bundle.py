"""A device whose bundle cannot be used any more goes on with the one before it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from edge_sdk import bundle as bundle_module
from edge_sdk.bundle import BundleError
from edge_sdk.protocol.contract.archive import pack
from edge_sdk.store.schema import INSTALLED
from edge_sdk.training import bootstrap
from edge_sdk.training.bundle_install import install
from tests.edge_sdk.test_bundle import TRUST, signed, written


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A device with version 1 beside its configuration, and versions 2 and 3 installed."""
    monkeypatch.setattr(bootstrap, "_trust", lambda _config: TRUST)
    configured = written(tmp_path / "one", signed())
    state = tmp_path / "state"
    for version in (2, 3):
        install(pack(signed(version=version)), state / INSTALLED, trust=TRUST)
    return SimpleNamespace(bundle=str(configured), state=state, is_alone=False)


def opened(config, digest):
    announced = SimpleNamespace(digest=digest, name="test", version=3)
    found = bootstrap.open_bundle(config, announced)
    return found.manifest.version, bootstrap.of_bundle(announced, found) is announced


def digest_of(config, version):
    for path in (config.state / INSTALLED).iterdir():
        digest = bytes.fromhex(path.name)
        if (
            bundle_module.load_installed(path.parent, digest, trust=TRUST).manifest.version
            == version
        ):
            return digest
    return b""


def damage(config, digest):
    (config.state / INSTALLED / digest.hex() / "gradient.onnx").write_bytes(b"x")


def test_the_installed_one_is_opened_as_long_as_it_is_whole(config):
    assert opened(config, digest_of(config, 3)) == (3, True)


def test_a_damaged_one_is_replaced_by_the_one_before(config, caplog):
    newest = digest_of(config, 3)
    damage(config, newest)
    assert opened(config, newest) == (2, False)
    (line,) = [one.getMessage() for one in caplog.records]
    assert line.startswith("bundle not used name=test version=3 why=")
    assert line.endswith('version 2"')


def test_a_changed_engine_that_fails_the_golden_sample_counts_as_damage(config, monkeypatch):
    real = bundle_module._check_golden_forecast

    def strict(bundle):
        real(bundle)
        if bundle.manifest.version == 3:
            raise BundleError("the golden forecast comes out differently")

    newest = digest_of(config, 3)
    monkeypatch.setattr(bundle_module, "_check_golden_forecast", strict)
    assert opened(config, newest) == (2, False)


def test_after_both_the_configured_one_is_opened(config):
    newest = digest_of(config, 3)
    damage(config, digest_of(config, 2))
    damage(config, newest)
    assert opened(config, newest) == (1, False)


def test_without_any_the_first_reason_is_told(config):
    newest = digest_of(config, 3)
    damage(config, digest_of(config, 2))
    damage(config, newest)
    config.bundle = "nowhere"
    with pytest.raises(BundleError, match="not the file that was signed"):
        opened(config, newest)
