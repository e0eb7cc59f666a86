"""The documentation against the programs: commands parse, keys and metrics are there, code runs."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

from aggregator import config as aggregator_config
from aggregator.extensions.authority.access import broker_process
from edge_sdk import Config
from edge_sdk import config as device_config
from edge_sdk.app.cli import CommandResult
from edge_sdk.app.command_line import CommandLine
from edge_sdk.errors import LinkError, Reason
from edge_sdk.protocol import keys
from tests.all_metrics import all_metrics
from tools import docs

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WRITTEN = [page for page in PAGES if page.name != "configuration.md"]
MODULES = {
    "gridfed-edge": "edge_sdk",
    "gridfed-aggregator": "aggregator",
    "gridfed-console": "aggregator.extensions.console",
    "gridfed-witness": "aggregator.extensions.model_log",
    "gridfed-sim": "firmware_sim",
}

by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


class Typed(NamedTuple):
    """One command of a ``console`` block, and the output shown below it."""

    words: list[str]
    shown: list[str]


def blocks(text: str, language: str) -> list[str]:
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    return ["\n".join(line[len(gap) :] for line in body.splitlines()) for gap, body in found]


def typed(text: str) -> Iterator[Typed]:
    for block in blocks(text, "console"):
        for said in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *shown = said.splitlines()
            yield Typed(shlex.split(command, comments=True), shown)


def ours(text: str) -> list[Typed]:
    return [one for one in typed(text) if one.words[0] in MODULES]


# --- commands, keys, metrics, reasons -----------------------------------------------------------


@by_page
def test_every_documented_command_parses(page):
    for command in ours(page.read_text("utf-8")):
        program, *arguments = command.words
        table = docs.commands(program)
        tried = {name: replace(one, run=lambda _: CommandResult({})) for name, one in table.items()}
        try:
            assert CommandLine(program, "", tried).main(arguments) == 0
        except SystemExit as wrong:
            pytest.fail(f"{page.name}: {shlex.join(command.words)}: exit code {wrong.code}")


def test_a_documented_command_with_an_unknown_option_is_detected():
    shown = ours("```console\n$ gridfed-edge run meter.toml --forever  # a comment\n```\n")
    assert [one.words for one in shown] == [["gridfed-edge", "run", "meter.toml", "--forever"]]
    tried = {"run": replace(docs.commands("gridfed-edge")["run"], run=lambda _: CommandResult({}))}
    with pytest.raises(SystemExit):
        CommandLine("gridfed-edge", "", tried).main(shown[0].words[1:])


@pytest.mark.parametrize("program", MODULES)
def test_every_command_is_documented(program):
    text = "\n".join(page.read_text("utf-8") for page in WRITTEN)
    for name in docs.commands(program):
        assert f"{program} {name}" in text or f"`{name}`" in text, f"{program} {name}"


def test_the_generated_page_of_keys_and_commands_is_up_to_date():
    """Blanks apart: Pythons break the lines of a usage at other places."""
    written = docs.PAGE.read_text("utf-8")
    assert written.split() == docs.page().split(), "run: python tools/docs.py"


@pytest.mark.parametrize("config", [device_config.Config, aggregator_config.AggregatorConfig])
def test_every_configuration_key_has_a_description(config):
    text = docs.PAGE.read_text("utf-8")
    for key in docs.keys(config):
        name = re.escape(key.rpartition(".")[2])
        assert re.search(rf"^\| `{name}` \|[^\n]*\| [^|\n]*\w[^|\n]* \|$", text, re.MULTILINE), key


NO_SETTINGS = {"e", "persistent", "target", "umask", "withstands", "preaggregation", "z"}
"""Names before an equals sign that are mathematics, Python, an attack's option or a rule's key."""


def shown_settings(text: str) -> set[str]:
    """The names of the settings that a page shows as ``key = value`` within a sentence."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    shown = re.findall(r"`([a-z_]+(?:\.[a-z_0-9]+)*)`? ?= ?[^=`]", prose)
    return {name.rpartition(".")[2] for name in shown}


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.stem)
def test_every_setting_shown_is_one_that_exists(page):
    known = re.findall(r"^\| `([\w.]+)` \|", docs.PAGE.read_text("utf-8"), re.MULTILINE)
    existing = {name.rpartition(".")[2] for name in known} | NO_SETTINGS
    assert shown_settings(page.read_text("utf-8")) <= existing


def test_a_setting_of_an_old_name_would_be_found():
    assert shown_settings("Set `means.kind = 1` or `page`.") == {"kind"}


def test_every_metric_is_listed_and_no_other():
    pytest.importorskip("aggregator.metrics", exc_type=ImportError)
    families = list(all_metrics().registry.collect())
    names = {f.name + ("_total" if f.type == "counter" else "") for f in families}
    text = (ROOT / "docs" / "operating.md").read_text("utf-8")
    listed = set(re.findall(r"^\| `(gridfed_\w+)", text, re.MULTILINE))
    assert listed == names


def test_every_reason_to_refuse_is_listed_with_its_finality():
    text = (ROOT / "docs" / "operating.md").read_text("utf-8")
    rows = re.findall(r"^\| (`[A-Z_`, ]+) \| (yes|no) \|", text, re.MULTILINE)
    listed = {name: final == "yes" for names, final in rows for name in re.findall(r"\w+", names)}
    assert listed == {r.name: r.is_final for r in Reason if r is not Reason.ACCEPTED}


# --- links, configurations, code ----------------------------------------------------------------


@by_page
def test_relative_links_point_to_existing_files(page):
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)#\s]+)", text)
    gone = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert gone == []


