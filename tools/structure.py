"""Measure the structure of the product from its own source, and draw it.

``python -m tools.structure`` prints the counts; ``--check`` fails when a bound is broken;
``--svg FILE`` draws packages as boxes in layers and imports as lines between them.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools import structure_size

ROOT = Path(__file__).parents[1]
PROGRAMS = ("edge_sdk", "aggregator", "firmware_sim")
LAYERED = ("edge_sdk", "aggregator", "aggregator.methods", "firmware_sim")
"""Packages whose direct children must form layers."""

EXTENSIONS = "extensions"
"""Package of each program whose children are options: the core imports none, and none imports another."""

VAGUE_VERBS = frozenset(("check", "handle", "take", "tell", "say", "hear", "put"))
"""Names that no public function may have: they do not say what is done."""

QUESTION_WORDS = frozenset(("Who", "What", "Whether", "How", "Where"))
"""Words that no docstring may begin with: its first line is a sentence about what the code does."""

PRIVATE_WORDS = re.compile(
    r"\b(nobody|everybody|somebody|anybody|whoever|whom|tells?|told|hears?|heard|owes|owed|liars?"
    r"|lied|lying|crew|speaks|anew|no more|goes on|for want of|by heart|for good|whereof|lest)\b",
    re.IGNORECASE,
)
"""Words that a page or docstring should not need: the field has a plainer one."""

PAGES = ("README.md", "CONTRIBUTING.md", "tests/README.md", "edge_sdk/protocol/PROTOCOL.md")
"""Pages outside of ``docs``."""

GENERATED = re.compile(r"<!-- ([\w-]+) -->.*?<!-- /\1 -->", re.DOTALL)
"""A block of a page that a tool writes between its marks."""

LARGEST_FILE = 16_384
"""Bytes of source above which a module should be split."""

CONFIGURATIONS = ("aggregator.config.sections",)
"""Modules whose ``RENAMED`` lists the configuration keys that are refused with their new name."""

FOREIGN = {"firmware_sim.ports.modbus.handle"}
"""Methods that a base class names: ``socketserver.BaseRequestHandler.handle``."""

BOUNDS = {
    "modules at the top of edge_sdk": 7,
    "modules at the top of aggregator": 4,
    "circles": 0,
    "imports of extensions by the core of edge_sdk": 0,
    "imports of extensions by the core of aggregator": 0,
    "imports of extensions by other extensions": 0,
    "class names defined twice": 0,
    "public functions with a vague verb": 0,
    "docstrings that begin with a question word": 0,
    "modules over 16 kB": 15,
    "configurations without renamed keys": 0,
    "private words in the pages": 0,
    "private words in 10,000 words of generated pages": 5,
    "private words in 10,000 words of docstrings": 5,
}
"""The largest value of a count that ``--check`` accepts."""


@dataclass(frozen=True)
class Source:
    """The modules of a checkout and their imports."""

    trees: Mapping[str, ast.Module]  # the parsed source of every module, by dotted name
    imports: Mapping[str, frozenset[str]]  # the modules that each module imports, by dotted name
    texts: Mapping[str, str]  # the source text of every module, by dotted name
    # the text of every page of the documentation that is written by hand, without the blocks that a
    # tool writes
    pages: tuple[str, ...] = ()
    generated: tuple[str, ...] = ()  # the text that tools write into the documentation


def module_name(path: Path, root: Path) -> str:
    """Return the dotted name of a source file; a package has the name of its folder.

    >>> module_name(Path("/a/edge_sdk/protocol/__init__.py"), Path("/a"))
    'edge_sdk.protocol'
    """
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read(root: Path = ROOT, programs: Iterable[str] = PROGRAMS) -> Source:
    """Parse every module of the programs below a folder."""
    texts = {
        module_name(path, root): path.read_text("utf-8")
        for program in programs
        for path in sorted((root / program).rglob("*.py"))
    }
    trees = {name: ast.parse(text) for name, text in texts.items()}
    imports = {name: _imports(tree, trees) for name, tree in trees.items()}
    return Source(trees, imports, texts, *read_pages(root))


def read_pages(root: Path = ROOT) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the texts of the documentation: written by hand, and generated."""
    reference = root / "docs" / "configuration.md"
    pages = {*(root / "docs").rglob("*.md"), *(root / name for name in PAGES)} - {reference}
    texts = [page.read_text("utf-8") for page in sorted(pages) if page.is_file()]
    blocks = [block[0] for text in texts for block in GENERATED.finditer(text)]
    blocks += [reference.read_text("utf-8")] if reference.is_file() else []
    return tuple(GENERATED.sub("", text) for text in texts), tuple(blocks)


