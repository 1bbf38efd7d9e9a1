"""Envelopes: what is a request, what is a notification, and what every other document is answered with."""

import json
from typing import Any

import pytest

from contextinfinity.protocol import jsonrpc
from contextinfinity.protocol.errors import Conflict, ErrorObject, Fault, InvalidParams, InvalidRequest, ParseError
from contextinfinity.protocol.jsonrpc import ABSENT, NULL, BadRequest, Incoming, Request


def only(incoming: Incoming) -> Request | BadRequest:
    assert not incoming.batch
    (item,) = incoming.items
    return item


def request(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": "m", **members}).encode()


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (request(id=1), Request("m", ABSENT, b"1")),
        (request(id="a", params={"x": [1]}), Request("m", b'{"x": [1]}', b'"a"')),
        (request(id=-1.5, params=[1, "x"]), Request("m", b'[1, "x"]', b"-1.5")),
        (request(id=None), Request("m", ABSENT, NULL)),
        (request(id=""), Request("m", ABSENT, b'""')),
        (request(), Request("m")),
        (request(params={}), Request("m", b"{}")),
        (request(method="", id=0), Request("", ABSENT, b"0")),
        (b' \t{ "id" : 7 ,"method":"m","jsonrpc":"2.0","more":true}\r ', Request("m", ABSENT, b"7")),
        (
            b'{"jsonrpc":"2.0","method":"m","id":123456789012345678901234567890}',
            Request("m", ABSENT, b"123456789012345678901234567890"),
        ),
    ],
)
def test_requests_and_notifications(document: bytes, expected: Request) -> None:
    item = only(jsonrpc.decode(document))
    assert item == expected
    assert expected.is_notification == (expected.id == ABSENT)
    assert only(jsonrpc.decode(bytearray(document))) == expected


NESTED = b"[" * 100_000

MALFORMED: list[tuple[bytes, type[Fault], bytes]] = [
    # not JSON
    (b"", ParseError, NULL),
    (b"   ", ParseError, NULL),
    (b"{", ParseError, NULL),
    (b"hello", ParseError, NULL),
    (b"{'jsonrpc':'2.0'}", ParseError, NULL),
    (request(id=1)[:-1], ParseError, NULL),
    (request(id=1) + b"x", ParseError, NULL),
    (request(id=1) + request(id=2), ParseError, NULL),
    (b"[" + request(id=1), ParseError, NULL),
    (b"[" + request(id=1) + b",]", ParseError, NULL),
    (b'{"jsonrpc":"2.0","method":"m","params":{"a":01},"id":1}', ParseError, NULL),
    (b'{"jsonrpc":"2.0","method":"m","params":{"a":"\x01"},"id":1}', ParseError, NULL),
    (b'{"jsonrpc":"2.0","method":"m","params":{"a":"\\x"},"id":1}', ParseError, NULL),
    (b'{"jsonrpc":"2.0","method":"m","id":nil}', ParseError, NULL),
    (b'{"jsonrpc":"2.0","method":"m","id":-}', ParseError, NULL),
    (b"\xef\xbb\xbf" + request(id=1), ParseError, NULL),
    (request(id=1).decode().encode("utf-16"), ParseError, NULL),
    # not UTF-8
    (b'{"jsonrpc":"2.0","method":"\xff","id":1}', ParseError, NULL),
    (b'{"jsonrpc":"2.0","method":"m","id":"\xff"}', ParseError, NULL),
    (b'{"jsonrpc":"2.0","method":"m","id":"\xed\xa0\x80"}', ParseError, NULL),
    # nested deeper than anybody can follow
    (NESTED, ParseError, NULL),
    (b'{"jsonrpc":"2.0","id":1,"method":"m","params":' + NESTED, ParseError, NULL),
    (b'{"jsonrpc":"2.0","id":1,"method":' + NESTED + b"]" * len(NESTED) + b"}", ParseError, NULL),
    (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, ParseError, NULL),
    # JSON, but no request
    (b"1", InvalidRequest, NULL),
    (b"null", InvalidRequest, NULL),
    (b'"text"', InvalidRequest, NULL),
    (b"true", InvalidRequest, NULL),
    (b"{}", InvalidRequest, NULL),
    (b"[]", InvalidRequest, NULL),
    (b" [ ] ", InvalidRequest, NULL),
    (request(jsonrpc="1.0", id=1), InvalidRequest, b"1"),
    (request(jsonrpc=2.0, id=1), InvalidRequest, b"1"),
    (request(jsonrpc=None, id="x"), InvalidRequest, b'"x"'),
    (b'{"method":"m","id":1}', InvalidRequest, b"1"),
    (b'{"jsonrpc":"2.0","id":1}', InvalidRequest, b"1"),
    (b'{"jsonrpc":"2.0"}', InvalidRequest, NULL),
    (request(method=None, id=1), InvalidRequest, b"1"),
    (request(method=1, id=1), InvalidRequest, b"1"),
    (request(method=["m"], id=1), InvalidRequest, b"1"),
    (request(params="text", id=1), InvalidRequest, b"1"),
    (request(params=5, id=1), InvalidRequest, b"1"),
    (request(params=None, id=1), InvalidRequest, b"1"),
    (request(params=True), InvalidRequest, NULL),
    (request(id=True), InvalidRequest, NULL),
    (request(id=[1]), InvalidRequest, NULL),
    (request(id={}), InvalidRequest, NULL),
    (b'{"jsonrpc":"2.0","id":1,"result":{}}', InvalidRequest, b"1"),
    # well-formed, but text that is no text
    (request(id=1, params={"a": "\ud800"}), InvalidParams, b"1"),
    (request(id=1, params={"\udfff": "a"}), InvalidParams, b"1"),
    (request(id=1, params=["a\ude00\ud83d"]), InvalidParams, b"1"),
    (request(id="x", method="\ud800"), InvalidParams, b'"x"'),
    (request(id=2**70, method="\ud800"), InvalidParams, str(2**70).encode()),
    (request(id="\ud800"), InvalidParams, NULL),
    (request(id=True, method="\ud800"), InvalidParams, NULL),
    (request(id=1.5, method="\ud800"), InvalidParams, NULL),
    (b"[" + request(id=1, method="\ud800") + b"]", InvalidParams, NULL),
    (b'{"a":"\\ud800"', ParseError, NULL),
    (b'{"a":"\\ud800","b":' + NESTED, ParseError, NULL),
]  # fmt: skip