@by_page
def test_documented_configurations_are_valid_toml(page):
    for block in blocks(page.read_text("utf-8"), "toml"):
        tomllib.loads(block)


@pytest.fixture
def device(tmp_path, monkeypatch):
    """A device's files, offline, in the folder where code of the documentation runs."""
    keys.save_signing_key(tmp_path / "meter-0042.key", keys.from_seed(b"d" * 32))
    keys.save_public(tmp_path / "root.pub", keys.from_seed(b"r" * 32).public)
    (tmp_path / "meter.toml").write_text((ROOT / "examples" / "meter.toml").read_text("utf-8"))
    monkeypatch.setenv("GRIDFED_EDGE_BROKER", '{ url = "mqtt://127.0.0.1:1" }')
    monkeypatch.setenv("GRIDFED_EDGE_STATE", "state")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "page", [p for p in PAGES if blocks(p.read_text("utf-8"), "python") and p.stem != "tutorial"],
    ids=lambda page: page.stem,
)  # fmt: skip
def test_documented_code_runs(page, device):
    """The meter and the display that a reader has are stood in for; the broker is absent.

    With the example's configuration a meter that knows nothing but its energy forecasts by a model.
    """
    intervals = [(3600.0 * hour, 1.0 + hour % 24) for hour in range(400_000, 400_072)]
    seen: list[object] = []
    for block in blocks(page.read_text("utf-8"), "python"):
        if "torch" in block:
            pytest.importorskip("torch")
        given = {
            "meter": SimpleNamespace(intervals=lambda: intervals),
            "display": SimpleNamespace(show=seen.append),
            "__name__": "shown",
        }
        exec(compile(block, page.name, "exec"), given)
        if "display.show" in block:
            assert len(seen) > 24
            assert {forecast.source for forecast in seen} == {"model"}
            assert np.isfinite([forecast.values for forecast in seen]).all()


# --- the tutorial -------------------------------------------------------------------------------


