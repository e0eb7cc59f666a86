"""Read one file into a data frame: its form is known before a row of it is read."""

from __future__ import annotations

import csv
import io
import re
import warnings
import zlib
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any

import numpy as np

from edge_sdk.errors import USAGE, Failure
from edge_sdk.extensions.sources.csv_clock import is_clock
from edge_sdk.extensions.sources.csv_dialect import ABSENT, CsvDialect, decimal_mark
from edge_sdk.extensions.sources.csv_head import (
    OF_DAY,
    CsvHead,
    day_columns,
    fields_of,
    is_header_again,
    table_head,
)
from edge_sdk.extensions.sources.file_bounds import SAMPLE, open_table, refused, text_encoding

_READ = 0.9  # share of a column's entries, at least, that must be numbers

_WITH_TEXT = re.compile(r"[+-]?\d+[.,]\d+\s*[^\d\s.,:/-]")  # a reading with its unit or a flag


class TableError(Failure):
    """An error: a folder or file from which no record can be read."""

    exit_code = USAGE


@dataclass(frozen=True, slots=True)
class TableForm:
    """The form of a file, as detected from its beginning."""

    path: Path
    encoding: str = ""  # encoding of its text; empty for Parquet
    head: CsvHead | None = None  # where the table begins; None for Parquet
    width: int = 0  # most fields of a row
    dialect: CsvDialect = field(default_factory=CsvDialect)  # marks in numbers

    @classmethod
    def of(cls, path: Path, decimal: str = "") -> TableForm:
        """Detect the form of a file, its decimal mark only if none is given."""
        if path.suffix == ".parquet":
            return cls(path)
        if reason := refused(path):
            raise TableError(
                f"{path.name}: {reason}", hint="give a table of text lines; split a larger one"
            )
        try:
            with open_table(path) as file:
                start = file.read(SAMPLE)
        except (OSError, EOFError, zlib.error) as error:
            raise TableError(f"{path.name}: cannot be read: {error}") from error
        encoding = text_encoding(start)
        lines = start.decode(encoding, "replace").splitlines()
        if len(start) == SAMPLE:
            lines.pop()
        if sum(bool(line.strip()) for line in lines) < 2:
            raise TableError(
                f"{path.name}: fewer than two lines", hint="give a table with a header"
            )
        if re.match(r"[12]00,NEM1[23]", lines[0]):
            raise TableError(
                f"{path.name}: a NEM12 file has records of several kinds, not one table",
                hint="export the readings as CSV with a time and a reading a row",
            )
        head = table_head(lines)
        if head is None:
            raise TableError(
                f"{path.name}: no column has dates and times (columns: {lines[0][:200]})",
                hint="--time-column NAME; ISO 8601 such as 2026-01-31T13:45 is always understood",
            )
        rows = [*csv.reader(lines[head.first :], delimiter=head.delimiter)]
        columns = [*zip_longest(*rows, fillvalue="")]
        named = zip_longest(head.names, columns, fillvalue="")
        numbers = (
            c for n, (name, c) in enumerate(named) if n != head.time and not is_clock(name, c)
        )
        found = decimal_mark(numbers, head.delimiter)
        mark, is_certain = (decimal, True) if decimal else found
        dialect = CsvDialect(head.delimiter, mark, is_decimal_certain=is_certain)
        return cls(path, encoding, head, len(columns), dialect)

    def sentence(self) -> str:
        if self.head is None:
            return "Parquet"
        named = {"\t": "tabulator"}.get(self.head.delimiter, self.head.delimiter)
        text = f"separator {named}, decimal {'comma' if self.dialect.decimal == ',' else 'point'}"
        if self.head.header < 0:
            return f"{text}, no header line: the columns are named column 1, column 2, …"
        if self.head.header:
            text += f", header in line {self.head.header + 1} ({self.head.header} lines before it)"
        return text

    def line(self, row: int) -> int:
        """Return the line of a row of the frame, both counted from 1 and 0."""
        return row + 1 + (0 if self.head is None else self.head.first)

    def frame(self, notes: list[str]) -> Any:  # noqa: ANN401
        """Return the file as a data frame, with notes of omitted rows; raise TableError if it cannot be read."""
        pandas = pandas_library()
        try:
            if self.head is None:
                frame = pandas.read_parquet(self.path)
                is_plain = isinstance(frame.index, pandas.RangeIndex)
                return frame if is_plain else frame.reset_index()
            form, text = self._aligned(notes)
            with text, warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                frame = form._text_frame(text)  # noqa: SLF001 - of this class
        except (ValueError, OSError, EOFError, zlib.error) as error:  # ParserError is a ValueError
            raise TableError(
                f"{self.path.name}: cannot be read as a table: {error}",
                hint="one table a file, the same number of fields in every row",
            ) from error
        if skipped := re.findall(
            r"line (\d+): expected", "".join(str(one.message) for one in said)
        ):
            notes.append(
                f"{self.path.name}: {len(skipped)} rows with more than {self.width} fields left out,"
                f" the first in line {self.line(int(skipped[0]) - 1)}"
            )
        return form._fitted(frame)  # noqa: SLF001

    def _aligned(self, notes: list[str]) -> tuple[TableForm, IO[str]]:
        """Return the form and text after the header; columns that a later header moves are as in one table.

        An empty line stands for each later header, so that lines keep their numbers.
        """
        assert self.head is not None
        names, time, mark = list(self.head.names), self.head.time_name, self.head.delimiter
        is_again = partial(is_header_again, time=time)
        with self._after_header() as text:
            found = any(time in line and is_again(fields_of(line, mark), names) for line in text)
        if not found:
            return self, self._after_header()
        order, rows, again = list(range(self.width)), [], []
        with self._after_header() as text:
            for number, row in enumerate(csv.reader(text, delimiter=mark)):
                if not is_again(fields := [name.strip() for name in row], names):
                    rows.append((order, row))
                    continue
                again.append(number)
                names += [name for name in fields if name not in names]
                order = [names.index(name) for name in fields]
                rows.append((order, []))
        moved = io.StringIO()
        writer = csv.writer(moved, delimiter=mark)
        for order, row in rows:
            line = [""] * (len(names) if row else 0)
            for place, entry in zip(order, row, strict=False):
                line[place : place + 1] = [entry]
            writer.writerow([*line, *row[len(order) :]])
        moved.seek(0)
        more = f" and {len(again) - 1} later lines" * (len(again) > 1)
        notes.append(
            f"{self.path.name}: header again in line {self.line(again[0])}{more}; its names decide"
        )
        head = self.head._replace(names=tuple(names))
        return replace(self, head=head, width=max(self.width, len(names))), moved

    def _after_header(self) -> io.TextIOWrapper:
        assert self.head is not None
        text = io.TextIOWrapper(open_table(self.path), self.encoding, errors="replace", newline="")
        for _ in range(self.head.first):
            text.readline()
        return text

    def _text_frame(self, text: IO[str]) -> Any:  # noqa: ANN401
        assert self.head is not None
        return pandas_library().read_csv(
            text,
            sep=self.head.delimiter,
            header=None,
            names=self._names(),
            index_col=False,
            decimal=self.dialect.decimal,
            na_values=sorted(ABSENT | {word.upper() for word in ABSENT}),
            skipinitialspace=True,
            skip_blank_lines=False,
            low_memory=False,
            on_bad_lines="warn",
        )

    def _names(self) -> list[str]:
        assert self.head is not None
        names: list[str] = []
        for number, given in enumerate(self.head.names):
            name = given or f"column {number + 1}"
            while name in names:
                name += " again"
            names.append(name)
        return names + [f"column {number + 1}" for number in range(len(names), self.width)]

    def _fitted(self, frame: Any) -> Any:  # noqa: ANN401
        """Return the frame without blank rows and without the fields after a last separator."""
        assert self.head is not None
        for name in frame.columns[len(self.head.names) :]:
            if frame[name].notna().any():
                row = int(frame[name].notna().to_numpy().argmax())
                raise TableError(
                    f"{self.path.name}: line {self.line(row)} has more fields than the header has"
                    f" names ({', '.join(self.head.names)})",
                    hint="a name for every field; a decimal comma needs another separator, or quotation marks",
                )
        return frame[list(frame.columns[: len(self.head.names)])].dropna(how="all")


