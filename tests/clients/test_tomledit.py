"""One setting of a TOML file is changed, and nothing else: neither a value nor a byte of its layout."""

import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextinfinity.clients.cli.redaction import as_toml
from contextinfinity.clients.cli.tomledit import NotEditable, quoted, same, with_text

TABLE = {
    "nothing yet": ("", '[retrieval]\nembedder = "X"\n'),
    "only a comment": ("# mine", '# mine\n\n[retrieval]\nembedder = "X"\n'),
    "other sections": ("[general]\na = 1\n", '[general]\na = 1\n\n[retrieval]\nembedder = "X"\n'),
    "from Windows": ("[general]\r\na = 1\r\n", '[general]\r\na = 1\r\n\r\n[retrieval]\r\nembedder = "X"\r\n'),
    "the value alone": ('[retrieval]\nembedder = "local" # why\nk = 1\n', '[retrieval]\nembedder = "X" # why\nk = 1\n'),
    "without a line end": ("[retrieval]\nembedder='a'", '[retrieval]\nembedder="X"'),
    "layout": ("  [ retrieval ]\n\tembedder\t=\t'''a\nb'''\t# c\n", '  [ retrieval ]\n\tembedder\t=\t"X"\t# c\n'),
    "quoted names": ("['retrieval']\n\"embed\\u0064er\" = 'a'\n", "['retrieval']\n\"embed\\u0064er\" = \"X\"\n"),
    "an empty section": ("[retrieval]\n[other]\n", '[retrieval]\nembedder = "X"\n[other]\n'),
    "a section with others in it": (
        "[retrieval] # mine\r\nscope = 's'\r\n",
        '[retrieval] # mine\r\nembedder = "X"\r\nscope = \'s\'\r\n',
    ),
    "a header at the end": ("[retrieval]", '[retrieval]\nembedder = "X"\n'),
    "a header and a comment at the end": ("a = 1\r\n[retrieval] # end", 'a = 1\r\n[retrieval] # end\r\nembedder = "X"\r\n'),
    "a dotted key": ("retrieval.embedder = 'a'\n[x]\n", 'retrieval.embedder = "X"\n[x]\n'),
    "beside dotted keys": ("retrieval . k = 1\nz = 2\n[x]\n", 'retrieval . k = 1\nretrieval.embedder = "X"\nz = 2\n[x]\n'),
    "in braces": (
        "retrieval = { k = [1, {a = 2}], embedder = 'a' } # c\n",
        'retrieval = { k = [1, {a = 2}], embedder = "X" } # c\n',
    ),
    "in braces beside others": ("retrieval = {k = 1, 'l' = {}}\n", "retrieval = {embedder = \"X\", k = 1, 'l' = {}}\n"),
    "in empty braces": ("retrieval = {}\n", 'retrieval = { embedder = "X" }\n'),
    "of another type": ("[retrieval]\nembedder = 1979-05-27 07:32:00 # c\n", '[retrieval]\nembedder = "X" # c\n'),
    "a list over lines": ("[retrieval]\nembedder = [ # ]\n 'a', # [\n]\nk = 1\n", '[retrieval]\nembedder = "X"\nk = 1\n'),
    "a table below it": ("[retrieval.more]\na = 1\n", '[retrieval.more]\na = 1\n\n[retrieval]\nembedder = "X"\n'),
    "only in a comment": (
        "# [retrieval]\n# embedder = 'a'\n",
        "# [retrieval]\n# embedder = 'a'\n\n[retrieval]\nembedder = \"X\"\n",
    ),
    "only in a text": (
        'a = """\n[retrieval]\nembedder = "a"\n"""\n[retrieval]\n',
        'a = """\n[retrieval]\nembedder = "a"\n"""\n[retrieval]\nembedder = "X"\n',
    ),
    "of another section": (
        "[embedders.mine]\nembedder = 'a'\n[a.retrieval]\nembedder = 'b'\n[[list]]\nretrieval.embedder = 'c'\n",
        "[embedders.mine]\nembedder = 'a'\n[a.retrieval]\nembedder = 'b'\n[[list]]\nretrieval.embedder = 'c'\n\n"
        '[retrieval]\nembedder = "X"\n',
    ),
    "quotes at the end of a text": (
        "a = '''b'''''\nb = \"\"\"\"\"\\\"\"\"\"\"\"\n[retrieval]\n",
        "a = '''b'''''\nb = \"\"\"\"\"\\\"\"\"\"\"\"\n[retrieval]\nembedder = \"X\"\n",
    ),
    "not a number": ("a = [nan, -inf]\n", 'a = [nan, -inf]\n\n[retrieval]\nembedder = "X"\n'),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after"), TABLE.values(), ids=TABLE.keys())
def test_the_edit_is_as_small_as_can_be(before: str, after: str) -> None:
    assert with_text(before, "retrieval", "embedder", "X") == after
    assert with_text(after, "retrieval", "embedder", "X") == after, "a second time there is nothing to do"


@pytest.mark.parametrize(
    "document",
    [
        "[[retrieval]]\nembedder = 'a'\n",
        "[[retrieval]]\n",
        "retrieval = 3\n",
        "retrieval = [1]\n",
        "retrieval = '{}'\n",
        "[retrieval]\nembedder.model = 'a'\n",
        "[retrieval.embedder]\nmodel = 'a'\n",
    ],
)
def test_what_has_no_place_for_it_is_refused(document: str) -> None:
    with pytest.raises(NotEditable):
        with_text(document, "retrieval", "embedder", "X")


@pytest.mark.parametrize("document", ["[retrieval\n", "a = 1\na = 2\n", "\ufeffa = 1\n", "[retrieval]\nembedder = local\n"])
def test_what_is_not_toml_is_not_touched(document: str) -> None:
    with pytest.raises(tomllib.TOMLDecodeError):
        with_text(document, "retrieval", "embedder", "X")


@pytest.mark.parametrize("name", ['a"b', "a\\b", "\x7f\x00\n", "ä✓", ""])
def test_any_name_is_written_so_that_it_is_read_again(name: str) -> None:
    assert tomllib.loads(f"a = {quoted(name)}") == {"a": name}
    assert tomllib.loads(with_text("", "retrieval", "embedder", name)) == {"retrieval": {"embedder": name}}


def test_equal_means_equal_in_type() -> None:
    nan = float("nan")
    assert same({"a": [nan, 1]}, {"a": [nan, 1]})
    assert not same(1, True)
    assert not same([1], [1.0])
    assert not same([1], [1, 2])
    assert not same({"a": 1}, {"b": 1})


# A document that nobody laid out by hand: comments, blanks and line ends anywhere, tables in any order.

words = st.text("abc-_ .[]{}#='\"\\é\n", max_size=6)
keys = st.sampled_from(["a", "b", "embedder", "retrieval", "scope", "-", "1"])
scalars = st.one_of(
    words.map(quoted),
    words.filter(lambda w: "'" not in w and "\n" not in w).map(lambda w: f"'{w}'"),
    words.filter(lambda w: "'" not in w).map(lambda w: f"'''{w}'''"),
    words.filter(lambda w: "\\" not in w and '"' not in w).map(lambda w: f'"""{w}"""'),
    st.integers(-9, 9).map(str),
    st.sampled_from(
        ["true", "1.5e3", "nan", "-inf", "1979-05-27", "1979-05-27 07:32:00Z", "07:32:00", "0x_".replace("_", "1f")]
    ),
)
blanks = st.sampled_from(["", " ", "\t", "  "])
comments = st.one_of(st.just(""), st.text("ab[]='\"#{} ", max_size=8).map(lambda w: f"#{w}"))


def lists(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    gaps = st.sampled_from(["", " ", "\n", " # ]\n", "\r\n\t"])
    return st.builds(lambda items, gap: f"[{gap}{f'{gap},{gap}'.join(items)}{gap}]", st.lists(inner, max_size=3), gaps)


def inlines(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(
        lambda items, gap: f"{{{gap}{f'{gap},{gap}'.join(f'{k}{gap}={gap}{v}' for k, v in items.items())}{gap}}}",
        st.dictionaries(keys, inner, max_size=3),
        blanks,
    )


values = st.recursive(scalars, lambda inner: lists(inner) | inlines(inner), max_leaves=6)
names = st.one_of(keys, keys.map(lambda k: f'"{k}"'), keys.map(lambda k: f"'{k}'"))
paths = st.builds(lambda parts, gap: f"{gap}.{gap}".join(parts), st.lists(names, min_size=1, max_size=3), blanks)
pairs = st.builds(lambda k, v, gap, c: f"{gap}{k}{gap}={gap}{v}{gap}{c}", paths, values, blanks, comments)
headers = st.builds(lambda k, gap, c: f"{gap}[{gap}{k}{gap}]{gap}{c}", paths, blanks, comments)
arrays = st.builds(lambda k, gap, c: f"{gap}[[{gap}{k}{gap}]]{gap}{c}", paths, blanks, comments)
rows = st.one_of(pairs, headers, arrays, comments)
documents = st.builds(
    lambda rows, newline, end: newline.join(rows) + (newline if end else ""),
    st.lists(rows, max_size=8),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)


def is_toml(document: str) -> bool:
    try:
        tomllib.loads(document)
    except tomllib.TOMLDecodeError:
        return False
    return True


@settings(deadline=None, max_examples=400)
@given(documents.filter(is_toml), words)
def test_of_any_document_everything_else_stays_byte_for_byte(document: str, name: str) -> None:
    before = tomllib.loads(document)
    try:
        changed = with_text(document, "retrieval", "embedder", name)
    except NotEditable:
        table = before.get("retrieval", {})
        there = table.get("embedder") if isinstance(table, dict) else {}
        assert isinstance(there, dict | list), "only where tables are in its place"
        return
    table: Any = before.get("retrieval", {})
    assert same(tomllib.loads(changed), before | {"retrieval": table | {"embedder": name}})
    _assert_one_stretch_differs(document, changed)
    assert with_text(changed, "retrieval", "embedder", name) == changed


def _assert_one_stretch_differs(before: str, after: str) -> None:
    """What is left of and right of the edit is the same, and what the edit took away was at most the old value."""
    head = next((n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after)))
    rest = min(len(before), len(after)) - head
    pairs = zip(reversed(before), reversed(after), strict=False)
    tail = next((n for n, (a, b) in enumerate(pairs) if a != b), rest)
    gone = before[head : len(before) - min(tail, rest)]
    if gone:
        value: Any = tomllib.loads(before).get("retrieval", {}).get("embedder")
        assert value is not None, "nothing is taken away where there was no value"
        assert "retrieval" not in gone or "retrieval" in str(value)


sections = st.dictionaries(keys, st.dictionaries(keys, st.text(max_size=5) | st.integers(), max_size=3), max_size=4)


@settings(deadline=None)
@given(sections.filter(lambda tree: not isinstance(tree.get("retrieval", {}).get("embedder"), dict)))
def test_of_a_plain_file_of_settings_everything_else_stays(tree: dict[str, Any]) -> None:
    changed = with_text(as_toml(tree), "retrieval", "embedder", "X")
    assert tomllib.loads(changed) == tree | {"retrieval": tree.get("retrieval", {}) | {"embedder": "X"}}
