"""The Grafana dashboards that we ship: valid, on exported metrics, with units and descriptions."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from edge_sdk.app.extensions import ExtensionIndex
from tests.all_metrics import all_metrics
from tests.test_alerts import RULES, exported

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "grafana"
BOARDS = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))}
SCRAPED = {"instance", "job"}  # labels that Prometheus adds

by_board = pytest.mark.parametrize("board", BOARDS.values(), ids=list(BOARDS))


def known_labels(tmp_path):
    """Return every sample's name with its labels, those of metrics without a sample included."""
    found = exported(tmp_path)
    for collector, names in all_metrics().registry._collector_to_names.items():
        for name in names:
            found.setdefault(name, set()).update(collector._labelnames)
    return found


def expressions(board):
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def test_there_are_two_boards_with_ids_of_their_own():
    assert set(BOARDS) == {"aggregator", "fleet"}
    assert len({board["uid"] for board in BOARDS.values()}) == 2
    assert len({board["title"] for board in BOARDS.values()}) == 2


@by_board
def test_every_expression_names_exported_metrics_and_their_labels(board, tmp_path):
    known = known_labels(tmp_path)
    for panel in board["panels"]:
        for target in panel["targets"]:
            named = re.findall(r"(gridfed_\w+)(?:\{([^}]*)\})?", target["expr"])
            assert named, target["expr"]
            labels = set()
            for name, matchers in named:
                assert name in known, name
                assert set(re.findall(r"(\w+)=", matchers)) <= known[name] | SCRAPED
                labels |= known[name]
            grouped = re.findall(r"by \(([^)]*)\)", target["expr"])
            assert {one.strip() for text in grouped for one in text.split(",")} <= labels
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels


@by_board
def test_every_panel_has_a_description_a_unit_and_a_place_of_its_own(board):
    taken = set()
    assert [panel["id"] for panel in board["panels"]] == list(range(1, len(board["panels"]) + 1))
    for panel in board["panels"]:
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert taken.isdisjoint(cells), panel["title"]
        taken |= cells


@by_board
def test_every_variable_of_a_board_is_defined(board):
    defined = {one["name"] for one in board["templating"]["list"]}
    text = json.dumps(board)
    used = set(re.findall(r"\$\{(\w+)\}", text)) | set(re.findall(r"\$([a-z]\w*)", text))
    assert used == defined


@by_board
def test_promtool_accepts_every_expression(board, tmp_path):
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool (of Prometheus) is not installed")
    rules = [
        {"record": f"checked:{number}", "expr": _without_variables(one)}
        for number, one in enumerate(expressions(board))
    ]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "checked", "rules": rules}]}), "utf-8")
    done = subprocess.run(
        [found, "check", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _without_variables(expression):
    return expression.replace("$__rate_interval", "5m").replace("$instance", ".*")


def test_provisioning_reads_files():
    document = yaml.safe_load((FOLDER / "dashboards.yml").read_text("utf-8"))
    (provider,) = document["providers"]
    assert (document["apiVersion"], provider["type"]) == (1, "file")


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_every_alert_names_a_page_of_the_console(rule):
    rendering = pytest.importorskip(
        "aggregator.extensions.console.rendering",
        reason="the console extra is not installed",
        exc_type=ImportError,
    )
    address = rule["annotations"]["console"].partition("?")[0]
    brought = {f"/{name}" for name in ExtensionIndex("aggregator").loaders("pages")}
    assert address in brought | {page for page, _ in rendering.PAGES}
