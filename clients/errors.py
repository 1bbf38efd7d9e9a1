"""What can go wrong between a client and its daemon, before or beside the faults that the daemon itself reports.

`protocol.errors.Fault` is the daemon's answer; these say that there was no usable answer at all.
"""


class ClientError(Exception):
    """Base of the failures on this side of the wire; the message names the fix."""


class DaemonUnreachable(ClientError):
    """No daemon answers here, or the connection to it was lost."""


class NobodyListens(DaemonUnreachable):
    """There is no socket, or one that was left over: no daemon runs there."""


class DaemonSilent(DaemonUnreachable):
    """The daemon is connected but did not answer within the deadline."""


class BadAnswer(ClientError):
    """The daemon answered something that this version of the client does not understand."""
