"""Find faults in a container recipe without an engine: instructions, stages, user, health check."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

KNOWN = frozenset(
    {
        *("ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL"),
        *("RUN", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"),
    }
)
SECRET = re.compile(r"PASSW|SECRET|TOKEN|PRIVATE", re.IGNORECASE)
ROOT = ("", "root", "0")

Line = tuple[str, str]
"""Name and rest of an instruction."""


def instructions(text: str) -> list[Line]:
    """Return every instruction; continued lines are joined."""
    joined = re.sub(r"\\\n", " ", "\n".join(x for x in text.splitlines() if not x.startswith("#")))
    lines = [line.strip() for line in joined.splitlines() if line.strip()]
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in lines]


def faults(text: str) -> list[str]:
    """Return what is wrong with a recipe; empty if nothing is."""
    lines = instructions(text)
    each = [fault for line in lines for fault in _of_one(*line)]
    return [*each, *_of_stages(lines), *_of_the_last_stage(lines)]


def _of_one(name: str, rest: str) -> Iterator[str]:
    if name == "ADD":
        yield "ADD: use COPY"
    elif name not in KNOWN:
        yield f"unknown instruction {name}"
    if name == "RUN" and "pip install" in rest and "--no-cache-dir" not in rest:
        yield "pip keeps its cache"
    if name == "USER" and rest not in ROOT and not rest.isdecimal():
        yield "USER is no number"
    if name == "ENV" and SECRET.search(rest):
        yield "a secret in ENV"
    if name in ("CMD", "ENTRYPOINT") and not words_of(rest):
        yield f"{name} is not a JSON list"
    if name == "HEALTHCHECK" and "health" not in words_of(rest.partition("CMD ")[2]):
        yield "HEALTHCHECK does not ask for health"


def _of_stages(lines: list[Line]) -> Iterator[str]:
    stages: set[str] = set()
    for at, (name, rest) in enumerate(lines):
        if name not in ("FROM", "ARG") and not any(line[0] == "FROM" for line in lines[:at]):
            yield "an instruction before FROM"
        source = re.match(r"--from=(\S+)", rest)
        if source and source[1] not in stages:
            yield f"no stage {source[1]!r}"
        if name == "FROM":
            image, *alias = rest.split()
            if image not in stages and not re.search(r":(?!latest$)[^/]+$|@sha256:", image):
                yield f"no version: {image}"
            stages.update(alias[1:])


def _of_the_last_stage(lines: list[Line]) -> Iterator[str]:
    begin = max((at for at, line in enumerate(lines) if line[0] == "FROM"), default=0)
    users = [rest for name, rest in lines[begin:] if name == "USER"]
    if not users or users[-1] in ROOT:
        yield "the last stage runs as root"
    if all(name != "HEALTHCHECK" for name, _ in lines[begin:]):
        yield "no HEALTHCHECK"


def words_of(text: str) -> list[str]:
    """Return the words of a JSON list, which no shell reads; empty for anything else."""
    try:
        words = json.loads(text)
    except ValueError:
        return []
    return [str(word) for word in words] if isinstance(words, list) else []
