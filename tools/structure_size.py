"""Count what a reader of the product has to read, and what a program loads.

A line of code has a token other than a comment or a docstring; the core is everything outside of the
folders ``extensions``.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import edge_sdk

ROOT = Path(__file__).parents[1]
PROGRAMS = ("edge_sdk", "aggregator")
STARTS = {
    "a meter": ("edge_sdk.agent", "edge_sdk.config", "Config", "meter.toml"),
    "the daemon": ("aggregator.daemon", "aggregator.config", "AggregatorConfig", "aggregator.toml"),
}
"""By program: the module that runs it, the module and class of its configuration, the example."""

ARGUMENTS = 6
"""Most arguments of a constructor of the core."""

BOUNDS = {  # may only fall; the goals are those of the plan for the core
    "lines of code in the core of edge_sdk": 14_000,
    "lines of code in the core of aggregator": 13_075,
    "lines of code in edge_sdk": 37_100,
    "lines of code in aggregator": 36_950,
    "lines in edge_sdk": 58_500,
    "lines in aggregator": 55_100,
    "files in the core of edge_sdk": 112,
    "files in the core of aggregator": 110,
    "modules loaded by a meter": 98,
    "lines loaded by a meter": 19_550,  # goal: 14,000
    "modules loaded by the daemon": 148,
    "lines loaded by the daemon": 25_900,
    "imports in 1,000 lines of code": 116,  # goal: 90
    "constructors of the core with more than 6 arguments": 0,
    "members that forward to the same member of an attribute": 15,  # goal: 0
    "long public functions without a docstring": 0,
}
"""The largest value of a count that ``python -m tools.structure --check`` accepts."""

_NO_CODE = frozenset(
    (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
        tokenize.ENDMARKER,
    )
)


def is_core(module: str) -> bool:
    return module.split(".")[1:2] != ["extensions"]


def code_lines(text: str, tree: ast.Module) -> set[int]:
    """Return the numbers of the lines with code.

    >>> text = '"doc"' + chr(10) + "# comment" + chr(10) + "x = (" + chr(10) + "    1)"
    >>> sorted(code_lines(text, ast.parse(text)))
    [3, 4]
    """
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and _is_text(node.value):
            found.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def import_lines(tree: ast.Module) -> int:
    """Return the number of lines of import statements."""
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    )


def long_constructors(tree: ast.Module) -> Iterator[str]:
    """Yield the classes whose constructor has more than ``ARGUMENTS`` arguments.

    A frozen dataclass is a record, of which every field is an argument: it is not counted.

    >>> wide = ast.parse("class Wide:" + chr(10) + " def __init__(self, a, b, c, d, e, f, g): ...")
    >>> list(long_constructors(wide))
    ['Wide']
    """
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        count = 0
        made = [ast.unparse(one) for one in node.decorator_list if "dataclass" in ast.unparse(one)]
        if made and "frozen=True" not in made[0]:
            count = sum(_is_argument(one) for one in node.body)
        for one in node.body:
            if isinstance(one, ast.FunctionDef) and one.name == "__init__":
                count = len(one.args.posonlyargs + one.args.args + one.args.kwonlyargs) - 1
        if count > ARGUMENTS:
            yield node.name


def _is_argument(node: ast.stmt) -> bool:
    if not isinstance(node, ast.AnnAssign) or "ClassVar" in ast.unparse(node.annotation):
        return False
    private = isinstance(node.target, ast.Name) and node.target.id.startswith("_")
    return not private and (node.value is None or "init=False" not in ast.unparse(node.value))


def forwarders(tree: ast.Module, demanded: Mapping[str, set[str]]) -> Iterator[str]:
    """Yield the members that only return or call the member of the same name of an attribute.

    A member is an interface and not counted if a class above its own, in the class statement,
    has it, or if its class is a public name of ``edge_sdk`` and it has a docstring. A call with
    other arguments than the member's own does more than forward.

    Args:
        tree: The source of a module.
        demanded: The members of every class of the product, by name of the class.

    >>> link = "class Link:" + chr(10) + " def close(self): self._link.close()"
    >>> list(forwarders(ast.parse(link), {})), list(forwarders(ast.parse(link), {"Link": {"close"}}))
    (['close'], ['close'])
    >>> list(forwarders(ast.parse(link.replace(":", "(Base):", 1)), {"Base": {"close"}}))
    []
    """
    for owner in ast.walk(tree):
        if not isinstance(owner, ast.ClassDef):
            continue
        above = [ast.unparse(base).split("[")[0].split(".")[-1] for base in owner.bases]
        interface = set[str]().union(*(demanded.get(base, set()) for base in above))
        for node in owner.body:
            if isinstance(node, ast.FunctionDef) and _is_forwarder(node):
                is_api = owner.name in edge_sdk.__all__ and ast.get_docstring(node) is not None
                if node.name not in interface and not is_api:
                    yield node.name


def _is_forwarder(node: ast.FunctionDef) -> bool:
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if len(body) != 1 or not isinstance(body[0], ast.Return | ast.Expr):
        return False
    value = body[0].value
    if isinstance(value, ast.Call):
        given = [*map(ast.unparse, value.args), *(ast.unparse(one.value) for one in value.keywords)]
        its = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
        if given != [one.arg for one in its[1:]]:
            return False
        value = value.func
    made = {ast.unparse(one) for one in node.decorator_list}
    return (
        isinstance(value, ast.Attribute)
        and value.attr == node.name
        and ast.unparse(value.value).startswith("self.")
        and "cached_property" not in made
    )


def members(trees: Iterable[ast.Module]) -> dict[str, set[str]]:
    """Return the members that every class defines, by name of the class."""
    return {
        node.name: {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }


def undocumented(tree: ast.Module) -> Iterator[str]:
    """Yield the public functions with arguments and more than two statements, without a docstring."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            if ast.get_docstring(node) is None and arguments and len(node.body) > 2:
                yield node.name


