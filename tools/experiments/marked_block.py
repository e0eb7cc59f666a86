"""Write an experiment's results into a page, between two marker lines."""

from __future__ import annotations

from pathlib import Path


def replace_block(path: Path, marker: str, text: str) -> None:
    """Replace the text between the two marker lines of a page.

    Raises:
        ValueError: The page has not exactly two of these lines; it is left as it is.

    >>> import tempfile
    >>> page = Path(tempfile.mkdtemp()) / "page.md"
    >>> _ = page.write_text("before <!-- x --> old <!-- x --> after")
    >>> replace_block(page, "<!-- x -->", "new")
    >>> page.read_text().split()
    ['before', '<!--', 'x', '-->', 'new', '<!--', 'x', '-->', 'after']
    """
    parts = path.read_text("utf-8").split(marker)
    if len(parts) != 3:
        raise ValueError(f"{path} has {len(parts) - 1} lines {marker!r}; 2 are needed")
    path.write_text(f"{parts[0]}{marker}\n\n{text}\n\n{marker}{parts[2]}", "utf-8")
