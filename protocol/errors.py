"""Every error that crosses the wire, one class per code: raised in the daemon, raised again in the client.

`Fault.to_error` and `Fault.from_error` are inverse; a code nobody here knows becomes `UnknownFault`, so old clients survive.
"""

from typing import Any, ClassVar

import msgspec


class ErrorObject(msgspec.Struct, frozen=True, omit_defaults=True):
    """The `error` member of a JSON-RPC answer."""

    code: int
    message: str
    data: dict[str, Any] | None = None


class FaultData(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What `error.data` holds at least: a word for the kind of error, and details by its class."""

    code: str


class Fault(Exception):
    """An expected failure with a number, a sentence that names the fix, and a few machine-readable details."""

    code: ClassVar[int]
    word: ClassVar[str]
    Data: ClassVar[type[FaultData]] = FaultData
    by_code: ClassVar[dict[int, type["Fault"]]] = {}

    def __init__(self, message: str, **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.data: dict[str, Any] = {"code": self.word, **data}

    def __init_subclass__(cls) -> None:
        if not hasattr(cls, "code"):
            return
        if cls.code in Fault.by_code:
            raise TypeError(f"error code {cls.code} is taken by {Fault.by_code[cls.code].__name__}")
        Fault.by_code[cls.code] = cls

    def to_error(self) -> ErrorObject:
        return ErrorObject(self.code, self.message, self.data)

    @staticmethod
    def from_error(error: ErrorObject) -> "Fault":
        kind = Fault.by_code.get(error.code)
        if kind is None:
            return UnknownFault(error)
        fault = kind.__new__(kind)
        Exception.__init__(fault, error.message)
        fault.message = error.message
        fault.data = error.data or {}
        return fault


class UnknownFault(Fault):
    """A code that this version has no class for; the raw error is kept."""

    word = "unknown"

    def __init__(self, error: ErrorObject) -> None:
        super().__init__(error.message)
        self.error = error
        self.data = error.data or {}

    def to_error(self) -> ErrorObject:
        return self.error


class ParseError(Fault):
    """The frame is not JSON."""

    code, word = -32700, "parse_error"


class InvalidRequest(Fault):
    """JSON, but not a JSON-RPC 2.0 request, or a frame over the size limit."""

    class Data(FaultData, frozen=True, kw_only=True):
        limit: int | None = None

    code, word = -32600, "invalid_request"


class MethodNotFound(Fault):
    """No such method; `rpc.discover` lists those that work."""

    code, word = -32601, "method_not_found"


class InvalidParams(Fault):
    """A parameter is missing, unknown, of the wrong type, or holds text that cannot be stored."""

    code, word = -32602, "invalid_params"


class InternalError(Fault):
    """A bug. `incident` names the traceback in the daemon's log."""

    class Data(FaultData, frozen=True, kw_only=True):
        incident: str

    code, word = -32603, "internal_error"


class Unavailable(Fault):
    """The daemon cannot do this now; try again after `retry_after` seconds. On a turn: it was interrupted."""

    class Data(FaultData, frozen=True, kw_only=True):
        retry_after: float | None = None

    code, word = -32001, "unavailable"


class NotFound(Fault):
    """No object with this id."""

    class Data(FaultData, frozen=True, kw_only=True):
        kind: str | None = None
        id: str | None = None

    code, word = -32002, "not_found"


class Conflict(Fault):
    """Another turn is live (`active_turn_id`), or an idempotency key came back with other content."""

    class Data(FaultData, frozen=True, kw_only=True):
        active_turn_id: str | None = None
        key: str | None = None

    code, word = -32003, "conflict"


class ContextTooLarge(Fault):
    """The prompt does not fit the model's window: `required`, `budget`, `suggestions`."""

    class Data(FaultData, frozen=True, kw_only=True):
        required: int
        budget: int
        suggestions: tuple[str, ...]

    code, word = -32004, "context_too_large"


class ProviderError(Fault):
    """The model provider failed: `provider`, `code` (for example `missing_key` with `env`), `retryable`."""

    class Data(FaultData, frozen=True, kw_only=True):
        provider: str | None = None
        retryable: bool | None = None
        env: str | None = None
        status: int | None = None
        retry_after: float | None = None

    code, word = -32005, "provider_error"


class StorageFull(Fault):
    """The disk is full; reading goes on, writing resumes when there is space."""

    class Data(FaultData, frozen=True, kw_only=True):
        retry_after: float | None = None

    code, word = -32006, "storage_full"


class ReadOnly(Fault):
    """The daemon was started with --read-only, or its home cannot be written."""

    code, word = -32007, "read_only"


class BudgetExceeded(Fault):
    """A spend cap of the configuration is reached."""

    code, word = -32008, "budget_exceeded"


class InvalidState(Fault):
    """The object exists, but not in a state that allows this."""

    code, word = -32009, "invalid_state"


class NotAuthorised(Fault):
    """This peer or transport may not call this."""

    code, word = -32010, "not_authorised"


class Locked(Fault):
    """The store is encrypted and locked; call `daemon.unlock`."""

    code, word = -32011, "locked"


class Cancelled(Fault):
    """The request was cancelled by `$/cancelRequest`, or the turn by `turn.cancel`."""

    code, word = -32800, "cancelled"