class Walk:
    """A reader who types what the tutorial shows, in one folder."""

    def __init__(self, folder: Path, broker: str):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            page = f"127.0.0.1:{listener.getsockname()[1]}"
        self.folder = folder
        self.environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "GRIDFED_EDGE_BROKER__URL": broker,
            "GRIDFED_AGGREGATOR_BROKER__URL": broker,
            "GRIDFED_AGGREGATOR_HTTP__LISTEN": page,
        }
        self.daemon: subprocess.Popen[str] | None = None

    def start(self, *words: str) -> subprocess.Popen[str]:
        program, *arguments = words
        command = [sys.executable, "-m", MODULES[program], *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=self.folder, env=self.environ, **pipes)

    def ended(self, running: subprocess.Popen[str]) -> tuple[int, str, str]:
        out, err = running.communicate(timeout=600)
        return running.returncode, out, err

    def call(self, *words: str) -> str:
        code, out, err = self.ended(self.start(*words))
        assert code == 0, f"{shlex.join(words)}: {out}{err}"
        return out

    def serve(self) -> None:
        """Start the daemon in another terminal; go on when it is ready."""
        self.daemon = self.start("gridfed-aggregator", "run", "aggregator.toml")
        end = time.monotonic() + 300
        while self.ended(self.start("gridfed-aggregator", "health"))[0] and time.monotonic() < end:
            time.sleep(0.1)

    def leave(self) -> None:
        if self.daemon is not None:
            self.daemon.send_signal(signal.SIGTERM)
            code, out, err = self.ended(self.daemon)
            self.daemon = None
            assert code == 0, out + err

    def type(self, one: Typed) -> None:
        if one.words[0] not in MODULES:
            return
        if one.words[:2] == ["gridfed-aggregator", "run"]:
            self.serve()
            return
        out = self.call(*one.words)
        if one.words[1] != "run":
            compare(one, out)


def compare(one: Typed, out: str) -> None:
    """Every line shown was printed, numbers and … apart; who is online is a matter of luck."""
    printed = [shape(line) for line in out.splitlines()]
    for line in one.shown:
        if line.strip() in ("", "…") or line.startswith("devices:"):
            continue
        pattern = ".*".join(map(re.escape, shape(line).split("…")))
        assert any(re.fullmatch(pattern, it) for it in printed), (one.words, line, out)


def shape(line: str) -> str:
    return re.sub(r"\b[0-9a-f]{12,}\b|\d[\d.:]*", "#", line.rstrip())


@pytest.fixture
def walk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        started = broker_process.start("auto", folder=tmp_path / "broker")
    except LinkError as error:
        pytest.skip(str(error))
    with started:
        reader = Walk(tmp_path, started.url)
        yield reader
        with contextlib.suppress(AssertionError):
            reader.leave()


@pytest.mark.broker
@pytest.mark.slow
def test_the_tutorial_works_as_written(walk, tmp_path, capsys):
    text = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
    for block in blocks(text, "toml"):
        (tmp_path / block.partition("\n")[0].removeprefix("# ")).write_text(block)
    first, second = text.split("## A second home")
    codes = iter(blocks(text, "python"))
    exec(next(codes), {})
    for one in typed(first):
        walk.type(one)
        if "--rolling" in one.words:
            exec(next(codes), {})
    assert re.search(
        r"model \d\.\d\d kWh, same as the day before \d\.\d\d kWh", capsys.readouterr().out
    )
    walk.leave()

    meter = (tmp_path / "meter.toml").read_text().replace("meter-1", "meter-2")
    meter = meter.replace("load-1", "load-2").replace("meter-state", "meter-2-state")
    (tmp_path / "meter-2.toml").write_text(meter)
    file = tmp_path / "aggregator.toml"
    file.write_text(file.read_text().replace("quorum = 1", "quorum = 2"))
    for one in typed(second):
        walk.type(one)
    walk.serve()
    both = [
        walk.start("gridfed-edge", "run", f"{name}.toml", "--until-done")
        for name in ("meter", "meter-2")
    ]
    assert [walk.ended(one)[0] for one in both] == [0, 0]
    walk.leave()
    assert Config.load(tmp_path / "meter-2.toml").id == "meter-2"
