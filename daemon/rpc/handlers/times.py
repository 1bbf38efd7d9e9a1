"""Times and zones as clients give them; what cannot be understood is the client's error, by the name of the field."""

from datetime import UTC, datetime, tzinfo

from contextinfinity.daemon.core.when import bound, zone
from contextinfinity.protocol.errors import InvalidParams


def client_zone(tz: str | None) -> tzinfo:
    try:
        return zone(tz)
    except ValueError as error:
        raise InvalidParams(f"tz: {error}") from None


def moment(name: str, text: str, at: tzinfo, *, end: bool) -> float:
    try:
        return bound(text, datetime.now(UTC), at, end=end)
    except ValueError as error:
        raise InvalidParams(f"{name}: {error}") from None