def _imports(tree: ast.Module, known: Mapping[str, ast.Module]) -> frozenset[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in known else node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return frozenset(found & known.keys())


def child(module: str, package: str) -> str | None:
    """Return the direct child of a package that a module belongs to, or None outside of it.

    >>> child("edge_sdk.link.mqtt", "edge_sdk"), child("edge_sdk", "edge_sdk")
    ('link', None)
    """
    prefix = package + "."
    return module.removeprefix(prefix).split(".")[0] if module.startswith(prefix) else None


def edges(source: Source, package: str) -> dict[str, set[str]]:
    """Return which direct children of a package import which others."""
    found: dict[str, set[str]] = defaultdict(set)
    for module, imported in source.imports.items():
        one = child(module, package)
        if one is None:
            continue
        found[one]
        for other in imported:
            target = child(other, package)
            if target == EXTENSIONS:
                continue
            if target is not None and target != one:
                found[one].add(target)
                found[target]
    return dict(found)


def layers(graph: Mapping[str, set[str]]) -> tuple[list[list[str]], set[str]]:
    """Sort a graph into layers, importers first, and return the nodes that circles keep out of them.

    >>> layers({"a": {"b", "c"}, "b": {"c"}, "c": set()})
    ([['a'], ['b'], ['c']], set())
    >>> layers({"a": {"b"}, "b": {"a"}}) == ([], {"a", "b"})
    True
    """
    left, found = set(graph), list[list[str]]()
    while left:
        free = sorted(name for name in left if not graph[name] & left)
        if not free:
            return found[::-1], left
        found.append(free)
        left -= set(free)
    return found[::-1], set()


def extension_of(module: str) -> str | None:
    """Return the extension that a module belongs to, or None for the core.

    >>> extension_of("edge_sdk.extensions.analytic.boosting"), extension_of("edge_sdk.client")
    ('edge_sdk.extensions.analytic', None)
    """
    parts = module.split(".")
    return ".".join(parts[:3]) if len(parts) > 2 and parts[1] == EXTENSIONS else None


def extension_imports(source: Source) -> dict[str, list[str]]:
    """Return the imports of extensions that the rule forbids, by importing program, and by extensions."""
    found: dict[str, list[str]] = defaultdict(list)
    for module, imported in source.imports.items():
        own, program = extension_of(module), module.partition(".")[0]
        for other in imported:
            target = extension_of(other)
            if target is None or program not in ("edge_sdk", "aggregator"):
                continue
            if own is None:
                found[f"the core of {program}"].append(f"{module} -> {other}")
            elif own != target and target.startswith(program):
                found["other extensions"].append(f"{module} -> {other}")
    return found


def classes(source: Source) -> dict[str, list[str]]:
    """Return the modules that define each public class at their top level."""
    found: dict[str, list[str]] = defaultdict(list)
    for module, tree in source.trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(module)
    return dict(found)


def vague_functions(source: Source) -> list[str]:
    """Return the public functions and methods whose name is one of ``VAGUE_VERBS``.

    A name that a base class of the standard library demands (``FOREIGN``) is not counted.
    """
    return [
        f"{module}.{node.name}"
        for module, tree in source.trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and node.name in VAGUE_VERBS
        and f"{module}.{node.name}" not in FOREIGN
    ]


def question_docstrings(source: Source) -> list[str]:
    """Return the definitions whose docstring begins with a question word."""
    found = []
    for module, tree in source.trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = (ast.get_docstring(node) or "").split(maxsplit=1)
                if text and text[0].rstrip(",:") in QUESTION_WORDS:
                    found.append(f"{module}:{getattr(node, 'name', '')}")
    return found


def docstrings(source: Source) -> list[str]:
    """Return every docstring of the modules."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = (node for tree in source.trees.values() for node in ast.walk(tree))
    return [ast.get_docstring(node) or "" for node in nodes if isinstance(node, kinds)]


def private_words(texts: Iterable[str]) -> int:
    """Return the number of ``PRIVATE_WORDS`` in 10,000 words, rounded down.

    >>> private_words(["Nobody is told.", "Return the devices that are present."])
    2222
    """
    whole = "\n".join(texts)
    words = len(re.findall(r"[A-Za-z]+", whole))
    return 10_000 * len(PRIVATE_WORDS.findall(whole)) // max(words, 1)


def renamed_keys(source: Source) -> dict[str, int]:
    """Return the number of entries in the ``RENAMED`` table of each configuration."""
    found = {}
    for module in CONFIGURATIONS:
        for node in source.trees[module].body if module in source.trees else ():
            target = node.target if isinstance(node, ast.AnnAssign) else None
            if isinstance(target, ast.Name) and target.id == "RENAMED":
                assert isinstance(node, ast.AnnAssign)
                found[module] = len(node.value.keys) if isinstance(node.value, ast.Dict) else 0
    return found


def counts(source: Source) -> dict[str, int]:
    """Return every count by its name."""
    top = {
        program: sum(
            name.count(".") == 1 and not _is_package(name, source) and "__" not in name
            for name in source.trees
            if name.startswith(program + ".")
        )
        for program in PROGRAMS
    }
    sorted_ = {package: layers(edges(source, package)) for package in LAYERED}
    return {
        **{f"modules at the top of {program}": number for program, number in top.items()},
        **{f"layers of {package}": len(found) for package, (found, _) in sorted_.items()},
        **{
            f"imports of extensions by {who}": len(extension_imports(source)[who])
            for who in ("the core of edge_sdk", "the core of aggregator", "other extensions")
        },
        "circles": sum(bool(kept) for _, kept in sorted_.values()),
        "class names defined twice": sum(len(where) > 1 for where in classes(source).values()),
        "public functions with a vague verb": len(vague_functions(source)),
        "docstrings that begin with a question word": len(question_docstrings(source)),
        "modules": len(source.trees),
        "modules over 16 kB": sum(len(t.encode()) > LARGEST_FILE for t in source.texts.values()),
        **{f"renamed keys in {name}": n for name, n in renamed_keys(source).items()},
        "configurations without renamed keys": len(CONFIGURATIONS) - len(renamed_keys(source)),
        "private words in the pages": len(PRIVATE_WORDS.findall("\n".join(source.pages))),
        "private words in 10,000 words of generated pages": private_words(source.generated),
        "private words in 10,000 words of docstrings": private_words(docstrings(source)),
    }


def _is_package(name: str, source: Source) -> bool:
    return any(other.startswith(name + ".") for other in source.trees)


def svg(source: Source, package: str) -> str:
    """Draw the children of a package in layers, importers above imported."""
    graph = edges(source, package)
    rows, kept = layers(graph)
    rows = [*rows, *([sorted(kept)] if kept else [])]
    width = 20 + 150 * max(len(row) for row in rows)
    at = {
        name: (width / 2 + 150 * (place - (len(row) - 1) / 2), 40 + 70 * number)
        for number, row in enumerate(rows)
        for place, name in enumerate(row)
    }
    lines = [
        f'<line x1="{at[one][0]:.0f}" y1="{at[one][1] + 14:.0f}" '
        f'x2="{at[two][0]:.0f}" y2="{at[two][1] - 14:.0f}"/>'
        for one in sorted(graph)
        for two in sorted(graph[one])
    ]
    boxes = [
        f'<rect x="{x - 65:.0f}" y="{y - 14:.0f}" width="130" height="28" rx="4"/>'
        f'<text x="{x:.0f}" y="{y + 4:.0f}">{name}</text>'
        for name, (x, y) in sorted(at.items())
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {70 * len(rows) + 10}">',
            f"<title>Packages of {package}; lines lead from importer to imported</title>",
            "<style>rect{fill:#f4f6f8;stroke:#456}line{stroke:#9ab;stroke-width:1}</style>",
            "<style>text{font:13px sans-serif;text-anchor:middle;fill:#123}</style>",
            *lines,
            *boxes,
            "</svg>\n",
        ]
    )


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.structure", description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when a bound is broken")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--list", action="store_true", help="name what the counts count")
    parser.add_argument(
        "--svg", type=Path, metavar="FOLDER", help="write a drawing of each package"
    )
    args = parser.parse_args()
    source = read()
    found = counts(source) | structure_size.sizes(source.trees, source.texts)
    if args.svg is not None:
        for package in LAYERED:
            (args.svg / f"structure-{package.replace('.', '-')}.svg").write_text(
                svg(source, package), "utf-8"
            )
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        for name, number in found.items():
            print(f"{number:6d}  {name}")
    if args.list:
        twice = [f"{name}: {', '.join(w)}" for name, w in classes(source).items() if len(w) > 1]
        across = [line for lines in extension_imports(source).values() for line in sorted(lines)]
        large = structure_size.named(source.trees)
        vague = [*vague_functions(source), *question_docstrings(source)]
        print("\n".join([*across, *twice, *vague, *large]))
    bounds = BOUNDS | structure_size.BOUNDS
    broken = [name for name, most in bounds.items() if found[name] > most]
    for name in broken:
        print(f"{name}: {found[name]}, at most {bounds[name]}", file=sys.stderr)
    return 1 if args.check and broken else 0


if __name__ == "__main__":
    sys.exit(main())
