"""The time zone of whoever types: "yesterday" is a day of theirs, wherever the daemon was started.

The name of the zone knows about summer time, so it is preferred; where this system has none, the present offset goes.
"""

import os
import re
import time

LOCALTIME = "/etc/localtime"
_IN_DATABASE = re.compile(r".*/zoneinfo[^/]*/(?:posix/|right/)?(.+)")


def local_zone() -> str:
    """Such as `Europe/Berlin`, or `+02:00`."""
    chosen = os.environ.get("TZ")
    text = LOCALTIME if chosen is None else chosen.removeprefix(":") or "UTC"
    if os.path.isabs(text):
        found = _IN_DATABASE.fullmatch(os.path.realpath(text))
        text = found[1] if found else ""
    return text if _is_zone(text) else _offset()


def _is_zone(name: str) -> bool:
    """A rule such as `CET-1CEST`, which TZ may hold as well, is none by name."""
    from zoneinfo import ZoneInfo

    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return False
    return True


def _offset() -> str:
    ahead = time.localtime().tm_gmtoff // 60
    return f"{'-' if ahead < 0 else '+'}{abs(ahead) // 60:02}:{abs(ahead) % 60:02}"
