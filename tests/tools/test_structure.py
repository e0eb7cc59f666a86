"""The counts of the product's structure count what they name; ``make contracts`` checks their bounds."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

from aggregator import config
from tools import structure, structure_size


def test_every_renamed_key_is_counted():
    texts = {
        name: Path(import_module(name).__file__).read_text("utf-8")
        for name in structure.CONFIGURATIONS
    }
    trees = {name: ast.parse(text) for name, text in texts.items()}
    found = structure.renamed_keys(structure.Source(trees, {}, texts))
    assert set(found) == set(structure.CONFIGURATIONS)
    assert found["aggregator.config.sections"] == len(config.RENAMED)


def test_private_words_are_counted_by_the_word():
    assert structure.private_words(["nobody foretold it"]) == 3333
    assert structure.private_words([]) == 0


def test_a_block_that_a_tool_writes_is_not_a_page_written_by_hand(tmp_path):
    (tmp_path / "docs").mkdir()
    page = "Plain.\n<!-- e13 -->\nnobody lies\n<!-- /e13 -->\nWritten."
    (tmp_path / "docs" / "rules.md").write_text(page)
    (tmp_path / "docs" / "configuration.md").write_text("a key")
    written, generated = structure.read_pages(tmp_path)
    assert written == ("Plain.\n\nWritten.",)
    assert generated == ("<!-- e13 -->\nnobody lies\n<!-- /e13 -->", "a key")


def test_a_string_over_several_lines_is_code_and_a_docstring_is_not():
    text = 'def f():\n    """Doc.\n\n    More.\n    """\n    return """a\nb"""\n'
    assert structure_size.code_lines(text, ast.parse(text)) == {1, 6, 7}


def test_the_constructor_of_a_record_is_not_counted():
    fields = "".join(f"    f{number}: int\n" for number in range(7))
    part, record = (f"@dataclass({how})\nclass A:\n{fields}" for how in ("", "frozen=True"))
    assert list(structure_size.long_constructors(ast.parse(part))) == ["A"]
    assert list(structure_size.long_constructors(ast.parse(record))) == []


def test_a_member_with_work_of_its_own_is_no_forwarder():
    text = (
        "class Part:\n"
        " def ready(self, now):\n  return self._link.ready(now)\n"
        " def due(self):\n  return self._link.due(1)\n"
        " def total(self):\n  return self.a.sum()\n"
        " @cached_property\n def spec(self):\n  return self.a.spec()\n"
    )
    assert list(structure_size.forwarders(ast.parse(text), {})) == ["ready"]


def test_an_interface_is_no_forwarder():
    text = "class {}:\n @property\n def now(self):\n  {}return self._link.now\n"
    for owner, doc, found in (
        ("Part", "'Return it.'\n  ", ["now"]),
        ("Part(Timed)", "", []),
        ("Part(Other)", "", ["now"]),
        ("Client", "'Return it.'\n  ", []),
        ("Client", "", ["now"]),
    ):
        tree = ast.parse(text.format(owner, doc))
        assert list(structure_size.forwarders(tree, {"Timed": {"now"}})) == found, (owner, doc)


def test_every_bound_of_size_has_a_count():
    trees = {"edge_sdk": ast.parse(""), "aggregator": ast.parse("")}
    found = structure_size.sizes(trees, dict.fromkeys(trees, ""))
    assert found.keys() == structure_size.BOUNDS.keys()
