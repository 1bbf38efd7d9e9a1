"""Maps a request to its handler and whatever happens to an answer: the only place where errors become numbers.

Faults keep their code, a busy or dead actor is "unavailable", a bug gets an incident id and its traceback stays in the log.
"""

import inspect
import logging
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import msgspec

from contextinfinity.daemon.runtime.actor import ActorGone, AskTimeout, MailboxFull
from contextinfinity.daemon.runtime.ids import IdMint
from contextinfinity.protocol.errors import ErrorObject, Fault, InternalError, InvalidParams, MethodNotFound, Unavailable
from contextinfinity.protocol.jsonrpc import ABSENT, Request, answer, failure, holds_nul
from contextinfinity.protocol.methods import Method, Params

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its own schema file the old way
    from jsonrpcserver import Error, Success
    from jsonrpcserver.async_dispatcher import dispatch_request
    from jsonrpcserver.request import Request as Call
    from jsonrpcserver.sentinels import NOCONTEXT

log = logging.getLogger(__name__)

Handler = Callable[[Any, Any], Awaitable[Any]]
_SIGNATURE = inspect.Signature([inspect.Parameter("started", inspect.Parameter.POSITIONAL_ONLY)])


class Dispatcher:
    """The methods that work, each with its handler `(context, params) -> awaitable result`.

    A handler that is a plain function acts when it is called, so requests of one connection take effect in their order.
    """

    def __init__(self, methods: Mapping[str, Method], handlers: Mapping[type[Params[Any]], Handler], mint: IdMint) -> None:
        self._methods = methods
        self._mint = mint
        self._handlers = {name: handlers[method.params] for name, method in methods.items()}
        self._decoders = {name: msgspec.json.Decoder(method.params).decode for name, method in methods.items()}
        self._eager = frozenset(name for name, fn in self._handlers.items() if not inspect.iscoroutinefunction(fn))
        self._calls = dict.fromkeys(methods, self._waiter())

    def is_inline(self, name: str) -> bool:
        method = self._methods.get(name)
        return method is not None and method.inline

    def is_eager(self, name: str) -> bool:
        """Whether the handler acts when it is called, rather than when it is awaited."""
        return name in self._eager

    def start(self, context: Any, request: Request) -> Coroutine[None, None, bytes | None]:
        """Begin now; await the result for the answer to send, or None for a notification."""
        try:
            started = self._start(context, request)
        except Exception as error:  # noqa: BLE001 - it is answered like one that comes later
            return self._finish(request, _raised(error))
        return self._finish(request, started)

    def _start(self, context: Any, request: Request) -> Awaitable[Any] | None:
        method = self._methods.get(request.method)
        if method is None:
            return None
        params = _params(method, self._decoders[request.method], request.params)
        return self._handlers[request.method](context, params)

    async def _finish(self, request: Request, started: Awaitable[Any] | None) -> bytes | None:
        _, result = await dispatch_request(self._calls, NOCONTEXT, Call(request.method, [started], None))
        if request.is_notification:
            return None
        error = getattr(result, "_error", None)
        if error is None:
            try:
                return answer(request.id, result._value.result)
            except Exception as unspeakable:  # noqa: BLE001 - a result that is no JSON is a bug like any other
                return failure(request.id, self._fault(unspeakable))
        if error.code == MethodNotFound.code:
            fault = MethodNotFound(f"there is no method {request.method!r}; rpc.discover lists those that work")
            return failure(request.id, fault.to_error())
        return failure(request.id, ErrorObject(error.code, error.message, error.data))

    def _waiter(self) -> Callable[..., Awaitable[Any]]:
        async def wait(started: Awaitable[Any]) -> Any:
            try:
                return Success(await started)
            except Exception as error:  # noqa: BLE001 - no exception of ours crosses the wire as it is
                fault = self._fault(error)
                return Error(fault.code, fault.message, fault.data)

        wait.__signature__ = _SIGNATURE  # type: ignore[attr-defined]  # spares jsonrpcserver the inspection of every call
        return wait

    def _fault(self, error: Exception) -> ErrorObject:
        match error:
            case Fault():
                return error.to_error()
            case MailboxFull() | ActorGone() | AskTimeout():
                return Unavailable(f"{error}; try again", retry_after=1).to_error()
        incident = self._mint()
        log.error("incident %s", incident, exc_info=error)
        return InternalError(f"this is a bug; incident {incident} is in the daemon's log", incident=incident).to_error()


async def _raised(error: Exception) -> Any:
    raise error


def _params(method: Method, decode: Callable[[bytes], Any], raw: bytes) -> Any:
    if raw == ABSENT:
        raw = b"{}"
    try:
        if holds_nul(raw):
            raise InvalidParams("text holds U+0000, which cannot be stored; remove it")
        if raw[:1] == b"[":
            return _by_position(method, msgspec.json.decode(raw))
        return decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidParams(f"{method.name}: {error}") from None


def _by_position(method: Method, values: list[Any]) -> Any:
    names = method.params.__struct_fields__
    if len(values) > len(names):
        raise InvalidParams(f"{method.name} takes at most {len(names)} parameters")
    return msgspec.convert(dict(zip(names, values, strict=False)), method.params)
