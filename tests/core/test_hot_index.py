"""The hot index: it only grows, knows sittings and messages, and finds a term wherever it stands."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextinfinity.daemon.core import hot_index
from contextinfinity.daemon.core.hot_index import Column, HotIndex, Names, Passage, pack
from contextinfinity.daemon.core.words import END, terms

HOUR = 3600.0


def passage(n: int, text: str = "", **values: object) -> Passage:
    base: dict[str, object] = {
        "n": n, "chunk": n, "message": n, "session": "s", "branch": "b", "turn_seq": n, "at": 0.0,
        "speaker": "user", "asks": False, "chunk_type": "explanation", "terms": pack(text),
    }  # fmt: skip
    return Passage(**(base | values))  # type: ignore[arg-type]


def filled(*rows: Passage, width: int | None = None) -> HotIndex:
    index = HotIndex(width)
    index.append(rows)
    return index


def texts_with(index: HotIndex, word: str) -> list[int]:
    (number,) = terms(word).flow
    return sorted(set(index.numbers.values[index.documents(index.occurrences(number))].tolist()))


def test_what_is_packed_is_the_flow_its_end_and_the_wholes() -> None:
    found = terms("see daemon/core.py now")
    numbers = np.frombuffer(pack("see daemon/core.py now"), np.uint32).tolist()
    assert numbers == [*found.flow, END, *found.wholes]
    index = filled(passage(1, "see daemon/core.py now"), passage(2), passage(3, "heron"))
    assert index.terms_of(0) == [*found.flow, *found.wholes]
    assert index.terms_of(1) == []
    assert index.terms_of(2) == terms("heron").flow
    assert index.lengths.values.tolist() == [len(found.flow), 0, 1], "wholes do not make a text longer"


def test_sittings_end_after_three_hours_and_are_of_one_branch() -> None:
    index = filled(
        passage(1, at=0.0),
        passage(2, at=2.9 * HOUR),
        passage(3, at=2.9 * HOUR, branch="other"),
        passage(4, at=5.8 * HOUR),
        passage(5, at=8.9 * HOUR),
        passage(6, at=0.0),
        passage(7, at=3 * HOUR, branch="other"),
    )
    assert index.sittings.values.tolist() == [1, 1, 2, 1, 3, 4, 2]
    scope = index.everything()
    assert index.numbers.values[scope.members].tolist() == [1, 2, 4, 3, 7, 5, 6]
    assert scope.sitting.tolist() == [0, 0, 0, 1, 1, 2, 3]
    assert scope.sitting_starts.tolist() == [0, 3, 5, 6]


def test_the_length_of_a_message_is_that_of_all_its_passages() -> None:
    rows = [passage(1, "one two", message=1), passage(2, "three", message=1), passage(3, "four", message=2)]
    index = filled(*rows)
    assert index.message_lengths.values.tolist() == [3, 3, 1]
    assert index.everything().message_starts.tolist() == [0, 2]
    apart = filled(rows[0])
    apart.append(rows[1:2])
    apart.append(rows[2:])
    assert apart.message_lengths.values.tolist() == [3, 3, 1], "also if it came in two pieces"


@settings(deadline=None)
@given(st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=6), max_size=12), st.integers(0, 12), st.booleans())
def test_a_term_is_found_in_the_sorted_part_and_in_the_tail(found: list[list[str]], cut: int, sort: bool) -> None:
    words = ["heron", "egret", "stork", "ibis", "crane", "swift", "raven", "finch"]
    rows = [passage(n + 1, " ".join(words["abcdefgh".index(x)] for x in one)) for n, one in enumerate(found)]
    with pytest.MonkeyPatch.context() as patched:
        if sort:
            patched.setattr(hot_index, "MOST_TAIL", 0)
            patched.setattr(hot_index, "TAIL_SHARE", 0.3)
        index = HotIndex()
        for part in (rows[:cut], rows[cut:]):
            index.append(part)
            for letter, word in zip("abcdefgh", words, strict=True):
                expected = [n + 1 for n, one in enumerate(found[: len(index)]) if letter in one]
                assert texts_with(index, word) == expected
                (number,) = terms(word).flow
                assert len(index.occurrences(number)) == sum(one.count(letter) for one in found[: len(index)])


def test_the_largest_term_is_a_term_like_any_other() -> None:
    largest = 2**32 - 1
    index = filled(passage(1, terms=np.array([largest, END], np.uint32).tobytes()))
    assert len(index.occurrences(largest)) == 1
    assert len(index.occurrences(1)) == 0


@settings(deadline=None)
@given(st.integers(1, 40), st.data())
def test_a_scope_is_its_members_and_nothing_else(count: int, data: st.DataObject) -> None:
    rows = [passage(n + 1, branch="ab"[n % 2], message=n // 2) for n in range(count)]
    index = filled(*rows)
    chosen = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    scope = index.chosen(np.array(chosen))
    assert sorted(scope.members.tolist()) == [n for n in range(count) if chosen[n]]
    assert [int(scope.local[m]) for m in scope.members] == list(range(len(scope.members)))
    assert int((scope.local >= 0).sum()) == len(scope.members)
    sittings = index.sittings.values[scope.members].tolist()
    assert sittings == sorted(sittings)
    other = index.scope(np.flatnonzero(np.array(chosen)))
    assert other.members.tolist() == scope.members.tolist(), "few or many, the same order"


def test_everything_is_made_once_and_anew_after_it_has_grown() -> None:
    index = filled(passage(1))
    assert index.everything() is index.everything()
    assert index.chosen(np.array([True])) is index.everything()
    index.append([passage(2)])
    assert len(index.everything().members) == 2
    index.append([])
    assert index.newest == 2


def test_vectors_find_their_passages_whenever_they_come() -> None:
    index = filled(passage(3), passage(7), width=2)
    index.put_vectors([7], np.array([[0, 1]], np.float32))
    assert index.vectors is not None
    assert index.vectors.values.tolist() == [[0, 0], [0, 1]]
    assert index.has_vector.values.tolist() == [False, True]
    index.append([passage(9)])
    index.put_vectors([3, 9], np.array([[1, 0], [1, 0]], np.float32))
    assert index.vectors.values.tolist() == [[1, 0], [0, 1], [1, 0]]
    mean, drift, stretch = index.centre()
    assert mean.tolist() == pytest.approx([2 / 3, 1 / 3])
    assert drift.tolist() == pytest.approx([2 / 3, 1 / 3, 2 / 3])
    rest = index.vectors.values - mean
    assert np.linalg.norm(rest * stretch[:, None], axis=1) == pytest.approx([1, 1, 1])


def test_the_mean_is_taken_anew_once_the_store_has_grown_by_a_tenth() -> None:
    rows = [passage(n) for n in range(1, 121)]
    index = filled(*rows, width=2)
    index.put_vectors(list(range(1, 101)), np.tile(np.array([1, 0], np.float32), (100, 1)))
    first = index.centre()[0]
    for n in range(101, 111):
        index.put_vectors([n], np.array([[0, 1]], np.float32))
    kept, drift, _ = index.centre()
    assert kept is first
    assert drift[109] == 0.0, "but what came is placed along it"
    index.put_vectors([111], np.array([[0, 1]], np.float32))
    assert index.centre()[0].tolist() == pytest.approx([100 / 111, 11 / 111])


@pytest.mark.parametrize("width", [None, 3])
def test_a_column_grows_and_keeps_what_it_has(width: int | None) -> None:
    column = Column(np.int64, width)
    expected: list[object] = []
    for n in range(1, 60):
        new = np.full((n,) if width is None else (n, width), n)
        column.extend(new)
        expected += new.tolist()
    assert column.values.tolist() == expected


def test_names_have_numbers() -> None:
    names = Names()
    assert [names.add(x) for x in ("a", "b", "a")] == [0, 1, 0]
    assert (names.number("b"), names.number("c"), names.all) == (1, -1, ["a", "b"])
