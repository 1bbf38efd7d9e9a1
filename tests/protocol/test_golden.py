"""Golden files guard the wire: what is sent must stay as it is, or change on purpose and in sight.

To change it on purpose: `CTX_WRITE_GOLDEN=1 pytest tests/protocol/test_golden.py`, then read the difference.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contextinfinity.protocol import events, jsonrpc
from contextinfinity.protocol.errors import Fault, NotFound
from contextinfinity.protocol.events import Notification
from contextinfinity.protocol.methods import METHODS, Params
from tests.protocol.samples import full, kinds, least

FOLDER = Path(__file__).parent / "golden"
KINDS = kinds()


def encoded(value: object) -> Any:
    """As the wire has it."""
    return json.loads(msgspec.json.encode(value))


def values() -> dict[str, Any]:
    return {n: {"full": encoded(full(k)), "least": encoded(least(k))} for n, k in KINDS.items() if not issubclass(k, Params)}


def params() -> dict[str, Any]:
    return {
        name: {"full": encoded(full(m.params)), "least": encoded(least(m.params))} for name, m in METHODS.items()
    }  # fmt: skip


def method_table() -> dict[str, Any]:
    return {
        name: {"params": m.params.__name__, "result": str(getattr(m.result, "__name__", m.result))}
        for name, m in METHODS.items()
    }


def event_notifications() -> dict[str, Any]:
    return {
        name: json.loads(jsonrpc.notification("event", Notification("sub", 7, name, "branch", {"k": "v"}, "turn", "session")))
        for name in (*events.DURABLE, *events.TRANSIENT)
    } | {"without optional members": json.loads(jsonrpc.notification("event", Notification("sub", 0, "lagged", "", {})))}


def errors() -> dict[str, Any]:
    return {
        kind.word: json.loads(jsonrpc.failure(b"1", kind("what to do", detail=1).to_error())) for kind in Fault.by_code.values()
    }


def envelopes() -> dict[str, str]:
    """Byte for byte, since other programs may look at them with less than a JSON parser."""
    answer, failure = jsonrpc.answer(b"1", {"a": "ü"}), jsonrpc.failure(b"null", NotFound("gone").to_error())
    return {
        "answer": answer.decode(),
        "failure": failure.decode(),
        "notification": jsonrpc.notification("event", {"cursor": 1}).decode(),
        "request": jsonrpc.request(1, "daemon.ping", {}).decode(),
        "batch": jsonrpc.join_batch([answer, failure]).decode(),
    }


FILES: dict[str, Callable[[], Any]] = {
    "values": values,
    "params": params,
    "methods": method_table,
    "events": event_notifications,
    "errors": errors,
    "envelopes": envelopes,
}


def golden(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def write(name: str, found: dict[str, Any]) -> None:
    """A line for each entry, so that a difference shows what changed."""
    entries = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in found.items()]
    (FOLDER / f"{name}.json").write_text("{\n" + ",\n".join(entries) + "\n}\n", encoding="utf-8")


@pytest.mark.parametrize("name", FILES)
def test_the_wire_format_is_the_golden_one(name: str) -> None:
    found = FILES[name]()
    if os.environ.get("CTX_WRITE_GOLDEN"):
        write(name, found)
    assert found == golden(name)


def test_there_is_no_golden_file_that_nobody_reads() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == FILES.keys()


@pytest.mark.parametrize("name", [n for n, k in KINDS.items() if not issubclass(k, Params)])
@pytest.mark.parametrize("size", ["full", "least"])
def test_a_golden_value_is_understood_and_may_gain_fields(name: str, size: str) -> None:
    kind, document = KINDS[name], golden("values")[name][size]
    expected = full(kind) if size == "full" else least(kind)
    assert msgspec.json.decode(json.dumps(document), type=kind) == expected
    assert msgspec.json.decode(json.dumps({**document, "a_field_of_the_future": [1]}), type=kind) == expected


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", ["full", "least"])
def test_golden_params_are_understood_and_unknown_ones_are_refused_by_name(method: str, size: str) -> None:
    kind, document = METHODS[method].params, golden("params")[method][size]
    assert msgspec.json.decode(json.dumps(document), type=kind) == (full(kind) if size == "full" else least(kind))
    with pytest.raises(msgspec.ValidationError, match="a_field_of_the_future"):
        msgspec.json.decode(json.dumps({**document, "a_field_of_the_future": 1}), type=kind)


def test_every_parameter_class_is_a_method() -> None:
    assert {k for k in KINDS.values() if issubclass(k, Params)} == {m.params for m in METHODS.values()}
