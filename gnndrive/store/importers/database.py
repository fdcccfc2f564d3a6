"""DuckDB within a memory budget: it reads files of any length, sorts and spills to disk."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.progress import report
from gnndrive.common.records import Int64Array
from gnndrive.common.threads import submit, thread_pool
from gnndrive.store.temporary_folders import TemporaryFolder

BATCH = 1 << 20  # rows in a batch
POLL_S = 0.25  # time between two reports of a query's progress
READING = "reading tables"  # what progress says while DuckDB works
DUCKDB_SHARE = 0.6  # share of the budget; the rest is for Python, numpy and a batch
Tell: TypeAlias = "Callable[[int], None]"
"""Called with the share of a query that is done, in percent, before its first batch."""


class Database:
    """A database in memory, with a temporary folder for what does not fit; close it after use.

    Args:
        memory: memory budget in bytes.
        beside: path beside which to make the temporary folder.
        name: what is read, for errors.

    Attributes:
        tables: what is read (`TableFiles`); one of them explains a failure of DuckDB that is
            neither a lack of memory nor of disk.
    """

    def __init__(self, memory: int, beside: Path, name: str) -> None:
        duckdb = _duckdb()
        self._errors, self._name = duckdb.Error, name
        self.tables: list[Any] = []
        self._spill: TemporaryFolder | None = None
        self._db = duckdb.connect(":memory:")
        try:
            self._spill = _temporary(beside)
            self.run(f"SET memory_limit = '{max(int(DUCKDB_SHARE * memory) >> 20, 1)}MiB'")
            self.run(f"SET temp_directory = {quoted(str(self._spill.path))}")
            self.run("SET TimeZone = 'UTC'")  # of times that do not say theirs
            self.run("SET enable_progress_bar = true")  # DuckDB measures no progress without it
            self.run("SET enable_progress_bar_print = false")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close DuckDB and remove what it spilled. Idempotent."""
        self._db.close()
        if self._spill is not None:
            self._spill.remove()

    def register(self, name: str, rows: Any) -> None:
        """Make a table or dataset of pyarrow a table called `name`."""
        try:
            self._db.register(name, rows)
        except self._errors as error:
            raise self._failure(error) from None

    def run(self, sql: str) -> Any:
        """Run a statement."""
        try:
            return self._in_thread(lambda: self._db.execute(sql))
        except self._errors as error:
            raise self._failure(error) from None

    def row(self, sql: str) -> Any:
        """The first row of a query's result; None if there is none."""
        return next(iter(self.run(sql).fetchall()), None)

    def batches(self, sql: str, tell: Tell = lambda percent: None, rows: int = 0) -> Generator[Any]:
        """Yield the result of a query in pyarrow's RecordBatches of `rows` (0: BATCH)."""
        try:
            reader = self._open_reader(sql, tell, rows or BATCH)
        except self._errors as error:
            raise self._failure(error) from None
        with closing(reader):  # no query can be run before
            while True:
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    return
                except (OSError, ValueError, self._errors) as error:  # Arrow's, of DuckDB's errors
                    raise self._failure(error) from None
                yield batch

    def arrays(
        self, sql: str, tell: Tell = lambda percent: None
    ) -> Iterator[tuple[npt.NDArray[Any], ...]]:
        """Yield the columns of a query's result, [n] each, in batches."""
        for batch in self.batches(sql, tell):
            yield tuple(column.to_numpy(zero_copy_only=False) for column in batch.columns)

    def array(self, sql: str) -> Int64Array:
        """The only column of a query's result, int64 [n]."""
        parts = [values for (values,) in self.arrays(sql)]
        return np.concatenate([np.empty(0, np.int64), *parts])

    def _in_thread(self, work: Callable[[], Any], tell: Tell | None = None) -> Any:
        """Run DuckDB's `work` in another thread; report its progress to `tell` in this one, as that
        of sorting, which is the first half of a query, before reading. None: as it is.

        An exception here, such as KeyboardInterrupt, interrupts DuckDB, which in the main thread
        would turn Ctrl-C into an error of its own.
        """
        long = False
        with thread_pool(1, "gnndrive-duckdb") as thread:
            try:
                doing = submit(thread, work)
                while not doing.wait(POLL_S):
                    percent = max(self._db.query_progress(), 0)  # -1: not known yet
                    if tell is None:
                        report(READING, min(int(percent), 99), 100)
                        long = True
                    else:
                        tell(min(int(2 * percent), 99))
            except BaseException:
                self._db.interrupt()
                raise
        if long:
            report(READING, 100, 100)
        return doing.result()

    def _open_reader(self, sql: str, tell: Tell, rows: int) -> Any:
        """Start a query and return a reader of its rows, once DuckDB has sorted them."""

        def begin() -> Any:
            result = self._db.sql(sql)  # not `execute`, which makes all rows before the first batch
            # DuckDB before 1.5 has no to_arrow_reader.
            read = getattr(result, "to_arrow_reader", None) or result.fetch_arrow_reader
            return read(rows)

        reader = self._in_thread(begin, tell)
        tell(100)
        return reader

    def _failure(self, error: BaseException) -> StoreError:
        text = " ".join(line.strip() for line in str(error).strip().splitlines()[:4])
        text = text.partition(" Possible fixes")[0].partition(" LINE 1: ")[0]  # what DuckDB ran
        if "No space left" in text or "max_temp_directory_size" in text:
            return StoreError(
                f"the disk is too full to sort {self._name}: some 30 bytes an edge are needed "
                "beside the store; free some, or choose a path on another disk"
            )
        if "Out of Memory" in text:
            return StoreError(f"{self._name}: sorting needs more memory: raise memory=")
        tables = [each for each in self.tables if any(str(at) in str(error) for at in each.files)]
        for table in tables or self.tables:
            return table.blame(text)  # type: ignore[no-any-return]
        return StoreError(f"{self._name} cannot be read: {text}; correct the file")


def _temporary(beside: Path) -> TemporaryFolder:
    try:
        return TemporaryFolder(beside, "sort")
    except OSError as error:
        raise StoreError(
            f"{beside.parent} cannot be written to ({error.strerror}): choose another path"
        ) from None


def _duckdb() -> Any:
    try:
        import duckdb
        import pyarrow  # noqa: F401 - DuckDB hands batches over through it
    except ImportError as error:
        raise ConfigError(
            f"tables in Parquet or Arrow, or larger than memory, need {error.name}: "
            "pip install 'gnndrive[import]'"
        ) from None
    return duckdb


def quoted(text: str) -> str:
    """A text as a literal in SQL."""
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """A column's name as an identifier in SQL."""
    return '"' + name.replace('"', '""') + '"'