@pytest.mark.parametrize(("document", "kind", "ident"), MALFORMED, ids=[repr(m[0][:60]) for m in MALFORMED])
def test_what_is_no_request_is_answered_by_kind_and_id(document: bytes, kind: type[Fault], ident: bytes) -> None:
    item = only(jsonrpc.decode(document))
    assert isinstance(item, BadRequest)
    assert type(item.fault) is kind
    assert item.id == ident
    answered = json.loads(jsonrpc.failure(item.id, item.fault.to_error()))
    assert answered["error"]["code"] == kind.code
    assert answered["error"]["message"]


def test_a_surrogate_pair_is_a_character() -> None:
    item = only(jsonrpc.decode(request(id=1, params={"a": "🌍"})))
    assert isinstance(item, Request)
    assert item.params == b'{"a": "\\ud83c\\udf0d"}'


def test_a_batch_keeps_its_order_and_its_bad_members() -> None:
    members = [request(id=1), b"1", request(), b'{"foo": "boo"}', request(id=2, params=3), b"[]"]
    incoming = jsonrpc.decode(b"[" + b" , ".join(members) + b"]")
    assert incoming.batch
    assert [type(item) for item in incoming.items] == [Request, BadRequest, Request, BadRequest, BadRequest, BadRequest]
    assert [item.id for item in incoming.items] == [b"1", NULL, ABSENT, NULL, b"2", NULL]
    assert jsonrpc.decode(b"[1]").batch


def test_answers_are_what_a_client_reads() -> None:
    reply = jsonrpc.decode_reply(jsonrpc.answer(b"7", {"a": "ü"}))
    assert (reply.id, json.loads(bytes(reply.result)), reply.error) == (7, {"a": "ü"}, None)
    fault = Conflict("busy", active_turn_id="t")
    reply = jsonrpc.decode_reply(jsonrpc.failure(b'"x"', fault.to_error()))
    assert (reply.id, reply.error) == ("x", ErrorObject(-32003, "busy", {"code": "conflict", "active_turn_id": "t"}))
    reply = jsonrpc.decode_reply(jsonrpc.notification("event", {"cursor": 1}))
    assert (reply.id, reply.method, json.loads(bytes(reply.params))) == (None, "event", {"cursor": 1})


def test_a_clients_request_is_what_the_daemon_reads() -> None:
    assert only(jsonrpc.decode(jsonrpc.request(5, "m", {"a": 1}))) == Request("m", b'{"a":1}', b"5")


@pytest.mark.parametrize(
    ("params", "holds"),
    [
        ({"a": "x"}, False),
        ({"a": "\0"}, True),
        ({"a": ["b", {"c": "d\0"}]}, True),
        ({"\0": 1}, True),
        (["\0"], True),
        ({"a": "\\u0000"}, False),
        ({"a": "\\\0"}, True),
        ({"a": 0}, False),
    ],
)
def test_nul_is_found_wherever_it_hides(params: object, holds: bool) -> None:
    assert jsonrpc.holds_nul(json.dumps(params).encode()) is holds
