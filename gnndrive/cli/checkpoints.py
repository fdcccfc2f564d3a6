"""The files of `gnndrive train --checkpoint`: written whole or not at all; no code in them runs.

`training.py` says what is in them.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import torch

from gnndrive.common.errors import ConfigError
from gnndrive.common.io.small_files import replace_file

VERSION = 1
KEYS = ("model_settings", "epochs", "model", "optimizer", "random")
"""What every checkpoint has."""


def check_target(path: Path) -> None:
    """Check that a checkpoint can be written, before an epoch is spent on it.

    Raises:
        ConfigError: its folder is missing or not writable, or `path` is a folder or device.
    """
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ConfigError(
            f"the checkpoint {path} cannot be written, because the folder {folder} is not there: "
            f"make it first (mkdir -p {folder}), or give another file"
        )
    # What is there is replaced, which must not happen to a device or a folder.
    other = path.exists() and not path.is_file()
    if other or not os.access(folder, os.W_OK | os.X_OK):
        why = "it is no plain file" if other else f"the folder {folder} is not writable"
        raise ConfigError(
            f"the checkpoint {path} cannot be written, because {why}: give a file in a writable "
            "folder"
        )


def write_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint, in place of an older one.

    Raises:
        ConfigError: the disk is full, or the folder is not writable; an older one stays.
    """
    try:
        replace_file(path, lambda file: torch.save({"version": VERSION, **content}, file))
    except OSError as error:
        raise ConfigError(
            f"the checkpoint {path} cannot be written ({error.strerror}): give a file in a "
            "writable folder, on a disk with free space"
        ) from error


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint, with all of `KEYS`; no code in it is executed. Its tensors come to the
    CPU, wherever they were, so that a checkpoint of a GPU can be read without one.

    Raises:
        ConfigError: it cannot be read, or is no checkpoint of this version.
    """
    wanted = "checkpoint of gnndrive: give a file that --checkpoint wrote"
    content = read_tensors(path, wanted)
    if (
        not isinstance(content, dict)
        or content.get("version") != VERSION
        or any(key not in content for key in KEYS)
    ):
        raise ConfigError(
            f"{path} is no checkpoint of this version of gnndrive: give a file that --checkpoint "
            "wrote"
        )
    return content


def read_tensors(path: Path, wanted: str) -> Any:
    """Read a file of `torch.save`; no code in it is executed. Its tensors come to the CPU. `wanted`
    is what it should be and what to give instead, for the error "PATH is no WANTED"."""
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except OSError as error:
        raise ConfigError(
            f"the checkpoint {path} cannot be read ({error.strerror}): give an existing file"
        ) from error
    except (RuntimeError, ValueError, EOFError, KeyError, pickle.UnpicklingError) as error:
        raise ConfigError(f"{path} is no {wanted}") from error
