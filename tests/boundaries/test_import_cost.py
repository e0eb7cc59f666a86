"""What an import may load: a promise to whoever imports only a part."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tools.structure_size import ROOT, STARTS, loaded

HEAVY = ("onnxruntime", "paho", "cryptography", "torch", "msgpack", "numpy", "sqlite3", "argparse")


def loaded_by(statement: str) -> set[str]:
    """List the top-level packages a statement loads, in a fresh interpreter."""
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", statement],
        capture_output=True,
        text=True,
        check=True,
    )
    return {line.rsplit("|", 1)[1].strip().split(".")[0] for line in run.stderr.splitlines()}


def test_the_package_itself_loads_nothing():
    assert loaded_by("import edge_sdk").isdisjoint(HEAVY)


@pytest.mark.parametrize(
    "name", ["Config", "ConfigError", "EdgeError", "Reading", "StoreError", "Transport"]
)
def test_light_names_load_no_engine(name):
    heavy = {"onnxruntime", "paho", "cryptography", "torch", "msgpack", "sqlite3"}
    assert loaded_by(f"from edge_sdk import {name}").isdisjoint(heavy)


def test_the_client_loads_no_engine_until_it_starts():
    assert loaded_by("from edge_sdk import Client").isdisjoint({"onnxruntime", "paho", "torch"})


def test_help_loads_nothing_but_what_parses_it():
    heavy = {"onnxruntime", "paho", "cryptography", "torch", "msgpack", "numpy", "sqlite3"}
    said = "import edge_sdk.commands.main, contextlib\nwith contextlib.suppress(SystemExit): "
    assert loaded_by(said + "edge_sdk.commands.main.main(['--help'])").isdisjoint(heavy)


def test_every_public_name_is_there_and_listed():
    import edge_sdk  # noqa: PLC0415 - what is tested

    for name in edge_sdk.__all__:
        found = getattr(edge_sdk, name)
        assert getattr(found, "__name__", name) == name  # a table has none
        assert name in dir(edge_sdk)
    with pytest.raises(AttributeError, match="no attribute 'Manager'"):
        edge_sdk.Manager  # noqa: B018 - the access is the test


def test_an_agent_imports_neither_methods_nor_interfaces_that_it_does_not_use():
    """A device of 64 MiB has none to spare: each of these modules takes some 100 kB."""
    unused = {"urllib.request", "http.client", "email.message"}  # of paho, for proxies
    said = "import sys; sys.modules['socks'] = None; "  # where PySocks is installed, paho asks it
    said += "import edge_sdk.commands.run, edge_sdk.agent, edge_sdk.link.mqtt"
    run = subprocess.run(
        [sys.executable, "-c", f"{said}; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = run.stdout.split()
    assert unused.isdisjoint(loaded)
    options = (
        "budget",
        "evaluation",
        "lifecycle",
        "outputs",
        "papers",
        "peers",
        "setup",
        "sources",
    )
    extensions = tuple(f"edge_sdk.extensions.{name}" for name in options)
    assert [name for name in loaded if name.startswith(extensions)] == []


def test_every_method_of_a_device_can_be_imported():
    from edge_sdk.methods import METHODS  # noqa: PLC0415 - what is tested

    assert all(callable(factory) for factory in METHODS.values())


def test_a_fleet_of_fedavg_imports_no_paper():
    said = "import sys; from aggregator.methods import METHODS as S; from edge_sdk.methods import METHODS as D"
    used = "S['fedavg'], D['fedavg'], 'bafdp' in S, len(D)"
    found = "print([name for name in sys.modules if '.extensions.papers' in name])"
    run = subprocess.run(
        [sys.executable, "-c", f"{said}\n{used}\n{found}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == "[]"


def test_a_running_daemon_has_loaded_no_offline_analysis():
    said = "import sys, aggregator.commands.main, aggregator.commands.run, aggregator.daemon"
    found = (
        "print([name for name in sys.modules if name.startswith('aggregator.extensions.analysis')])"
    )
    run = subprocess.run(
        [sys.executable, "-c", f"{said}\n{found}"], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


def test_a_daemon_imports_the_extensions_that_it_uses_and_settings():
    files = [file.relative_to(ROOT).parts for file in loaded(STARTS["the daemon"])]
    extensions = {(one[0], one[2]) for one in files if one[1] == "extensions" and len(one) > 3
                  and one[-1] not in ("__init__.py", "settings.py")}  # fmt: skip
    assert extensions <= {
        ("aggregator", "model_log"),
        ("aggregator", "status_page"),
        ("edge_sdk", "model_log"),
    }
