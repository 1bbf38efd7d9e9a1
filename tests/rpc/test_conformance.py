"""The examples of the JSON-RPC 2.0 specification, section 7, over every transport."""

import json
from pathlib import Path
from typing import Any

import pytest

from contextinfinity.protocol.methods import Params
from tests.rpc.serving import TRANSPORTS, Table, Transport, everything, serving


class Subtract(Params[int], frozen=True, kw_only=True):
    minuend: int
    subtrahend: int


class Update(Params[None], frozen=True, kw_only=True):
    a: int
    b: int
    c: int
    d: int
    e: int


class Sum(Params[int], frozen=True, kw_only=True):
    a: int
    b: int
    c: int


class NotifySum(Sum, frozen=True, kw_only=True):
    pass


class NotifyHello(Params[None], frozen=True, kw_only=True):
    a: int


class GetData(Params[list[Any]], frozen=True, kw_only=True):
    pass


class Calculator:
    """The server of the examples; `heard` is what its notifications told it."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    async def subtract(self, _: object, p: Subtract) -> int:
        return p.minuend - p.subtrahend

    async def sum(self, _: object, p: Sum) -> int:
        return p.a + p.b + p.c

    async def notify(self, _: object, p: Params[Any]) -> None:
        self.heard.append(type(p).__name__)

    async def get_data(self, _: object, __: GetData) -> list[Any]:
        return ["hello", 5]

    def table(self) -> Table:
        return {
            Subtract: ("subtract", self.subtract),
            Update: ("update", self.notify),
            Sum: ("sum", self.sum),
            NotifySum: ("notify_sum", self.notify),
            NotifyHello: ("notify_hello", self.notify),
            GetData: ("get_data", self.get_data),
        }


def result(value: Any, ident: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "result": value, "id": ident}


def error(code: int, ident: Any = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "error": {"code": code}, "id": ident}


EXAMPLES: dict[str, tuple[str, Any]] = {
    "positional": (
        '{"jsonrpc": "2.0", "method": "subtract", "params": [42, 23], "id": 1}',
        result(19, 1),
    ),
    "positional, other way": (
        '{"jsonrpc": "2.0", "method": "subtract", "params": [23, 42], "id": 2}',
        result(-19, 2),
    ),
    "named": (
        '{"jsonrpc": "2.0", "method": "subtract", "params": {"subtrahend": 23, "minuend": 42}, "id": 3}',
        result(19, 3),
    ),
    "named, other order": (
        '{"jsonrpc": "2.0", "method": "subtract", "params": {"minuend": 42, "subtrahend": 23}, "id": 4}',
        result(19, 4),
    ),
    "notification": ('{"jsonrpc": "2.0", "method": "update", "params": [1,2,3,4,5]}', None),
    "notification of nobody": ('{"jsonrpc": "2.0", "method": "foobar"}', None),
    "non-existent method": ('{"jsonrpc": "2.0", "method": "foobar", "id": "1"}', error(-32601, "1")),
    "invalid JSON": ('{"jsonrpc": "2.0", "method": "foobar, "params": "bar", "baz]', error(-32700)),
    "invalid request object": ('{"jsonrpc": "2.0", "method": 1, "params": "bar"}', error(-32600)),
    "batch, invalid JSON": (
        '[ {"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"}, {"jsonrpc": "2.0", "method" ]',
        error(-32700),
    ),
    "empty array": ("[]", error(-32600)),
    "invalid batch, not empty": ("[1]", [error(-32600)]),
    "invalid batch": ("[1,2,3]", [error(-32600), error(-32600), error(-32600)]),
    "batch": (
        '[ {"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"},'
        ' {"jsonrpc": "2.0", "method": "notify_hello", "params": [7]},'
        ' {"jsonrpc": "2.0", "method": "subtract", "params": [42,23], "id": "2"},'
        ' {"foo": "boo"},'
        ' {"jsonrpc": "2.0", "method": "foo.get", "params": {"name": "myself"}, "id": "5"},'
        ' {"jsonrpc": "2.0", "method": "get_data", "id": "9"} ]',
        [result(7, "1"), result(19, "2"), error(-32600), error(-32601, "5"), result(["hello", 5], "9")],
    ),
    "batch of notifications": (
        '[ {"jsonrpc": "2.0", "method": "notify_sum", "params": [1,2,4]},'
        ' {"jsonrpc": "2.0", "method": "notify_hello", "params": [7]} ]',
        None,
    ),
}
HEARD = {"notification": ["Update"], "batch": ["NotifyHello"], "batch of notifications": ["NotifyHello", "NotifySum"]}


def comparable(answer: Any) -> Any:
    """An answer without what the specification leaves open: the words of an error, and the order in a batch."""
    if isinstance(answer, list):
        return sorted((comparable(one) for one in answer), key=by_content)
    if "error" in answer:
        return answer | {"error": {"code": answer["error"]["code"]}}
    return answer


def by_content(answer: Any) -> str:
    return json.dumps(answer, sort_keys=True)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("example", EXAMPLES)
async def test_example(tmp_path: Path, example: str, transport: Transport) -> None:
    sent, expected = EXAMPLES[example]
    calculator = Calculator()
    async with serving(tmp_path, calculator.table()) as served, served.peer(transport) as peer:
        await peer.send(sent)
        answers = await everything(peer)
    for answer in answers:
        for one in answer if isinstance(answer, list) else [answer]:
            assert "result" in one or one["error"]["message"]
    assert [comparable(answer) for answer in answers] == ([] if expected is None else [comparable(expected)])
    assert sorted(calculator.heard) == HEARD.get(example, [])
