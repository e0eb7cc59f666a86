"""What a simulator may reach of a device: public names; and nobody changes another one's fields."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_sdk import Client

ROOT = Path(__file__).resolve().parents[2]
SIMULATOR = sorted((ROOT / "firmware_sim").rglob("*.py"))
SDK = sorted((ROOT / "edge_sdk").rglob("*.py"))

FOREIGN = {
    "edge_sdk/link/__init__.py": {"sys"},  # for the time of one import
    "edge_sdk/app/cli.py": {"parser"},  # of argparse
    "edge_sdk/app/command_line.py": {"sys"},  # the interpreter's hook
    "edge_sdk/extensions/outputs/http.py": {"timer"},  # of threading
    "edge_sdk/runtime/onnx_reader.py": {"array.flags"},  # of numpy
    "edge_sdk/runtime/ort_engine.py": {"options"},  # of onnxruntime
    "edge_sdk/extensions/sources/http_poll.py": {"link"},  # of http.client
    "edge_sdk/extensions/sources/pm3gpp.py": {
        "parser",
        "self.group",
    },  # of expat; a record of that module
    "edge_sdk/protocol/contract/archive.py": {"entry"},  # of zipfile
    "edge_sdk/link/broker_options.py": {"context"},  # of ssl
    "edge_sdk/link/loopback.py": {  # records of that module, a broker for tests
        "session",
        "self._sessions[client_id]",
        "self._tree.at(topic_filter.split('/'))",
    },
    "edge_sdk/app/lean_dataclass.py": {"init", "made", "made.__dataclass_params__"},
    "edge_sdk/link/tls_files.py": {"context"},  # of ssl
    "edge_sdk/link/mqtt.py": {"client", "properties"},  # of paho
}
"""Objects of other libraries that are set up by assigning their attributes, by file."""

NAMED_TUPLE = {"_replace", "_asdict", "_fields"}
"""Public methods of a named tuple: the underscore keeps them apart from its fields."""


def private_reads(source: str) -> Iterator[str]:
    """Yield every private attribute that is used of an object other than ``self`` or ``cls``.

    One that the same module assigns or defines is its own.
    """
    tree = ast.parse(source)
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    own |= {
        node.target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_"):
            continue
        is_own = isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}
        if is_own or node.attr.startswith("__") or node.attr in NAMED_TUPLE or node.attr in own:
            continue
        yield f"{node.lineno}: {ast.unparse(node)}"


def outside_assignments(source: str) -> Iterator[tuple[str, str]]:
    """Yield object and statement of every assignment to an attribute of another object.

    An element of such an attribute counts, too: ``part.counts[name] += 1``.
    """
    for node in ast.walk(ast.parse(source)):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = [*node.targets]
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        while targets:
            target = targets.pop()
            if isinstance(target, ast.Tuple | ast.List):
                targets += target.elts
                continue
            while isinstance(target, ast.Subscript | ast.Starred):
                target = target.value
            if not isinstance(target, ast.Attribute):
                continue
            if not (isinstance(target.value, ast.Name) and target.value.id in {"self", "cls"}):
                yield ast.unparse(target.value), f"{node.lineno}: {ast.unparse(node)}"


def test_an_outside_assignment_is_found():
    found = [one for one, _ in outside_assignments("a.b, self.part.c = 1, 2; self.d[0] = 3")]
    assert sorted(found) == ["a", "self.part"]
    assert [one for one, _ in outside_assignments("x.y[0] += 1; del z.w[1]")] == ["x", "z"]


@pytest.mark.parametrize("path", SDK, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_assigns_a_field_of_another_object(path):
    foreign = FOREIGN.get(path.relative_to(ROOT).as_posix(), set())
    found = outside_assignments(path.read_text("utf-8"))
    assert [line for owner, line in found if owner not in foreign] == []


@pytest.mark.parametrize("path", SDK, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_uses_a_private_attribute_of_another_object(path):
    found = private_reads(path.read_text("utf-8"))
    assert [line for line in found if not line.endswith(("zlib._Decompress", "os._exit"))] == []


def test_a_private_read_is_found():
    assert list(private_reads("x = client._session.counts")) == ["1: client._session"]
    assert list(private_reads("super()._sealed()")) == ["1: super()._sealed"]
    assert list(private_reads("self._own = row._replace(a=1)")) == []


@pytest.mark.parametrize("path", SIMULATOR, ids=lambda path: path.stem)
def test_the_simulator_uses_no_private_attribute_of_another_object(path):
    assert list(private_reads(path.read_text("utf-8"))) == []


def simulator_classes() -> Iterator[type]:
    for path in SIMULATOR:
        if path.name == "__main__.py":
            continue
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        module = importlib.import_module(name)
        for _, found in inspect.getmembers(module, inspect.isclass):
            if found.__module__ == name:
                yield found


def test_the_simulator_derives_no_client_and_overrides_no_private_name_of_the_sdk():
    classes = list(simulator_classes())
    assert len(classes) > 40
    assert [one.__qualname__ for one in classes if issubclass(one, Client)] == []
    overridden = [
        f"{one.__qualname__}.{name}"
        for one in classes
        for base in one.__mro__[1:]
        if base.__module__.startswith("edge_sdk")
        for name in set(vars(one)) & set(vars(base))
        if name.startswith("_") and not name.startswith("__") and not name.startswith("_abc")
    ]
    assert overridden == []
