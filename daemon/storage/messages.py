"""Messages as documents: blocks and who said them when. The visible text is not stored twice, it is rendered on reading."""

import msgspec

from contextinfinity.protocol.blocks import Block, Message, Role, render


class _Stored(msgspec.Struct, frozen=True, omit_defaults=True):
    role: Role
    blocks: tuple[Block, ...]
    speaker: str | None = None
    created_at: str | None = None
    external_id: str | None = None


_decoder = msgspec.json.Decoder(_Stored)
_encoder = msgspec.json.Encoder()


def encode(message: Message) -> bytes:
    m = message
    return _encoder.encode(_Stored(m.role, m.blocks, m.speaker, m.created_at, m.external_id))


def decode(document: bytes) -> Message:
    m = _decoder.decode(document)
    return Message(m.role, m.blocks, render(m.blocks), m.speaker, m.created_at, m.external_id)
