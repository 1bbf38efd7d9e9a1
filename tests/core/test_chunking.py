"""Chunks by example, and what holds of them for any message."""

from hashlib import sha256
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contextinfinity.daemon.core import passages
from contextinfinity.daemon.core.chunking import LEAST_TOKENS, MOST_TOKENS, SUMMARY_CHARS, Slice, chunk, slices
from contextinfinity.daemon.core.content import searchable
from contextinfinity.daemon.core.tokens import estimate_text
from contextinfinity.protocol.blocks import Block, Message, Reasoning, Text, ToolResult, ToolUse, message


def user(*blocks: Block | str) -> Message:
    return message("user", [Text(block) if isinstance(block, str) else block for block in blocks])


def assistant(*blocks: Block | str) -> Message:
    return message("assistant", [Text(block) if isinstance(block, str) else block for block in blocks])


def texts(said: Message, overlap: int = 0) -> list[str]:
    return [searchable(said)[c.start : c.end] for c in chunk(said, overlap)]


def about(topic: str, sentences: int) -> str:
    return " ".join(f"The {topic} number {n} is of a {topic} kind." for n in range(sentences))


def function(name: str, lines: int) -> str:
    return f"# About {name}.\n@cached\ndef {name}(value: int) -> int:\n" + "".join(
        f"    value += {n}\n\n" for n in range(lines)
    )


# -- what becomes of short messages


@pytest.mark.parametrize(
    ("said", "kind", "summary"),
    [
        (user("I have two cats."), "user_context", "I have two cats."),
        (user("  So\r\n\tdo I.\n\n"), "user_context", "So do I."),
        (assistant("Paris is the capital of France."), "explanation", "Paris is the capital of France."),
        (user("Right, let's go with SQLite."), "decision", "Right, let's go with SQLite."),
        (assistant("Decision: two tables."), "decision", "Decision: two tables."),
        (user("What have we decided on?"), "user_context", "What have we decided on?"),
        (user("We haven't decided on it."), "user_context", "We haven't decided on it."),
        (assistant("```python\nprint(1)\n```"), "code", "```python print(1) ```"),
        (user("def f(x):\n    return x + 1"), "code", "def f(x): return x + 1"),
        (user("for (let i = 0; i < 9; i++) {}"), "code", "for (let i = 0; i < 9; i++) {}"),
        (user("我喜欢猫。你呢？"), "user_context", "我喜欢猫。你呢？"),  # noqa: RUF001
        (user("👩‍👩‍👧"), "other", "👩‍👩‍👧"),
        (user("???"), "other", "???"),
        (user("QUJD" * 100), "other", "QUJD" * 39 + "QUJ…"),
        (assistant(ToolUse("1", "ls", {"path": "/"})), "other", 'ls({"path":"/"})'),
        (assistant("I look.", ToolUse("1", "ls", {})), "explanation", "I look. ls({})"),
        (user(ToolResult("1", (Text("total 0"),))), "tool_result", "total 0"),
    ],
)
def test_a_short_message_is_one_chunk(said: Message, kind: str, summary: str) -> None:
    (only,) = chunk(said)
    assert (only.chunk_type, only.summary) == (kind, summary)
    assert searchable(said)[only.start : only.end] == searchable(said).strip("\r\n").rstrip()


@pytest.mark.parametrize(
    "said", [user(), user(""), user(" \r\n\t"), assistant(Reasoning(summary="hidden")), user(ToolResult("1"))]
)
def test_nothing_comes_of_a_blank_message(said: Message) -> None:
    assert chunk(said) == ()


def test_what_a_chunk_tells_of_itself() -> None:
    (only,) = chunk(user("\n\nschön\n\n"))
    assert only == Slice(2, 7, "user_context", "schön", 2, sha256("schön".encode()).digest(), ((2, 7),))


def test_a_message_of_just_800_tokens_is_whole_and_one_of_more_is_not() -> None:
    text = "# One\n\n" + about("whale", 100)
    assert len(chunk(assistant(text[:2400]))) == 1
    assert len(chunk(assistant(text[:2403]))) == 2