def loaded(start: tuple[str, str, str, str], root: Path = ROOT) -> list[Path]:
    """Return our source files that a program imports for an example of its configuration.

    An extension counts that is on by a default, with what it gives before the first task.

    Args:
        start: A row of ``STARTS``.
        root: The checkout.
    """
    module, configuration, name, file = start
    path = root / "examples" / file
    statement = (
        f"import sys, {module}, {configuration} as c; read = c.{name}.load({str(path)!r})\n"
        "for one in read.index.configured(read.tables):\n"
        "    for key in ('extension', 'forecaster', 'agent', 'device'):\n"
        "        'begins' in one.row and key == 'extension' or one.load(key)\n"
        "print(*(m.__file__ for m in sys.modules.values() if getattr(m, '__file__', None)), sep='\\n')"
    )
    run = subprocess.run(
        [sys.executable, "-c", statement], cwd=root, capture_output=True, text=True, check=True
    )
    files = (Path(line) for line in run.stdout.splitlines())
    ours = tuple(str(root / program) + "/" for program in PROGRAMS)
    return [file for file in files if str(file).startswith(ours)]


def named(trees: Mapping[str, ast.Module]) -> list[str]:
    """Return the long constructors of the core, and the forwarding members."""
    own = {name: tree for name, tree in trees.items() if name.partition(".")[0] in PROGRAMS}
    core = [
        f"{name}.{one}(...)"
        for name in own
        if is_core(name)
        for one in long_constructors(own[name])
    ]
    demanded = members(own.values())
    return core + [
        f"{name}:{one} forwards" for name in own for one in forwarders(own[name], demanded)
    ]


def sizes(trees: Mapping[str, ast.Module], texts: Mapping[str, str]) -> dict[str, int]:
    """Return every count of size by its name."""
    code = {
        name: len(code_lines(text, trees[name]))
        for name, text in texts.items()
        if name.partition(".")[0] in PROGRAMS
    }
    found: dict[str, int] = {}
    for program in PROGRAMS:
        own = [name for name in code if name.partition(".")[0] == program]
        core = [name for name in own if is_core(name)]
        found[f"lines of code in the core of {program}"] = sum(code[name] for name in core)
        found[f"lines of code in {program}"] = sum(code[name] for name in own)
        found[f"lines in {program}"] = sum(texts[name].count("\n") for name in own)
        found[f"files in the core of {program}"] = len(core)
    for program, start in STARTS.items():
        files = loaded(start)
        found[f"modules loaded by {program}"] = len(files)
        found[f"lines loaded by {program}"] = sum(f.read_text("utf-8").count("\n") for f in files)
    imports = sum(import_lines(trees[name]) for name in code)
    found["imports in 1,000 lines of code"] = 1000 * imports // max(sum(code.values()), 1)
    found["constructors of the core with more than 6 arguments"] = sum(
        len(list(long_constructors(trees[name]))) for name in code if is_core(name)
    )
    demanded = members(trees.values())
    found["members that forward to the same member of an attribute"] = sum(
        len(list(forwarders(trees[name], demanded))) for name in code
    )
    found["long public functions without a docstring"] = sum(
        len(list(undocumented(trees[name]))) for name in code
    )
    return found
