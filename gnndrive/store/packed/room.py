"""Refuse a pack that does not fit: with the bytes it needs, and with what would fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.io.write_errors import free_bytes
from gnndrive.common.memory import format_size
from gnndrive.store.packed.orders import SETS_MAX
from gnndrive.store.packed.predict import Prediction
from gnndrive.store.packed.segments import SegmentChoice
from gnndrive.store.packed.settings import PackSettings

_MARGIN_BYTES = 2 << 20  # for folders and the file system's metadata
_BLOCK_BYTES = 512  # the unit of st_blocks
_UNSURE = 2  # so many times less than the prediction, a pack may be


class DoesNotFit(ConfigError):
    """The pack needs more than `disk=`, so the same call can never succeed."""


@dataclass(frozen=True, slots=True)
class Room:
    """How many bytes a pack may have.

    Attributes:
        root: the unfinished pack's folder.
        settings: what the pack is made with.
    """

    root: Path
    settings: PackSettings

    @property
    def free(self) -> int:
        """Bytes that the disk has for the pack, with those that it takes already."""
        taken = sum(path.stat().st_blocks for path in self.root.rglob("*") if path.is_file())
        return max(free_bytes(self.root) + taken * _BLOCK_BYTES - _MARGIN_BYTES, 0)

    @property
    def limit(self) -> int:
        """The most bytes of the pack."""
        disk = self.settings.disk
        return self.free if disk is None else min(disk, self.free)

    def check_prediction(self, found: Prediction) -> None:
        """Refuse what cannot fit, from the first recorded batches.

        The rows of a segment are at least those of one of its batches. With hot rows nothing is
        known of the others, because rows may be hot that the first batches do not show to be. Five
        batches may be larger than the others, so only what exceeds the limit twice is refused here;
        the exact bytes are compared before a row is written.

        Raises:
            DoesNotFit: `disk=` is too small.
            StoreError: the disk is too full.
        """
        least, segment = found.samples, self.settings.segment
        if segment is None and self.settings.order == "sets":
            segment = SETS_MAX
        if not found.hot and segment is not None:
            least += found.cold // segment
        if least // _UNSURE > self.limit:
            raise self._refusal(least, "about", [])

    def refusal(self, choice: SegmentChoice, fixed: int) -> Exception:
        """The error for a pack that fits with no segment that may be chosen.

        Args:
            choice: what each segment size needs.
            fixed: bytes that do not depend on the number of epochs.
        """
        needed = min(choice.needed[size] for size in choice.candidates)
        return self._refusal(needed, "at least", list(self._remedies(choice, needed, fixed)))

    def _remedies(self, choice: SegmentChoice, needed: int, fixed: int) -> Iterator[str]:
        if fitting := choice.fitting:
            order = "" if min(fitting) <= SETS_MAX else ' and order="minhash"'
            yield f"give segment={min(fitting)}{order}"
        epochs = self.settings.epochs
        fewer = (self.limit - fixed) * epochs // max(needed - fixed, 1)
        if 1 <= fewer < epochs:
            yield f"record epochs={fewer}"

    def _refusal(self, needed: int, about: str, remedies: list[str]) -> Exception:
        text = f"the pack needs {about} {needed:,} bytes ({format_size(needed)})"
        remedies += ["pack fewer batches", "give more memory= for hot rows"]
        if (disk := self.settings.disk) is not None and disk <= self.free:
            remedies += ["allow more with disk="]
            return DoesNotFit(f"{text}, and disk={format_size(disk)}: {', or '.join(remedies)}")
        remedies += ["free some space", "choose another disk with out="]
        has = f"the disk of {self.root} has {self.free:,} for it"
        return StoreError(f"{text}, and {has}: {', or '.join(remedies)}")
