"""Messages in the words of the command line.

Most errors are raised below the command line, and their messages name arguments as Python does:
`memory="8GB"`, `tuning=Tuning(io_depth=64)`, `batch_size`. `in_options` puts the options that the
command has in their place: `--memory 8GB`, `--tuning io_depth=64`, `--batch-size`.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

OTHER_NAMES = {
    "columns": "edge_column", "num_neighbors": "fanout", "splits": "split",
    "strategy": "strategies",
}  # fmt: skip
"""Arguments whose option has another name."""
_TEXT = r"\"[^\"]*\"|'[^']*'"
_END = r"\s\"'()\[\]{},;:…="
_VALUE = (
    rf"(?:{_TEXT})(?: or (?:{_TEXT}))*|\[[^][]*\]|\([^()]*\)|\d[\d.]* [KMGT]?B\b|…"
    rf"|[^{_END}]*[^{_END}.]"
)
_NAMED = re.compile(
    # behind such a sign is a part of a path, of an option or of what the user has typed
    r"(?<![\w./:,'\"-])(?<!--tuning )(?:"
    r"`[^`]*`"  # a command or code, as it is to be typed
    r"|tuning=(?:gnndrive\.)?Tuning\((?P<tuning>[^()]*)\)"
    r"|(?:\w+\.)*\w+\((?:[^()]|\([^()]*\))*\)"  # a call
    rf"|(?P<name>[a-z]\w*)=(?P<value>{_VALUE})?"
    r"|(?P<word>[a-z]+_\w+)(?![\w/(=\]'\"]|\.\w)"
    r")(?P<of> (?:of|to) gnndrive\.\w+)?"
)


def in_options(message: str, command: Any) -> str:
    """A message with the options of a command in place of the arguments that they give.

    Args:
        command: a command of click; without options the message stays as it is.
    """
    options = {each.name: each for each in command.params if each.param_type_name == "option"}

    tuning: tuple[str, ...] = ()
    if "tuning" in options:
        from gnndrive.loader.arguments import TUNING as tuning  # such a command needs PyTorch too

    def said(found: re.Match[str]) -> str:
        if found["tuning"] is not None and tuning:
            return f"--tuning {found['tuning'].replace(', ', ',').translate(_UNQUOTED)}"
        name = found["name"] or found["word"]
        option = options.get(name) or options.get(OTHER_NAMES.get(name))
        if option is not None:
            return _said(option, found["value"])
        if found["name"] in tuning:
            return f"--tuning {name}={_plain(found['value'] or '…')}"
        return found[0]

    return _NAMED.sub(said, message)


_UNQUOTED = str.maketrans("", "", "\"'")


def _said(option: Any, value: str | None) -> str:
    """An option with a value as it is typed; None: the message gives none."""
    if option.is_flag and value in ("False", "0") and option.secondary_opts:
        return str(option.secondary_opts[0])
    name = max(option.opts, key=len)
    return name if value is None or option.is_flag else f"{name} {_plain(value)}"


def _plain(value: str) -> str:
    """A value of Python as it is typed on a command line."""
    if value[0] in "\"'":
        return re.sub(_TEXT, lambda text: shlex.quote(text[0][1:-1]), value)
    if value[0] in "[(":
        return value[1:-1].replace(", ", ",").translate(_UNQUOTED)
    return value.replace(" ", "")