def numeric_columns(frame: Any, form: TableForm, notes: list[str]) -> Any:  # noqa: ANN401
    """Return the columns of numbers; entries that are none become missing, and are counted."""
    pandas = pandas_library()
    kept = {}
    for name in frame.columns:
        column = frame[name]
        if pandas.api.types.is_bool_dtype(column) or pandas.api.types.is_datetime64_any_dtype(
            column
        ):
            continue
        if not pandas.api.types.is_numeric_dtype(column):
            column = _numbers(column, form, notes)
        if column is None:
            continue
        if column.notna().sum() >= 2:
            kept[name] = column.astype(float)
        else:
            notes.append(f"{form.path.name}, column {name}: fewer than 2 numbers: left out")
    return pandas.DataFrame(kept, index=frame.index)


def _numbers(column: Any, form: TableForm, notes: list[str]) -> Any:  # noqa: ANN401
    texts = column.dropna().astype(str).str.strip()
    texts = texts[~texts.str.lower().isin(ABSENT)]
    if not texts.str.contains(r"\d").any():
        return None
    mark, is_certain = form.dialect.decimal, form.dialect.is_decimal_certain
    if not is_certain:
        mark, is_certain = decimal_mark([texts.tolist()], form.dialect.delimiter)
    dialect = CsvDialect(decimal=mark, is_decimal_certain=is_certain)
    values = texts.map({text: _number(text, dialect) for text in texts.unique()})
    bad = texts[values.isna()]
    if len(bad) > 0.5 * len(texts):
        if mark == "." and not is_certain and bad.str.fullmatch(r"\d+,\d{3}").mean() > _READ:
            raise TableError(
                f"{form.path.name}: column {column.name}: {bad.iloc[0]} could be read in two ways",
                hint="--decimal point or --decimal comma says which mark it has",
            )
        if bad.str.match(_WITH_TEXT).mean() > 0.5:
            notes.append(
                f"{form.path.name}, column {column.name}: its entries are no numbers, such as"
                f" {bad.iloc[0]!r} in line {form.line(bad.index[0])}: left out"
            )
        return None
    if len(bad):
        share = "left out" if len(bad) > (1 - _READ) * len(texts) else "these count as missing"
        notes.append(
            f"{form.path.name}, column {column.name}: {len(bad)} of {len(texts)} entries are no"
            f" numbers, such as {bad.iloc[0]!r} in line {form.line(bad.index[0])}: {share}"
        )
    if len(bad) > (1 - _READ) * len(texts):
        return None
    return values.reindex(column.index)


