"""The embedded provider answers from the conversation alone."""

from contextlib import aclosing

import trio

from contextinfinity.daemon.core.transcript import Answer
from contextinfinity.daemon.providers.base import Endpoint, ModelRequest, RawEvent
from contextinfinity.daemon.providers.recall import NOTICE, REMINDER, Recall, answer
from contextinfinity.protocol.blocks import Message, message
from contextinfinity.protocol.model import Completed

FACT = message("user", "The build server is called heron-7.", created_at="2026-03-04T05:06:07Z")
QUESTION = message("user", "What is the build server called?")


def _request(*messages: Message) -> ModelRequest:
    return ModelRequest("recall", "", messages, 1000)


async def _events(request: ModelRequest) -> list[RawEvent]:
    async with aclosing(Recall().stream(request, Endpoint("recall"))) as stream:
        return [event async for event in stream]


def test_it_quotes_the_answer_with_its_date_and_says_that_it_is_no_model() -> None:
    text = answer(_request(FACT, message("assistant", "Noted."), QUESTION))
    assert "“The build server is called heron-7.” (you, 2026-03-04)" in text
    assert text.count(NOTICE) == 1
    assert "ctx auth set" in NOTICE
    assert "config.toml" in NOTICE
    assert "\n" not in NOTICE


def test_an_unknown_date_is_earlier_and_the_assistant_is_named() -> None:
    text = answer(_request(message("assistant", "The build server is called heron-7."), QUESTION))
    assert "“The build server is called heron-7.” (assistant, earlier)" in text


def test_its_own_answers_are_not_quoted_again() -> None:
    first = _request(FACT, QUESTION)
    own = message("assistant", answer(first))
    again = answer(_request(FACT, QUESTION, own, QUESTION))
    assert again.split("\n\n")[:2] == answer(first).split("\n\n")[:2]
    assert again.endswith(REMINDER), "how to configure a model is said once"
    third = answer(_request(FACT, QUESTION, own, QUESTION, message("assistant", again), QUESTION))
    assert third == again
    assert "heron-7" not in answer(_request(own, QUESTION))


def test_what_matches_nothing_is_noted() -> None:
    for request in (_request(FACT), _request(FACT, message("user", "I prefer green tea.")), _request()):
        text = answer(request)
        assert text.startswith("Noted. ")
        assert NOTICE in text


async def test_it_streams_in_pieces_and_ends_with_usage() -> None:
    request = _request(FACT, QUESTION)
    events = await _events(request)
    result = Answer()
    for event in events:
        for effect in Recall().normalise(event):
            result.apply(effect)
    assert [event.type for event in events[:-1]] == ["recall.delta"] * (len(events) - 1)
    assert events[-1].type == "recall.end"
    assert len(events) > 5
    assert result.text() == answer(request)
    assert result.outcome == Completed()
    assert result.usage["input_tokens"] == Recall().estimate(request)
    assert result.usage["output_tokens"] > 0
    assert events == await _events(request)


async def test_without_its_end_the_answer_is_not_complete() -> None:
    result = Answer()
    for event in (await _events(_request(FACT, QUESTION)))[:-1]:
        for effect in Recall().normalise(event):
            result.apply(effect)
    assert result.outcome is None


async def test_other_tasks_run_between_the_pieces() -> None:
    order: list[str] = []

    async def other() -> None:
        for _ in range(3):
            order.append("other")
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        async with aclosing(Recall().stream(_request(FACT, QUESTION), Endpoint("recall"))) as stream:
            async for _ in stream:
                order.append("piece")
    assert "other" in order[order.index("piece") : len(order) - order[::-1].index("piece")]


async def test_a_history_of_megabytes_is_searched_off_the_loop_and_bounded() -> None:
    heap = message("user", "lorem ipsum dolor sit amet. " * 200_000)
    events = await _events(_request(heap, FACT, QUESTION))
    assert "heron-7" in "".join(event.payload.get("text", "") for event in events)


def test_the_request_is_recorded_as_it_was_asked() -> None:
    assert Recall().body(_request(QUESTION)) == {
        "model": "recall",
        "system": "",
        "messages": [{"role": "user", "content": "What is the build server called?"}],
    }


def test_an_unknown_event_means_nothing() -> None:
    assert list(Recall().normalise(RawEvent("recall.later", {"text": 1}))) == []
    assert list(Recall().normalise(RawEvent("recall.delta", {}))) == []
