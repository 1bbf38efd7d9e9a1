"""Which earlier sentences answer a question."""

from hypothesis import given
from hypothesis import strategies as st

from contextinfinity.daemon.core.quoting import QUOTE_CHARS, Quote, Source, best_quotes, sentences, words


def _user(text: str, date: str | None = None) -> Source:
    return Source(text, True, date)


def _texts(question: str, *sources: Source) -> list[str]:
    return [quote.text for quote in best_quotes(question, sources)]


def test_words_lose_case_plural_and_filler() -> None:
    assert words("What ARE the Servers' classes?") == ["server", "classe"]
    assert words("It's glass: bus 7") == ["glass", "bus", "7"]
    assert words("服务器 heron-7") == ["服", "务", "器", "heron", "7"]


def test_sentences_end_at_stops_and_lines_and_lose_list_marks() -> None:
    assert sentences("One v1.2 here. Two!\n- three\n\n2. four") == ["One v1.2 here.", "Two!", "three", "four"]


def test_the_sentence_that_shares_the_rare_words_wins() -> None:
    history = [
        _user("We like tea. The build server is called heron-7. The server room is cold.", "2026-01-02"),
        _user("The build was green and the build was fast."),
    ]
    best = best_quotes("What is the build server called?", history)
    assert best[0] == Quote("The build server is called heron-7.", history[0])
    assert all("tea" not in quote.text for quote in best)


def test_rare_words_count_more_than_common_ones() -> None:
    history = [_user("We keep a gecko.")] + [_user(f"The server number {n} is loud.") for n in range(9)]
    assert _texts("Which server has the gecko?", *history)[0] == "We keep a gecko."


def test_the_user_is_quoted_before_the_assistant() -> None:
    history = [_user("The port is 8080."), Source("The port is 9090.", False)]
    assert _texts("Which port?", *history) == ["The port is 8080.", "The port is 9090."]


def test_newer_comes_before_older_and_nothing_twice() -> None:
    history = [_user("The port is 1."), _user("The port is 2."), _user("the port is 1.")]
    assert _texts("Which port?", *history) == ["the port is 1.", "The port is 2."]


def test_questions_and_chance_words_are_not_quoted() -> None:
    assert _texts("What is the port?", _user("What is the port?")) == []
    long = "Yesterday a long walk through gardens, museums and markets ended at the port"
    assert _texts(long, _user("The port is 8080.")) == []
    assert _texts("", _user("The port is 8080.")) == []
    assert _texts("Which port?") == []


def test_at_most_three_short_quotes() -> None:
    filler = "lorem " * 100
    history = [_user(f"{filler} port {n} {filler}") for n in range(9)]
    found = _texts("Which port?", *history)
    assert len(found) == 3
    assert all("port" in text and len(text) <= QUOTE_CHARS + 2 for text in found)


@given(st.text(), st.lists(st.text(), max_size=5))
def test_any_text_is_survived_and_quoted_truly(question: str, texts: list[str]) -> None:
    history = [_user(text) for text in texts]
    found = _texts(question, *history)
    assert found == _texts(question, *history)
    assert all(any(quote.strip("…") in text for text in texts) for quote in found)