def _number(text: str, dialect: CsvDialect) -> float:
    try:
        return dialect.number(text)
    except ValueError:
        return float("nan")


def day_rows(frame: Any, dates: Any, form: TableForm, notes: list[str]) -> Any:  # noqa: ANN401
    """Return a table of a row a day as one of a row an interval; None if it has another layout.

    Args:
        frame: The file, with a column for each of 24, 48 or 96 intervals of the day.
        notes: What was found is added.

    Returns:
        A frame with the columns ``time`` and ``reading``, and the other columns repeated.
    """
    pandas = pandas_library()
    offsets, is_end = day_columns([str(name) for name in frame.columns])
    if not offsets:
        return None
    columns = list(offsets)
    numbers = numeric_columns(frame[columns], form, notes).reindex(columns=columns)
    others = [name for name in frame.columns if not OF_DAY.fullmatch(str(name).strip().lower())]
    long = frame[others].loc[frame.index.repeat(len(columns))]
    shifts = pandas.to_timedelta(np.tile(list(offsets.values()), len(frame)), unit="min")
    at = pandas.DatetimeIndex(dates.loc[long.index]) + shifts
    edge = "end" if is_end else "beginning"
    notes.append(
        f"a row a day: {len(columns)} columns, {columns[0]} to {columns[-1]}, each named for the"
        f" {edge} of its interval"
    )
    if unused := len(frame.columns) - len(others) - len(columns):
        notes.append(f"{unused} columns of the hour that autumn repeats left out")
    return long.assign(time=at, reading=numbers.to_numpy().reshape(-1)).reset_index(drop=True)


def pandas_library() -> Any:  # noqa: ANN401 - an optional library
    try:
        import pandas as pd  # noqa: PLC0415 - only this command needs it
    except ImportError as error:
        raise TableError(
            "reading tables needs pandas", hint="pip install 'gridfed[sim,evaluate]'"
        ) from error
    return pd