def test_tool_results_are_never_in_one_chunk_with_text() -> None:
    said = user("before", ToolResult("1", (Text("one"),)), ToolResult("2", (Text("two"),)), "after")
    assert texts(said) == ["before", "one\n\ntwo", "after"]
    assert [c.chunk_type for c in chunk(said)] == ["user_context", "tool_result", "user_context"]


def test_the_same_text_is_there_once_for_each_type() -> None:
    said = user("same", ToolResult("1", (Text("same"),)), "same")
    assert [(c.start, c.chunk_type) for c in chunk(said)] == [(0, "user_context"), (6, "tool_result")]


# -- where long ones break


def test_a_markdown_answer_breaks_before_its_headings_and_around_its_code() -> None:
    parts = [
        "# Whales\n\n" + about("whale", 20),
        "## Cats\n\n" + about("cat", 25),
        "```python\n" + function("purr", 60).rstrip() + "\n```",
        "Afterwards, " + about("dog", 20),
    ]
    said = assistant("\r\n\r\n".join(parts))
    assert texts(said) == parts
    assert [(c.chunk_type, c.summary) for c in chunk(said)] == [
        ("explanation", "Whales"),
        ("explanation", "Cats"),
        ("code", "def purr(value: int) -> int"),
        ("explanation", "Afterwards, The dog number 0 is of a dog kind."),
    ]


def test_a_new_topic_begins_a_chunk() -> None:
    whales, cats = ("Whales swim in cold oceans. " * 20).strip(), ("Kittens sleep on warm sofas. " * 20).strip()
    said = user("\n\n".join([whales, whales + " More.", cats, cats + " More.", cats + " And more."]))
    assert texts(said)[0].endswith("More.")
    assert "Kittens" not in texts(said)[0]


def test_a_heading_stays_with_what_it_heads() -> None:
    said = assistant("\n\n".join(f"## Part {n}\n\n{about('whale', 12 + n)}" for n in range(12)))
    assert all(text.startswith("## Part") and text.count("\n\n") % 2 == 1 for text in texts(said))


def test_a_pasted_file_breaks_before_its_outermost_definitions() -> None:
    said = user("import os\n\n" + "\n\n".join(function(f"f{n}", 30) for n in range(9)))
    got = chunk(said)
    assert {c.chunk_type for c in got} == {"code"}
    assert all(text.startswith("# About") for text in texts(said)[1:])
    assert [name for c in got for name in c.summary.split() if name.startswith("f0")] == ["f0,"]


def test_methods_are_cut_apart_only_in_a_class_that_is_too_large() -> None:
    method = "    def m{0}(self) -> None:\n" + "        self.x += 1\n" * 20
    said = assistant("```python\nclass A:\n" + "\n".join(method.format(n) for n in range(12)) + "```")
    assert all(text.startswith("    def m") for text in texts(said)[1:])
    assert texts(said)[-1].endswith("```")
    assert chunk(said)[0].summary.endswith(" lines of python: A, m0, m1, m2")


def test_a_pasted_log_breaks_at_its_lines() -> None:
    log = [f"2024-05-01 10:00:{n % 60:02} ERROR request {n} failed\n    at com.example.Main({n})" for n in range(200)]
    said = user("It says:\n\n" + "\n".join(log))
    assert {c.chunk_type for c in chunk(said)} == {"user_context"}
    assert all(text.startswith("2024") and text.endswith(")") for text in texts(said)[1:])


def test_a_long_result_is_summed_up_by_its_first_line_and_size() -> None:
    said = user(ToolResult("1", (Text("\n".join(f"src/file{n}.py:{n}: something is found here" for n in range(30))),)))
    assert [c.summary for c in chunk(said)] == ["src/file0.py:0: something is found here (30 lines)"]


def test_a_decision_is_summed_up_by_its_sentence() -> None:
    said = assistant(about("whale", 20) + " After all we will use a B-tree. " + about("cat", 5))
    assert [(c.chunk_type, c.summary) for c in chunk(said)] == [("decision", "After all we will use a B-tree.")]


def test_the_summary_of_prose_passes_over_greetings() -> None:
    said = assistant("Sure!\n\n**Whales** live in the cold ocean. " + about("cat", 10))
    assert [c.summary for c in chunk(said)] == ["**Whales** live in the cold ocean."]


