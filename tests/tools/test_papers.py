"""The records of the four papers: nothing left out, functions exist, pages are made of them."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from edge_sdk.app.schema import SchemaError, build
from tools import reproduce
from tools.papers import drawings, pages
from tools.papers.records import PAPERS, Exhibit, read

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

NUMBERED = {  # what each paper numbers
    "pfgl": [f"({n})" for n in range(1, 20)],
    "pl-fl": ["(1a)", "(1f)", "(2)", "(3)", "(4)"],
    "graph-aware": [f"(10.{n})" for n in range(1, 21) if n not in {5, 6}]
    + ["(10.5a)", "(10.5b)", "(10.6a)", "(10.6b)"],
    "bafdp": [f"({n})" for n in range(1, 26)],
}
SHOWN = {
    "pfgl": {f"Table {n}" for n in ("I", "II", "III", "IV", "V", "VI", "VII")}
    | {f"Fig. {n}" for n in range(1, 5)},
    "pl-fl": {f"Table {n}" for n in ("I", "II", "III", "IV", "V")}
    | {f"Fig. {n}" for n in range(1, 5)},
    "graph-aware": {"Table 10.1", "Table 10.2"} | {f"Fig. 10.{n}" for n in range(1, 5)},
    "bafdp": {f"Table {n}" for n in ("I", "II", "III", "IV")}
    | {"Fig. 1", "Fig. 2", "Fig. 3", "Fig. 4 to 6", "Fig. 7", "Fig. 8"},
}


def defined(path):
    """Return the names of the functions and classes at a module's top."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {node.name for node in tree.body if isinstance(node, kinds)}


@pytest.mark.parametrize("name", PAPERS)
def test_every_function_that_a_page_names_exists(name):
    for equation in read(name).equation:
        for where in equation.where:
            path, _, function = where.partition(":")
            assert function in defined(path), f"{equation.number}: {where}"


@pytest.mark.parametrize("name", PAPERS)
def test_every_name_that_stands_for_a_symbol_is_in_the_code(name):
    for symbol in read(name).symbol:
        for where in symbol.where:
            path, _, function = where.partition(":")
            assert function in defined(path), f"{symbol.printed}: {where}"
        code = "".join((ROOT / x.partition(":")[0]).read_text("utf-8") for x in symbol.where)
        for word in re.findall(r"`(\w+)`", symbol.here):
            assert re.search(rf"\b{word}\b", code), f"{symbol.printed}: {word}"


@pytest.mark.parametrize("name", PAPERS)
def test_symbols_without_a_name_say_so(name):
    lacking = [x for x in read(name).symbol if not x.where]
    assert all("no code computes" in x.here for x in lacking)
    assert len(read(name).symbol) >= 17


def numbers_of(text):
    """Return every number that an entry stands for: ``(10.16) to (10.19)`` is four."""
    found = re.findall(r"\((?:10\.)?\d+[a-f]?\)", text)
    if ") to (" in text and not found[-1][-2].isalpha():
        for first, last in re.findall(r"\(([\d.]+)\) to \(([\d.]+)\)", text):
            head, _, low = first.rpartition(".")
            high = last.rpartition(".")[2]
            dot = f"{head}." if head else ""
            found += [f"({dot}{n})" for n in range(int(low), int(high) + 1)]
    return set(found)


@pytest.mark.parametrize("name", PAPERS)
def test_every_numbered_equation_has_a_line(name):
    found = set().union(*(numbers_of(x.number) for x in read(name).equation))
    assert found >= set(NUMBERED[name])


@pytest.mark.parametrize("name", PAPERS)
def test_every_table_and_figure_has_a_line(name):
    listed = [one.name for one in read(name).exhibit]
    assert len(listed) == len(set(listed))
    assert set(listed) == SHOWN[name]


@pytest.mark.parametrize("name", PAPERS)
def test_ten_lines_say_what_a_paper_proposes(name):
    assert len(read(name).proposes) == 10


def test_the_pages_are_made_of_the_records():
    made = pages.files(DOCS)
    stale = [path.name for path, text in made.items() if path.read_text("utf-8") != text]
    assert not stale, "run tools/reproduce.py list --docs docs"
    assert {x for x in (DOCS / "papers").iterdir() if x.suffix != ".md"} <= set(made)


