"""JSON-RPC 2.0 envelopes: one decoded document in, typed requests, answers and notifications out.

Parameters stay `Raw` here; `methods.METHODS` says what they are. The daemon decodes requests, the client answers.
"""

import json
from typing import Any

import msgspec

from contextinfinity.protocol.errors import ErrorObject, Fault, InvalidParams, InvalidRequest, ParseError

ABSENT = b""
NULL = b"null"
MOST_IN_BATCH = 1000
MOST_COMMAS = 200_000
UNDECODABLE = (RecursionError, msgspec.DecodeError, UnicodeDecodeError)


class Request(msgspec.Struct, frozen=True):
    """A request or, with an absent id, a notification."""

    method: str
    params: bytes = ABSENT
    id: bytes = ABSENT

    @property
    def is_notification(self) -> bool:
        return self.id == ABSENT


class BadRequest(msgspec.Struct, frozen=True):
    """Something that is no request; it is answered with the fault, under its id where it had a usable one."""

    fault: Fault
    id: bytes = NULL


class Incoming(msgspec.Struct, frozen=True):
    """One frame: a request, or a batch of them."""

    items: tuple[Request | BadRequest, ...]
    batch: bool = False


class _Envelope(msgspec.Struct, frozen=True):
    jsonrpc: Any = None
    method: Any = None
    params: msgspec.Raw = msgspec.Raw(b"")
    id: msgspec.Raw = msgspec.Raw(b"")


_envelope = msgspec.json.Decoder(_Envelope)
_batch = msgspec.json.Decoder(list[msgspec.Raw])
_encode = msgspec.json.Encoder().encode


def decode(frame: bytes | bytearray) -> Incoming:
    """What a peer sent; never raises on bad input, which comes back as `BadRequest` items."""
    if frame.lstrip()[:1] != b"[":
        return Incoming((_one(frame),))
    if frame.count(b",") > MOST_COMMAS:  # counted before anything is built of them
        return Incoming((_too_many(),))
    try:
        parts = _batch.decode(frame)
    except UNDECODABLE as error:
        return Incoming((_undecodable(frame, error),))
    if not parts:
        return Incoming((BadRequest(InvalidRequest("an empty batch is not a request")),))
    if len(parts) > MOST_IN_BATCH:
        return Incoming((_too_many(),))
    return Incoming(tuple(_one(bytes(part)) for part in parts), batch=True)


def _too_many() -> BadRequest:
    return BadRequest(
        InvalidRequest(f"a batch may hold {MOST_IN_BATCH} requests; send the rest in another", limit=MOST_IN_BATCH)
    )


def _one(document: bytes | bytearray) -> Request | BadRequest:
    try:
        envelope = _envelope.decode(document)
    except msgspec.ValidationError:
        return BadRequest(InvalidRequest("a request must be a JSON object"))
    except UNDECODABLE as error:
        return _undecodable(document, error)
    ident, params = bytes(envelope.id), bytes(envelope.params)
    if ident != ABSENT and ident[:1] not in _ID_STARTS:
        return BadRequest(InvalidRequest("id must be a string, a number or null"))
    try:
        ident.decode()  # it is sent back as it came, so it has to be text
    except UnicodeDecodeError as error:
        return _undecodable(document, error)
    answer_to = ident if ident != ABSENT else NULL
    if envelope.jsonrpc != "2.0" or not isinstance(envelope.method, str):
        return BadRequest(InvalidRequest('a request needs "jsonrpc": "2.0" and a method name'), answer_to)
    if params != ABSENT and params[:1] not in (b"{", b"["):
        return BadRequest(InvalidRequest("params must be an object or an array"), answer_to)
    return Request(envelope.method, params, ident)


_ID_STARTS = frozenset(bytes((c,)) for c in b'"-0123456789n')


def _undecodable(document: bytes | bytearray, error: Exception) -> BadRequest:
    """Tell broken JSON from well-formed JSON whose text cannot be stored: a lone surrogate is a bad parameter."""
    if b"\\ud" in document or b"\\uD" in document:
        try:
            value = json.loads(document)
        except (ValueError, RecursionError):
            return BadRequest(ParseError(f"not valid JSON: {error}"))
        ident = value.get("id") if isinstance(value, dict) else None
        usable = isinstance(ident, str | int) and not isinstance(ident, bool) and not _has_surrogate(ident)
        fault = InvalidParams("text holds a lone surrogate (\\ud800-\\udfff), which is not a character")
        return BadRequest(fault, _encode(ident) if usable else NULL)
    return BadRequest(ParseError(f"not valid JSON: {error}"))


def _has_surrogate(value: object) -> bool:
    return isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value)


def answer(ident: bytes, result: object) -> bytes:
    return b'{"jsonrpc":"2.0","id":' + ident + b',"result":' + _encode(result) + b"}"


def failure(ident: bytes, error: ErrorObject) -> bytes:
    return b'{"jsonrpc":"2.0","id":' + ident + b',"error":' + _encode(error) + b"}"


def notification(method: str, params: object) -> bytes:
    return b'{"jsonrpc":"2.0","method":' + _encode(method) + b',"params":' + _encode(params) + b"}"


def request(ident: int, method: str, params: object) -> bytes:
    return b'{"jsonrpc":"2.0","id":%d,"method":%b,"params":%b}' % (ident, _encode(method), _encode(params))


def join_batch(answers: list[bytes]) -> bytes:
    return b"[" + b",".join(answers) + b"]"


class Reply(msgspec.Struct, frozen=True):
    """What a client receives: an answer (`id`), or a notification (`method`)."""

    id: Any = None
    result: msgspec.Raw = msgspec.Raw(b"")
    error: ErrorObject | None = None
    method: str | None = None
    params: msgspec.Raw = msgspec.Raw(b"")


decode_reply = msgspec.json.Decoder(Reply).decode


def holds_nul(params: bytes) -> bool:
    """Whether any text in these parameters holds U+0000, which neither C APIs nor full-text search carry safely."""
    if b"\\u0000" not in params:
        return False
    stack: list[object] = [msgspec.json.decode(params)]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            if "\0" in value:
                return True
        elif isinstance(value, dict):
            stack += value.keys()
            stack += value.values()
        elif isinstance(value, list):
            stack += value
    return False