def test_a_long_paragraph_breaks_at_its_sentences() -> None:
    for sentence in ("Whales swim far out in the ocean. ", "鲸鱼在海里游泳。", "Киты плавают в океане. "):
        got = texts(user(sentence * 400))
        assert len(got) > 1
        assert all(text.endswith(sentence.strip()) for text in got)


def test_the_overlap_goes_back_to_a_sentence_and_is_in_no_passage() -> None:
    said = user("".join(f"Whale {n} swims in the ocean. " for n in range(300)))
    plain, got = chunk(said), chunk(said, 50)
    assert all(a.end <= b.start for a, b in pairwise(plain))
    for before, after in pairwise(got):
        assert before.start < after.start < before.end
        assert estimate_text(searchable(said)[after.start : before.end]) <= 50
        assert searchable(said)[after.start :].startswith("Whale")
        assert after.passages[0][0] >= before.end
    assert all(c.token_est <= MOST_TOKENS for c in got)


@pytest.mark.parametrize("size", [3_000_000])
@pytest.mark.parametrize(
    "piece", ["x", "QUJD+/09", "!function(e){return e;}", "漢", "👩‍👩‍👧", "[*_`", "word ", "a\n", "e\u0301"]
)
def test_huge_texts_come_to_an_end(piece: str, size: int) -> None:
    said = user(piece * (size // 3 // len(piece)))
    assert all(c.token_est <= MOST_TOKENS for c in chunk(said))


# -- what holds of any

LINES = [
    "# Heading",
    "Some words about whales and the sea.",
    "We decided to use it.",
    "```python",
    "```",
    "~~~",
    "def f(x):",
    "    return x;",
    "class A {",
    "# comment",
    "2024-01-01 10:00:00 INFO started",
    "| a | b |",
    "- item",
    "漢字仮名交じり文。" * 30,
    "👩‍👩‍👧" * 50,
    "x" * 3000,
    about("cat", 70),
    "",
    "",
    " ",
    "\x1c\x85",
]
long_texts = st.lists(st.one_of(st.sampled_from(LINES), st.text(max_size=30)), max_size=60).flatmap(
    lambda lines: st.sampled_from(["\n", "\r\n", "\n\n", " "]).map(lambda end: end.join(lines))
)
blocks = st.one_of(
    st.builds(Text, st.one_of(st.text(), long_texts)),
    st.builds(lambda text: ToolResult("1", (Text(text),)), long_texts),
    st.builds(lambda text: ToolUse("1", "write", {"text": text}), long_texts),
)
messages = st.builds(message, st.sampled_from(["user", "assistant"]), st.lists(blocks, max_size=3))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(messages, st.sampled_from([0, 0, 50, 10_000]))
def test_any_message(said: Message, overlap: int) -> None:
    text = searchable(said)
    got = tuple(slices(said, overlap))
    start = end = 0
    for c in got:
        own = text[c.start : c.end]
        assert start <= c.start < c.end <= len(text)
        assert c.end > end
        assert not text[end : c.start].strip()
        assert own.strip()
        assert own == own.rstrip()
        assert own.split("\n")[0].strip()
        assert (c.token_est, c.content_hash) == (estimate_text(own), sha256(own.encode()).digest())
        assert c.token_est <= MOST_TOKENS
        assert 0 < len(c.summary) <= SUMMARY_CHARS
        assert "\n" not in c.summary
        assert c.passages == passages.cut(text, max(c.start, end), c.end)
        start, end = c.start, c.end
    assert not text[end:].strip()
    assert overlap or all(before.end <= after.start for before, after in pairwise(got))
    once = {(c.chunk_type, c.content_hash): c for c in reversed(got)}
    assert chunk(said, overlap) == tuple(c for c in got if once[c.chunk_type, c.content_hash] is c)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from([line for line in LINES if line.strip()]), max_size=60), st.sampled_from(["\n", "\n\n"]))
def test_only_the_last_chunk_of_a_text_may_be_small(lines: list[str], end: str) -> None:
    numbered = end.join(f"{line}{n}" if len(line) > 20 else line for n, line in enumerate(lines))
    got = chunk(user(numbered))
    assert all(c.token_est >= LEAST_TOKENS for c in got[:-1])
