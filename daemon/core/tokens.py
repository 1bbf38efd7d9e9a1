"""How many tokens a text costs, estimated from its size: a third of its bytes, and four for each message's frame."""

from contextinfinity.protocol.blocks import Message

MESSAGE_OVERHEAD = 4


def estimate_text(text: str) -> int:
    return (len(text.encode()) + 2) // 3


def estimate_message(message: Message) -> int:
    return estimate_text(message.rendered_text) + MESSAGE_OVERHEAD
