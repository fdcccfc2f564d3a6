"""Read labels in CSV: text, whole numbers or other numbers, with node ids or in node order."""

from __future__ import annotations

import csv
import itertools
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gnndrive.common.checked_json import is_plain_text
from gnndrive.common.errors import StoreError
from gnndrive.common.records import Int64Array
from gnndrive.store.importers.features import all_whole
from gnndrive.store.importers.text import (
    COUNTS,
    MAP_IDS,
    MISSING,
    NUMBER,
    NodeNumbers,
    is_whole,
    no_node,
    read_lines,
    real_number,
    unknown_id,
    unquoted,
)

_COMMENTS = ("#", "# ", "#\t", "#\r")  # with a space, because #3 may be a class
_LONE = re.compile(r"#[^\s,;]+")  # is a class, or a comment
_USUAL_NAMES = ("label", "labels", "y", "class", "target")
Row: TypeAlias = "tuple[int, list[str]]"
"""The number of a line and its fields; [] for a blank line."""


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of some nodes.

    Attributes:
        nodes: ids of the nodes that have a label, int64 [n], ascending.
        values: their labels, int64 or float32 [n].
        classes: the texts that the class ids stand for, sorted; None if labels are numbers.
        num_nodes: number of nodes of which the file tells: the largest id + 1, or of labels in the
            nodes' order their number, those that are missing included.
        in_order: whether the file has labels in the nodes' order, without ids.
    """

    nodes: Int64Array
    values: npt.NDArray[Any]
    classes: tuple[str, ...] | None
    num_nodes: int
    in_order: bool

    def of_all(self, num_nodes: int) -> npt.NDArray[Any]:
        """One label a node, [num_nodes]; a node without one has -1, nan among floats."""
        none = np.nan if self.values.dtype.kind == "f" else -1
        values = np.full(num_nodes, none, self.values.dtype)
        values[self.nodes] = self.values
        return values


def read_labels(
    path: Path,
    num_nodes: int | None,
    numbers: NodeNumbers | None = None,
    first_id: int = 0,
    header: bool | None = None,
) -> Labels:
    """Read labels; see `from_csv` for their forms.

    num_nodes None: not known yet; numbers None: the file names nodes by their numbers, which count
    from `first_id`; header: as for `from_edges`.
    """
    lines, rows = _read(path, num_nodes)
    width = len(rows[0][1]) if rows else 2
    if rows and _is_header([fields for _, fields in rows], numbers, header):
        lines, rows = lines[lines.index(rows[0]) + 1 :], rows[1:]
    if not rows:
        warnings.warn(f"{path} holds no labels: check the file", stacklevel=2)
    if width == 1:
        rows = _in_order(lines, rows, num_nodes, path)
        nodes = np.arange(len(rows))
    else:
        nodes = _nodes(rows, num_nodes, numbers, first_id, path)
        _check_once(nodes, rows, path)
    values, classes = _values(rows, path)
    order = np.argsort(nodes, kind="stable")
    order = order[values[order] != -1 if values.dtype.kind == "i" else ~np.isnan(values[order])]
    count = int(nodes.max(initial=-1)) + 1
    return Labels(nodes[order], values[order], classes, count, width == 1)


def _read(path: Path, num_nodes: int | None) -> tuple[list[Row], list[Row]]:
    """The lines, of which blank ones may be left out that change nothing, and those of them that
    are rows. It stops at one row more than a header and `num_nodes` labels, so that a small packed
    file cannot fill memory; those who check the rows then find a node twice, or no node."""
    lines, rows, ids, blank = list[Row](), list[Row](), set[str](), 0
    for number, fields in _lines(path):
        if not fields:
            blank += 1
            if blank <= (1 if num_nodes is None else num_nodes + 2):
                lines.append((number, fields))
            continue
        rows.append((number, fields))
        lines.append(rows[-1])
        if len(fields) > 2 or len(fields) != len(rows[0][1]):
            raise StoreError(
                f"{path}, line {number}: {fields} is not 'node,label' or one label; correct it"
            )
        if len(fields) == 2 and fields[0] in ids:
            raise _second_label(path, rows[-1])
        ids.update(fields[:-1])
        if num_nodes is not None and len(rows) == num_nodes + 2:
            break
    return lines, rows


def _lines(path: Path) -> Iterator[Row]:
    lines, head = _behind_comments(path), list[tuple[int, str]]()
    for row in itertools.islice(lines, 1000):
        head.append(row)
        if row[1].strip() and not _LONE.fullmatch(row[1].strip()):
            break
    first = head[-1][1] if head else ""
    delimiter = next((sign for sign in ",;\t" if sign in first), None)
    if _width(first, delimiter) > 1:  # so that #classes is no label but a comment
        head = head[-1:]
    skipped = head[0][0] - 1 if head else 0
    texts = (text for _, text in itertools.chain(head, lines))
    if delimiter is None:  # the label is the text after the first space
        parts = itertools.chain.from_iterable(text.splitlines() or [""] for text in texts)
        for number, line in enumerate(parts, 1 + skipped):
            yield number, [unquoted(field.strip()) for field in line.split(None, 1)]
        return
    reader = csv.reader((f"{text}\n" for text in texts), delimiter=delimiter, strict=True)
    try:
        for fields in reader:
            blank = fields != [""] and not any(map(str.strip, fields))  # [""] is a quoted ""
            yield skipped + reader.line_num, [] if blank else [field.strip() for field in fields]
    except csv.Error as error:
        raise StoreError(f"{path}, line {skipped + reader.line_num}: {error}; correct it") from None


def _width(line: str, delimiter: str | None) -> int:
    """The number of fields of a line; 0 if it has none, or cannot be read."""
    try:
        return len(next(csv.reader([line], delimiter=delimiter)) if delimiter else line.split())
    except csv.Error:
        return 0


def _behind_comments(path: Path) -> Iterator[tuple[int, str]]:
    """The numbers and texts of the lines behind the last of the comments that begin a file."""
    lines, blank = read_lines(path), 1  # the first of the blank lines before a line
    for number, line in lines:
        text = line.lstrip()
        if text[:2] in _COMMENTS:
            blank = number + 1
        elif text:
            yield from ((each, "") for each in range(blank, number))
            yield number, line
            break
    yield from lines


def _is_header(rows: Sequence[list[str]], numbers: NodeNumbers | None, header: bool | None) -> bool:
    """Whether the first row is a header.

    Of two fields, the first does not look like a number. Where that is no sign, because there is
    one field, ids are mapped, or the first field is empty, as pandas names an index: the first is
    no id, and the last is a usual name of labels, or text above numbers, or beside an empty id text
    that no other row has. A usual name without ids that a later row has too is a class. `header`
    True decides where ids are mapped and the first is no id.
    """
    (*ids, label), others = rows[0], rows[1:]
    again = any(fields[-1] == label for fields in others)
    if ids and numbers is None and ids[0]:
        return NUMBER.match(ids[0]) is None
    if ids and numbers is not None and ((known := numbers(ids)[0] >= 0) or header):
        return not known
    if label.lower() in _USUAL_NAMES:
        return bool(ids) or not again
    if label.lower() in MISSING or real_number(label) is not None or not others:
        return False
    below = (fields[-1] for fields in others)
    if real_number(next((text for text in below if text.lower() not in MISSING), "")) is not None:
        return True
    return ids == [""] and not again


def _in_order(lines: list[Row], rows: list[Row], num_nodes: int | None, path: Path) -> list[Row]:
    """The rows of labels in the nodes' order. Blank lines count as nodes without a label if there
    are `num_nodes` only with them."""
    if len(rows) == num_nodes:
        return rows
    blank = [number for number, fields in lines[: lines.index(rows[-1])] if not fields]
    if num_nodes is None and not blank:
        return rows
    if num_nodes is None:
        raise StoreError(
            f"{path}, line {blank[0]} is blank, and may be a node without a label or not: write NA "
            "there, or remove the line"
        )
    if len(rows) + len(blank) <= num_nodes <= len(lines):
        return [(number, fields or [""]) for number, fields in lines[:num_nodes]]
    few = f"more than {num_nodes}" if len(rows) > num_nodes else len(rows)
    raise StoreError(
        f"{path} has {few} labels for {num_nodes} nodes: give node ids with them, or "
        "take out what is no label, such as a header"
    )


def _nodes(
    rows: list[Row], num_nodes: int | None, numbers: NodeNumbers | None, first_id: int, path: Path
) -> Int64Array:
    """The nodes of rows with an id and a label, int64 [rows]."""
    if numbers is None:
        found = (_node(fields[0], num_nodes, first_id, path, number) for number, fields in rows)
        return np.fromiter(found, np.int64, len(rows))
    names = [fields[0] for _, fields in rows]
    nodes = numbers(names)
    if len(unknown := np.flatnonzero(nodes < 0)):
        line, (name, _) = rows[unknown[0]]
        hint = "if it is a header, give header=True; or " if line == 1 else ""
        raise unknown_id(f"{path}, line {line}", name, hint)
    return nodes


def _node(text: str, num_nodes: int | None, first_id: int, path: Path, number: int) -> int:
    place = f"{path}, line {number}"
    if not is_whole(text):
        raise StoreError(
            f"{place}: {text!r} is not a node id, a whole number from {first_id}: correct the "
            f"line{MAP_IDS}"
        )
    node = int(text) - first_id
    if node < 0 or (num_nodes is not None and node >= num_nodes):
        raise no_node(place, int(text), num_nodes, first_id, COUNTS)
    return node


def _check_once(nodes: Int64Array, rows: list[Row], path: Path) -> None:
    order = np.argsort(nodes, kind="stable")
    again = np.flatnonzero(nodes[order][1:] == nodes[order][:-1])
    if len(again):
        raise _second_label(path, rows[int(order[again[0] + 1])])


def _second_label(path: Path, row: Row) -> StoreError:
    number, fields = row
    return StoreError(
        f"{path}, line {number}: node {fields[0]} has a second label; leave one of the two"
    )


def _values(rows: list[Row], path: Path) -> tuple[npt.NDArray[Any], tuple[str, ...] | None]:
    """The values of the rows' labels and the names of their classes; a missing label is -1, or nan
    among floats."""
    labels = [fields[-1] for _, fields in rows]
    there = np.array([label.lower() not in MISSING for label in labels], np.bool_)
    if any(real_number(labels[place]) is None for place in np.flatnonzero(there)):
        there = np.array([label != "" for label in labels], np.bool_)  # NA may be a class
    given = labels if there.all() else [labels[place] for place in np.flatnonzero(there)]
    names = None
    if all(map(is_whole, given)):
        found = np.array([int(label) for label in given], np.int64)
    elif None not in (numbers := [real_number(label) for label in given]):
        real = np.array(numbers, np.float64)
        # 3.0 is how pandas writes a whole number in a column that lacks some; -1.0 is no class.
        found = real.astype(np.int64 if all_whole(real) and (real >= 0).all() else np.float32)
    else:
        names = tuple(sorted(set(given)))
        for name in names:
            if not is_plain_text(name):
                number = rows[labels.index(name)][0]
                raise StoreError(
                    f"{path}, line {number}: {name!r} is not a name for a class; correct it"
                )
        place = {name: index for index, name in enumerate(names)}
        found = np.array([place[label] for label in given], np.int64)
    values = np.full(len(rows), np.nan if found.dtype.kind == "f" else -1, found.dtype)
    values[there] = found
    return values, names
