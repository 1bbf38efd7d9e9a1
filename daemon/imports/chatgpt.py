"""ChatGPT's export: conversations as trees, of which the path to the current node is what was said in the end.

Answers and questions that were replaced, and what the service itself tells the model, are left out.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contextinfinity.daemon.imports.archive import archives, conversations
from contextinfinity.daemon.imports.base import Conversation, Damaged, Item, Record, Said, Skipped
from contextinfinity.daemon.imports.content import (
    arguments_of,
    derived_id,
    entries,
    last_use,
    mapping,
    moment,
    role_of,
    said,
    string,
)
from contextinfinity.daemon.imports.reading import flowing
from contextinfinity.protocol.blocks import Block, Image, Reasoning, Text, ToolResult, ToolUse, Unknown

AGENT = "chatgpt"
ASIDE = {
    "user_editable_context": "the user's standing instructions",
    "model_editable_context": "the model's memory",
    "reasoning_recap": "how long the model thought",
}


class ChatGPT:
    name = "chatgpt"
    description = "ChatGPT's data export, the .zip or its conversations.json"
    append_only = False

    def files(self, path: Path) -> list[Path]:
        return archives(path, "the .zip that ChatGPT exports, or the conversations.json in it")

    def read(self, path: Path, offset: int = 0) -> Iterator[Record]:
        return flowing(conversations(path, _conversation))


def _conversation(value: dict[str, Any], where: str) -> Iterator[Item]:
    nodes = {key: node for key, node in mapping(value.get("mapping")).items() if isinstance(node, dict)}
    if not isinstance(value.get("mapping"), dict):
        yield Damaged(where, "no messages in it: mapping is missing")
        return
    title, at = string(value.get("title")), moment(value.get("create_time"))
    key = string(value.get("conversation_id")) or string(value.get("id"))
    key = key or derived_id("chatgpt", "conversation", (Text(title or ""), Text(next(iter(nodes), ""))), at, 0)
    yield Conversation(key=key, title=title, created_at=at, agent=AGENT)
    path = _path(nodes, value.get("current_node"))
    on_path = set(path)
    for name, node in nodes.items():
        if node.get("message") is not None and name not in on_path:
            yield Skipped(f"{where}, node {name}", "not on the conversation's current path")
    use: str | None = None
    for name in path:
        message = nodes[name].get("message")
        if message is None:
            continue
        if not isinstance(message, dict):
            yield Damaged(f"{where}, node {name}", "not a JSON object")
            continue
        for item in _message(message, key, f"{where}, node {name}", name, use):
            use = (last_use(item.message.blocks) if isinstance(item, Said) else None) or use
            yield item


def _path(nodes: dict[str, dict[str, Any]], current: object) -> list[str]:
    """From the root to the current node; without one, to the last leaf."""
    if not isinstance(current, str) or current not in nodes:
        parents = {parent for node in nodes.values() if isinstance(parent := node.get("parent"), str)}
        current = next((name for name in reversed(nodes) if name not in parents), None)
    path: dict[str, None] = {}
    while isinstance(current, str) and current in nodes and current not in path:
        path[current] = None
        current = nodes[current].get("parent")
    return list(reversed(path))


def _message(message: dict[str, Any], key: str, where: str, node: str, use: str | None) -> Iterator[Item]:
    content, author = mapping(message.get("content")), mapping(message.get("author"))
    kind, speaks = content.get("content_type"), author.get("role")
    role = "assistant" if speaks == "tool" else role_of(speaks)
    hidden = mapping(message.get("metadata")).get("is_visually_hidden_from_conversation") is True
    why = ASIDE.get(kind) if isinstance(kind, str) else None
    if role is None or hidden or why:
        yield Skipped(where, why or "put in by the service")
        return
    external_id = string(message.get("id")) or node
    blocks = _blocks(content)
    recipient = string(message.get("recipient")) or "all"
    if speaks == "tool":
        failed = kind == "system_error"
        blocks = (ToolResult(use or external_id, blocks, failed),) if blocks else ()
    elif role == "assistant" and recipient != "all":
        blocks = _called(recipient, content, blocks, external_id)
    at = moment(message.get("create_time"))
    yield Said(conversation=key, message=said(role, blocks, external_id, at), continues=role == "assistant")


def _called(recipient: str, content: dict[str, Any], blocks: tuple[Block, ...], use: str) -> tuple[Block, ...]:
    """A message to a tool rather than to the user."""
    texts = [text] if (text := string(content.get("text"))) else [block.text for block in blocks if isinstance(block, Text)]
    given = arguments_of("".join(texts))
    language = string(content.get("language"))
    if isinstance(given, str) and language and language != "unknown":
        given = {"language": language, "code": given}
    return (ToolUse(use, recipient, given),) if given else blocks


def _blocks(content: dict[str, Any]) -> tuple[Block, ...]:
    text = string(content.get("text"))
    match content.get("content_type"):
        case "text" | "multimodal_text":
            parts = content.get("parts")
            return tuple(block for part in (parts if isinstance(parts, list) else [text]) for block in _part(part))
        case "code":
            language = string(content.get("language")) or ""
            fence = "" if language == "unknown" else language
            return (Text(f"```{fence}\n{text}\n```"),) if text else ()
        case "thoughts":
            thoughts = entries(content.get("thoughts"))
            told = [string(one.get("content")) or string(one.get("summary")) for one in thoughts]
            summary = "\n\n".join(one for one in told if one)
            return (Reasoning(summary=summary or None, raw=thoughts),) if thoughts else ()
        case "execution_output" | "system_error" | "tether_quote" | "tether_browsing_display":
            shown = text or string(content.get("result")) or string(content.get("summary"))
            return (Text(shown),) if shown else ()
    return (Unknown("openai", content),) if content else ()


def _part(part: object) -> tuple[Block, ...]:
    match part:
        case None | "":
            return ()
        case str(text) | {"content_type": "audio_transcription", "text": str(text)}:
            return (Text(text),) if text else ()
        case {"content_type": "image_asset_pointer"}:
            return (Image("image/*", part),)
    return (Unknown("openai", part),)
