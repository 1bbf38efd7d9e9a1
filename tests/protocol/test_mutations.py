"""A hundred thousand spoilt frames through the codec and the decoder: an answer for each, no exception, no memory kept."""

import gc
import json
import random
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import pytest

from contextinfinity.protocol import jsonrpc
from contextinfinity.protocol.codec import BrokenFraming, FrameReader, Framing, Oversized, frame
from tests.protocol.mutations import documents, spoilt

COUNT = 50_000
WARM_UP = 10_000
LIMIT = 4096


def answers(found: bytes | Oversized) -> Iterator[str]:
    """What the daemon would make of a frame, by name; a refusal has to be JSON that can be sent."""
    if isinstance(found, Oversized):
        yield "oversized"
        return
    for item in jsonrpc.decode(found).items:
        if isinstance(item, jsonrpc.Request):
            item.id.decode()
            yield "request"
        else:
            document = jsonrpc.failure(item.id, item.fault.to_error())
            assert json.loads(document)["error"]["code"] == item.fault.code
            yield item.fault.word


class Peer:
    """A connection after another, each as long as its framing can be followed."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self._reader = FrameReader(LIMIT)

    def feed(self, data: bytes) -> None:
        try:
            for found in self._reader.feed(data):
                self.seen.update(answers(found))
        except BrokenFraming:
            self.seen["broken framing"] += 1
            self._reader = FrameReader(LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize("framing", Framing)
def test_spoilt_frames_are_answered_and_forgotten(framing: Framing) -> None:
    peer, supply = Peer(), spoilt(random.Random(f"spoilt {framing.value}"), framing)
    for data in islice(supply, WARM_UP):
        peer.feed(data)
    gc.collect()
    tracemalloc.start()
    try:
        for data in islice(supply, COUNT - WARM_UP):
            peer.feed(data)
        del data
        gc.collect()
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 64 * 1024, "memory grows with what was thrown away"
    assert peak < 4 * 1024 * 1024
    assert {"request", "parse_error", "invalid_request", "oversized"} <= peer.seen.keys(), "the mutations are too tame"
    assert sum(peer.seen.values()) > COUNT / 2


@pytest.mark.parametrize("framing", Framing)
def test_the_frames_before_they_are_spoilt_are_valid(framing: Framing) -> None:
    peer = Peer()
    for document in documents():
        peer.feed(frame(framing, document))
    assert peer.seen.keys() == {"request"}
