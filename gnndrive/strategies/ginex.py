"""Ginex (VLDB 2022): superbatches that are sampled ahead, and Belady's rule over all of them."""

from __future__ import annotations

from dataclasses import dataclass

from gnndrive.strategies.superbatches.scheme import SamplesAhead


@dataclass(frozen=True, kw_only=True)
class Ginex(SamplesAhead):
    """Ginex, "SSD-enabled Billion-scale Graph Neural Network Training on a Single Machine via
    Provably Optimal In-memory Caching".

    A superbatch of many batches is sampled first and its samples are kept on disk (section 3.1).
    From them an inspector learns each next use of each row, so that the feature cache can follow
    Belady's rule for the whole superbatch (section 3.3); then its batches are gathered and trained
    on. Sampling has a neighbour cache of the lists that are worth most of their bytes (section
    3.2).

    Where this differs: a superbatch is sampled while the one before is extracted, unless
    phases="apart"; the first superbatches are short; how long the others are follows from the
    buffer, where GNNDrive's experiments have 1,500 batches. There is one feature buffer for all
    superbatches, whose rows stay. The neighbour cache belongs to topology="direct".
    """

    name: str = "ginex"
    paper: str = "Ginex (VLDB 2022)"