def test_the_list_names_state_date_and_command(capsys):
    assert reproduce.main(["list"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 1 + sum(map(len, SHOWN.values()))
    for line, row in zip(said[1:], pages.listed(), strict=True):
        assert all(field in line for field in row)


def test_the_list_stands_alone(capsys):
    with pytest.raises(SystemExit):
        reproduce.main(["list", "e7"])
    assert "list stands alone" in capsys.readouterr().err


def test_commands_name_experiments_that_exist():
    for _, name, _, _, command in pages.listed():
        if command.startswith("python tools/reproduce.py"):
            reproduce.parse(command.split()[2:])
        assert command.split()[0] in {
            "python",
            "pytest",
            "gridfed-sim",
            "gridfed-aggregator",
        }, name


def slug(heading):
    """Return a heading's anchor, as the site makes it."""
    words = re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower()
    return re.sub(r"[-\s]+", "-", words)


def test_links_to_results_lead_to_a_heading():
    for name in PAPERS:
        for one in read(name).exhibit:
            page, _, anchor = one.where.partition("#")
            text = (DOCS / page).read_text("utf-8")
            anchors = {slug(line.lstrip("# ")) for line in text.splitlines() if line[:1] == "#"}
            assert not anchor or anchor in anchors, f"{name} {one.name}: {one.where}"


def test_a_pictures_numbers_are_on_a_page_of_experiments():
    shown = ("experiments.md", "papers/pfgl-stations.md")
    text = "\n".join((DOCS / x).read_text("utf-8") for x in shown)
    known = {float(x) for x in re.findall(r"[-+]?\d+\.?\d*", text)}
    for name in PAPERS:
        for one in read(name).exhibit:
            for label, value in one.bars.items():
                if "paper" not in label:
                    assert {value, -value} & known, f"{name} {one.name} {label}: {value:g}"


def test_pictures_are_small_and_load_nothing():
    pictures = [path for path in pages.files(DOCS) if path.suffix == ".svg"]
    assert len(pictures) >= 12
    for path in pictures:
        text = path.read_text("utf-8")
        is_large = "<polyline" in text or path.stem == "combined"
        assert len(text) < (30_000 if is_large else 6000)
        assert "href" not in text
        assert ET.fromstring(text).tag.endswith("svg")


@pytest.mark.parametrize("name", PAPERS)
def test_every_experiment_of_a_page_has_minutes_and_memory(name):
    paper = read(name)
    commands = {one.command for one in paper.exhibit if "reproduce.py" in one.command}
    named = {command.split()[2] for command in (*commands, paper.repeat)}
    assert {cost.command.split()[0] for cost in paper.costs} >= named
    assert all(cost.minutes > 0 and cost.mib > 0 for cost in paper.costs)
    for cost in paper.costs:
        reproduce.parse([*cost.command.split(), "--data", "data"])


@pytest.mark.parametrize("name", PAPERS)
def test_every_figure_has_a_picture(name):
    figures = [one for one in read(name).exhibit if one.name.startswith("Fig")]
    assert [one.name for one in figures if not one.has_picture] == []


def test_a_heat_map_shows_a_weight_of_zero_in_red_and_the_largest_the_darkest():
    weights = drawings.Weights("weights", ("a", "b"), ((1.0, 0.0), (0.5, 0.5)))
    found = re.findall(r'fill="(#\w+)"', drawings.heat_map(weights))
    assert found == ["#2828f0", "#b42318", "#8c8cf0", "#8c8cf0"]


def test_a_heat_map_without_a_square_of_weights_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(drawings, "FOLDER", tmp_path)
    (tmp_path / "x.json").write_text('{"title": "x", "names": ["a", "b"], "rows": [[1.0, 0.0]]}')
    with pytest.raises(ValueError, match=r"x\.json: expected 2 rows"):
        drawings.read("x")


def test_a_diagram_names_its_lanes_and_paints_what_stays_on_the_device_brown():
    picture = ET.fromstring(drawings.diagram({"device": ["window", "~head"], "server": ["mean"]}))
    texts = [x.text for x in picture if x.tag.endswith("text")]
    assert texts == ["device", "window", "head", "server", "mean"]
    assert [x.get("fill") for x in picture if x.tag.endswith("rect")] == [
        "#dbe7f3",
        "#f3e3d0",
        "#dbe7f3",
    ]


def test_an_incomplete_record_is_refused():
    with pytest.raises(SchemaError, match=r"state: unknown"):
        build(Exhibit, {"name": "x", "what": "x", "state": "done", "date": "2026-01-01"}
              | {"command": "x", "where": "x", "paper": "x", "ours": "x"})  # fmt: skip
