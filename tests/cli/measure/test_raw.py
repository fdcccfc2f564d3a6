"""Raw reads: counts, blocks and engines, with a fixed number of reads instead of a clock."""

import errno
from dataclasses import replace

import numpy as np
import pytest

from gnndrive.cli.measure import raw
from gnndrive.cli.measure.raw import IoOptions, block_count, block_numbers
from gnndrive.common.errors import ConfigError, ReadError


@pytest.mark.parametrize(
    ("rw", "ioengine", "numjobs"), [("read", "uring", 3), ("randread", "threads", 1)]
)
def test_a_fixed_number_of_reads(blocks, rw, ioengine, numjobs):
    blocks.chmod(0o400)
    given = {"rw": rw, "numjobs": numjobs, "ioengine": ioengine, "iodepth": 8}
    driven = raw.run(IoOptions(str(blocks), reads=2_000, **given))
    assert driven.rows == driven.requests == 2_000 * numjobs
    assert (driven.nbytes, driven.retries) == (4096 * driven.requests, 0)
    latency = driven.latency
    assert latency.lat.count == latency.clat.count == driven.requests
    assert latency.slat.count == (driven.requests if ioengine == "uring" else 0)


def test_what_the_engine_gets(blocks, monkeypatch):
    """As in fio, only `iodepth` limits the bytes in flight unless a limit is given."""
    asked, real = [], raw.drive
    monkeypatch.setattr(raw, "drive", lambda *given: asked.append(given[2]) or real(*given))
    for more in ({}, {"inflight_bytes": 8192}):
        given = {"iodepth": 4, "submit_batch": 4, "complete_min": 4, **more}
        assert raw.run(IoOptions(str(blocks), reads=100, **given)).rows == 100
    assert [settings.inflight_bytes for settings in asked] == [0, 8192]
    assert {(settings.submit_batch, settings.complete_min) for settings in asked} == {(4, 4)}


def test_without_runtime_or_reads_the_size_is_read_once(blocks):
    options = IoOptions(str(blocks), bs=512, iodepth=4, size=65536, direct=False, slat=False)
    driven = raw.run(options)
    assert (driven.nbytes, driven.latency.slat.count, driven.latency.lat.count) == (65536, 0, 128)
    assert raw.run(replace(options, size=None)).requests == (64 * 4096 + 100) // 512
    timed = raw.run(IoOptions(str(blocks), iodepth=4, runtime_s=1e-9))
    assert timed.rows == timed.requests


def test_the_numbers_of_the_blocks():
    options = IoOptions("x", rw="read", iodepth=4)
    given = list(block_numbers(options, 100, 5000, 0))
    assert [len(part) for part in given] == [4096, 904]
    assert (np.concatenate(given) == np.arange(5000) % 100).all()
    drawn = [
        np.concatenate(list(block_numbers(replace(options, rw="randread"), 100, 5000, job)))
        for job in (0, 0, 1)
    ]
    assert (drawn[0] == drawn[1]).all()
    assert (drawn[0] != drawn[2]).any()
    assert set(drawn[0].tolist()) == set(range(100))
    endless = block_numbers(options, 7, None, 0)
    assert [next(endless)[-1] for _ in range(3)] == [4095 % 7, 8191 % 7, 12287 % 7]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"rw": "randwrite"}, "nothing is ever written"),
        ({"bs": 0}, "at least 1"),
        ({"submit_batch": -1}, "submit_batch"),
        ({"runtime_s": 0.0}, "runtime more than 0"),
        ({"bs": 1 << 20}, "not one block of bs=1,048,576"),
        ({"bs": 1000}, r"bs=1000 is no multiple of the \d+ bytes"),
        ({"ioengine": "libaio"}, "choose one of uring, threads"),
        ({"iodepth": 10**6}, "depth may be 1 to 4096"),
    ],
)
def test_options_that_cannot_work_are_refused(blocks, change, complaint):
    with pytest.raises(ConfigError, match=complaint):
        raw.run(replace(IoOptions(str(blocks), reads=1), **change))


@pytest.mark.parametrize(
    ("path", "said"),
    [("/gone", "gone cannot be read"), ("/", "cannot be read"), ("/dev/zero", "no file or block")],
)
def test_a_file_that_cannot_be_read_is_refused(path, said):
    with pytest.raises(ConfigError, match=said):
        block_count(IoOptions(path))


def test_a_failed_read_is_an_error(blocks, monkeypatch):
    """It reads beyond the end of the file, as if the file was cut after its size was read."""
    real = raw.block_count
    monkeypatch.setattr(raw, "block_count", lambda options: 2 * real(options))
    options = IoOptions(str(blocks), rw="read", iodepth=4, reads=128)
    with pytest.raises(ReadError, match="at byte 26") as caught:
        raw.run(options)
    assert caught.value.errno == errno.ENODATA
