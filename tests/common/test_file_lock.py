"""locked: one holder at a time among threads and processes; dead holders leave no obstacle."""

import errno
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest

from gnndrive.common.errors import ConfigError, StoreError
from gnndrive.common.file_lock import is_free, locked, remove_if_free

FORK = multiprocessing.get_context("fork")
never = Mock(side_effect=AssertionError("the lock was taken"))


def test_the_file_goes_with_the_lock(tmp_path):
    file = tmp_path / "lock"
    file.touch()  # one that was left behind
    for _ in range(2):
        with locked(file, never) as waited:
            assert file.exists()
            assert not waited
        assert not file.exists()


def test_one_thread_at_a_time(tmp_path):
    inside, waits = threading.Lock(), []

    def work():
        for _ in range(50):
            with locked(tmp_path / "lock", lambda: waits.append(None)):
                assert inside.acquire(blocking=False)
                os.sched_yield()
                inside.release()

    with ThreadPoolExecutor(4) as threads:
        for ended in [threads.submit(work) for _ in range(4)]:
            ended.result()
    assert len(waits) <= 200


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    ours, theirs = FORK.Pipe()

    def hold():
        with locked(tmp_path / "lock", never):
            theirs.send("holding")
            signal.pause()

    process = FORK.Process(target=hold)
    process.start()
    assert ours.recv() == "holding"

    def kill():
        os.kill(process.pid or 0, signal.SIGKILL)

    with locked(tmp_path / "lock", kill) as waited:
        assert waited
    process.join()
    assert not (tmp_path / "lock").exists()


def test_a_forked_child_does_not_keep_the_lock(tmp_path):
    ours, theirs = FORK.Pipe()
    waiting = threading.Event()

    def work():
        with locked(tmp_path / "lock", waiting.set):
            pass

    thread = threading.Thread(target=work)
    with locked(tmp_path / "lock", never):
        child = FORK.Process(target=theirs.recv)
        child.start()
        thread.start()
        waiting.wait()
    thread.join(30)
    assert not thread.is_alive()
    ours.send("end")
    child.join()


def test_a_folder_that_is_not_there_is_named(tmp_path):
    named = pytest.raises(StoreError, match=r"gone.*choose a folder")
    with named, locked(tmp_path / "gone/l", never):
        pass


def test_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "lock")

    def use():
        refused = pytest.raises(StoreError, match="lock is no plain file")
        with refused, locked(tmp_path / "lock", never):
            pass
        assert not is_free(tmp_path / "lock")
        remove_if_free(tmp_path / "lock")
        os._exit(0)

    process = FORK.Process(target=use, daemon=True)
    process.start()
    process.join(5)
    process.kill()
    process.join()
    assert process.exitcode == 0
    assert (tmp_path / "lock").is_fifo()


def test_a_limit_on_files_is_named(tmp_path, monkeypatch):
    refused = OSError(errno.EMFILE, "Too many open files")
    monkeypatch.setattr(os, "open", Mock(side_effect=refused))
    with pytest.raises(ConfigError, match="ulimit -n"), locked(tmp_path / "lock", never):
        pass
