"""Faults are the same object on both ends of the wire."""

import msgspec
import pytest

from contextinfinity.protocol.errors import ErrorObject, Fault, NotFound, ProviderError, UnknownFault

KINDS = sorted(Fault.by_code.values(), key=lambda kind: kind.code)
CODES = {
    "parse_error": -32700,
    "invalid_request": -32600,
    "method_not_found": -32601,
    "invalid_params": -32602,
    "internal_error": -32603,
    "unavailable": -32001,
    "not_found": -32002,
    "conflict": -32003,
    "context_too_large": -32004,
    "provider_error": -32005,
    "storage_full": -32006,
    "read_only": -32007,
    "budget_exceeded": -32008,
    "invalid_state": -32009,
    "not_authorised": -32010,
    "locked": -32011,
    "cancelled": -32800,
}


def over_the_wire(error: ErrorObject) -> ErrorObject:
    return msgspec.json.decode(msgspec.json.encode(error), type=ErrorObject)


def test_the_codes_and_words_are_those_of_the_contract() -> None:
    assert {kind.word: kind.code for kind in KINDS} == CODES


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.word)
def test_a_fault_comes_back_as_itself(kind: type[Fault]) -> None:
    raised = kind("no luck", hint="try again", number=7)
    again = Fault.from_error(over_the_wire(raised.to_error()))
    assert type(again) is kind
    assert (again.message, again.data) == ("no luck", {"code": kind.word, "hint": "try again", "number": 7})
    assert again.args == raised.args
    assert again.to_error() == raised.to_error()


def test_the_word_can_be_more_precise_than_the_class() -> None:
    fault = ProviderError("no key", code="missing_key", env="KEY")
    assert fault.to_error().data == {"code": "missing_key", "env": "KEY"}


def test_an_error_without_data_is_understood() -> None:
    fault = Fault.from_error(ErrorObject(-32002, "gone"))
    assert isinstance(fault, NotFound)
    assert fault.data == {}
    assert str(fault) == "gone"


def test_a_code_of_the_future_is_kept_whole() -> None:
    error = ErrorObject(-31999, "from the future", {"code": "novel", "detail": [1, {"a": None}]})
    fault = Fault.from_error(over_the_wire(error))
    assert type(fault) is UnknownFault
    assert (str(fault), fault.data) == ("from the future", error.data)
    assert fault.to_error() == error


def test_a_code_cannot_be_taken_twice() -> None:
    with pytest.raises(TypeError, match="-32002 is taken by NotFound"):
        type("Impostor", (Fault,), {"code": -32002, "word": "impostor"})
    assert Fault.by_code[-32002] is NotFound
