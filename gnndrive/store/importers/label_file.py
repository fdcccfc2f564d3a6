"""Read labels in CSV: text, whole numbers or other numbers, with node ids or in node order."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnndrive.common.checked_json import is_plain_text
from gnndrive.common.errors import StoreError
from gnndrive.common.records import Int64Array
from gnndrive.store.importers.text import NodeNumbers, is_whole, read_text, real_number, unknown_id


@dataclass(frozen=True, slots=True)
class Labels:
    """One label per node.

    Attributes:
        values: int64 [num_nodes] (-1: no label) or float32 (nan: no label).
        present: which nodes have a label in the file, bool [num_nodes].
        classes: the texts that the class ids stand for, sorted; None if labels are numbers.
    """

    values: npt.NDArray[Any]
    present: npt.NDArray[np.bool_]
    classes: tuple[str, ...] | None

    def labelled(self) -> Int64Array:
        """Ids of the nodes that have a label, int64 [n]; -1 and nan in the file mean no label."""
        missing = np.isnan(self.values) if self.values.dtype.kind == "f" else self.values == -1
        return np.flatnonzero(self.present & ~missing)


def read_labels(
    path: Path, num_nodes: int | None, node_numbers: NodeNumbers | None = None
) -> Labels:
    """Read labels; see `from_csv` for their forms.

    num_nodes None: as many as labels; node_numbers None: the file names nodes by their numbers.
    """
    lines = list(_fields(path))
    width = len(lines[0][1]) if lines else 2
    if lines and _is_header([fields for _, fields in lines[:2]], node_numbers):
        lines = lines[1:]
    if not lines:
        warnings.warn(f"{path} holds no labels: check the file", stacklevel=2)
    if num_nodes is None:
        num_nodes = len(lines)
    for number, fields in lines:
        if len(fields) != width or width > 2:
            raise StoreError(
                f"{path}, line {number}: {fields} is not 'node,label' or one label; correct it"
            )
    names = [fields[0] for _, fields in lines]
    labels = [fields[-1] for _, fields in lines]
    numbers = [number for number, _ in lines]
    if width == 1 and len(labels) != num_nodes:
        raise StoreError(
            f"{path} has {len(labels)} labels for {num_nodes} nodes: give node ids with them"
        )
    if width == 1:
        ids = np.arange(num_nodes)
    elif node_numbers is None:
        nodes = (_node(name, num_nodes, path, at) for name, at in zip(names, numbers, strict=True))
        ids = np.fromiter(nodes, np.int64)
    else:
        ids = node_numbers(names)
        if len(unknown := np.flatnonzero(ids < 0)):
            raise unknown_id(f"{path}, line {numbers[unknown[0]]}", names[unknown[0]])
    _check_once(ids, names, numbers, path)
    return _assemble(ids, labels, num_nodes, numbers, path)


def _fields(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, fields) of each line that is not blank."""
    text = read_text(path)
    first = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = next((sign for sign in ",;\t" if sign in first), None)
    if delimiter is None:  # the label is the text after the first space
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                yield number, line.split(None, 1)
        return
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, strict=True)
    try:
        for fields in reader:
            if any(field.strip() for field in fields):
                yield reader.line_num, [field.strip() for field in fields]
    except csv.Error as error:
        raise StoreError(f"{path}, line {reader.line_num}: {error}; correct it") from None


def _is_header(lines: list[list[str]], node_numbers: NodeNumbers | None) -> bool:
    """Whether the first of the given lines is a header.

    Of two fields, the first is not a number. Where that is no sign, because there is one field or
    ids are mapped, the last is a usual name of labels, or it is not a number and that of the next
    line is one; and the first is no id.
    """
    first, width = lines[0], len(lines[0])
    if width == 2:
        if node_numbers is None:
            return not is_whole(first[0]) and first[0][:1] not in "+-."
        if node_numbers(first[:1])[0] >= 0:
            return False
    if first[-1].lower() in ("label", "labels", "y", "class", "target"):
        return True
    return (
        len(lines) > 1 and real_number(first[-1]) is None and real_number(lines[1][-1]) is not None
    )


def _node(text: str, num_nodes: int, path: Path, number: int) -> int:
    if not is_whole(text):
        raise StoreError(
            f"{path}, line {number}: {text!r} is not a node id, a whole number from 0: correct the "
            "line, or if the ids of the edges are text give map_ids=True to gnndrive.from_edges "
            "(--map-ids)"
        )
    if not 0 <= int(text) < num_nodes:
        raise StoreError(
            f"{path}, line {number}: {text!r} is not a node id; there are {num_nodes} nodes, "
            "numbered from 0; correct the line, or say how many there are: with features, or "
            "num_nodes= of gnndrive.from_edges (--num-nodes)"
        )
    return int(text)


def _check_once(ids: Int64Array, names: list[str], numbers: list[int], path: Path) -> None:
    order = np.argsort(ids, kind="stable")
    again = np.flatnonzero(ids[order][1:] == ids[order][:-1])
    if len(again):
        second = int(order[again[0] + 1])
        raise StoreError(
            f"{path}, line {numbers[second]}: node {names[second]} has a second label; leave one "
            "of the two"
        )


def _assemble(
    ids: Int64Array, labels: list[str], num_nodes: int, numbers: list[int], path: Path
) -> Labels:
    present = np.zeros(num_nodes, np.bool_)
    present[ids] = True
    if all(is_whole(label) for label in labels):
        whole = np.full(num_nodes, -1, np.int64)
        whole[ids] = np.array([int(label) for label in labels], np.int64)
        return Labels(whole, present, None)
    floats = [real_number(label) for label in labels]
    if None not in floats:
        real = np.full(num_nodes, np.nan, np.float32)
        real[ids] = np.array(floats, np.float32)
        return Labels(real, present, None)
    for label, number in zip(labels, numbers, strict=True):
        if not label:
            raise StoreError(
                f"{path}, line {number}: the label is missing: leave the line out, and the node "
                "has no label"
            )
        if not is_plain_text(label):
            raise StoreError(
                f"{path}, line {number}: {label!r} is not a name for a class; correct it"
            )
    names = sorted(set(labels))
    place = {name: index for index, name in enumerate(names)}
    classes = np.full(num_nodes, -1, np.int64)
    classes[ids] = np.array([place[label] for label in labels], np.int64)
    return Labels(classes, present, tuple(names))
