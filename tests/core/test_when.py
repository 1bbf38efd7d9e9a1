"""Times as people write them: what counts as one, what must not, and where its days begin and end."""

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from math import isfinite
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextinfinity.daemon.core import when
from contextinfinity.daemon.core.when import FOREVER, Span, bound, day, mentions, posix, written, zone

NOW = datetime(2026, 11, 18, 20, 0, tzinfo=UTC)  # a Wednesday: 21:00 in Berlin, 15:00 in New York, Thursday 01:30 in Kolkata
BERLIN, NEW_YORK, KOLKATA = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York"), ZoneInfo("Asia/Kolkata")

SPANS = [  # a question, then its spans as Berlin reads its clocks: `first day` or `from/to`
    ("What happened on 8 May 2023?", "2023-05-08"),
    ("what happened on the 8th of May, 2023", "2023-05-08"),
    ("May 8th, 2023", "2023-05-08"),
    ("8 May, 2023", "2023-05-08"),
    ("the (May 8, 2023) meeting", "2023-05-08"),
    ("8-May-2023", "2023-05-08"),
    ("Sept. 5, 2022", "2022-09-05"),
    ("on Tuesday, May 8, 2018 we met", "2018-05-08"),
    ("Sat 8 May 2021", "2021-05-08"),
    ("on\n8\tMay\n2023", "2023-05-08"),
    ("2023-05-08", "2023-05-08"),
    ("2023/5/8.", "2023-05-08"),
    ("at 2023-05-08T23:30:00Z exactly", "2023-05-09"),
    ("at 2023-05-08 23:30", "2023-05-08"),
    ("5/8/2023", "2023-05-08", "2023-08-05"),
    ("25/12/2023", "2023-12-25"),
    ("12/25/23", "2023-12-25"),
    ("5/5/2023", "2023-05-05"),
    ("on may 8", "2026-05-08"),
    ("what broke may 8?", "2026-05-08"),
    ("December 24", "2025-12-24"),
    ("on 18 November", "2026-11-18"),
    ("on 19 November", "2025-11-19"),
    ("29 February", "2024-02-29"),
    ("8 May last year", "2025-05-08"),
    ("2023-05", "2023-05-01/2023-06-01"),
    ("in March 2024", "2024-03-01/2024-04-01"),
    ("in May", "2026-05-01/2026-06-01"),
    ("in may", "2026-05-01/2026-06-01"),
    ("in late December", "2025-12-01/2026-01-01"),
    ("the December meeting", "2025-12-01/2026-01-01"),
    ("the November notes", "2026-11-01/2026-12-01"),
    ("last November", "2025-11-01/2025-12-01"),
    ("in May last year", "2025-05-01/2025-06-01"),
    ("in 2022", "2022-01-01/2023-01-01"),
    ("during 2022, we", "2022-01-01/2023-01-01"),
    ("at the end of 2022", "2022-01-01/2023-01-01"),
    ("today", "2026-11-18"),
    ("yesterday's plan", "2026-11-17"),
    ("the fix following last week, in mid-May", "2026-11-09/2026-11-16", "2026-05-01/2026-06-01"),
    ("the day before yesterday", "2026-11-16"),
    ("What did we decide last Tuesday?", "2026-11-17"),
    ("on Monday", "2026-11-16"),
    ("on wednesday", "2026-11-18"),
    ("last Wednesday", "2026-11-11"),
    ("this Friday", "2026-11-20"),
    ("Tuesday last week", "2026-11-10"),
    ("on Mon", "2026-11-16"),
    ("a day ago", "2026-11-17"),
    ("a few days ago", "2026-11-13/2026-11-17"),
    ("a couple of days ago", "2026-11-15/2026-11-17"),
    ("two weeks ago", "2026-11-01/2026-11-08"),
    ("2 months ago", "2026-09-01/2026-10-01"),
    ("a year ago", "2025-01-01/2026-01-01"),
    ("two hours ago", "2026-11-18 18:30/2026-11-18 19:30"),
    ("last hour", "2026-11-18 20:00/2026-11-18 21:00"),
    ("in the last 3 days", "2026-11-15/2026-11-18 21:00"),
    ("over the past month", "2026-10-18/2026-11-18 21:00"),
    ("this week", "2026-11-16/2026-11-23"),
    ("last week", "2026-11-09/2026-11-16"),
    ("the week before last", "2026-11-02/2026-11-09"),
    ("last weekend", "2026-11-14/2026-11-16"),
    ("last month", "2026-10-01/2026-11-01"),
    ("LAST YEAR", "2025-01-01/2026-01-01"),
    ("earlier today", "2026-11-18/2026-11-18 21:00"),
    ("this morning", "2026-11-18/2026-11-18 12:00"),
    ("tonight", "2026-11-18 18:00/2026-11-19 06:00"),
    ("last night", "2026-11-17 18:00/2026-11-18 06:00"),
    ("yesterday evening", "2026-11-17 17:00/2026-11-18"),
    ("before 8 May 2023", "…/2023-05-08"),
    ("after May 2023", "2023-06-01/…"),
    ("since 2022", "2022-01-01/…"),
    ("until last Tuesday", "…/2026-11-18"),
    ("by the 8th of May", "…/2026-05-09"),
    ("before the week before last", "…/2026-11-02"),
    ("the week before last Tuesday", "…/2026-11-17"),
    ("between 3 May 2023 and 5 May 2023", "2023-05-03/2023-05-06"),
    ("between May 3 and May 5, 2023", "2023-05-03/2023-05-06"),
    ("between May and July", "2026-05-01/2026-08-01"),
    ("from November to January", "2025-11-01/2026-02-01"),
    ("from 2020 until 2022", "2020-01-01/2023-01-01"),
    ("between last week and yesterday", "2026-11-09/2026-11-18"),
    ("since March until the end of May", "2026-03-01/2026-06-01"),
    ("between today and last Monday", "2026-11-16/2026-11-19"),
    ("between 10/5/2023 and 2023-05-01", "2023-05-01/2023-10-06", "2023-05-01/2023-05-11"),
    ("from Thursday to Monday", "2026-11-12/2026-11-17"),
    ("from Monday to 0001-01-01", "0001-01-01/2026-11-17"),
    ("the mail from yesterday and today", "2026-11-17", "2026-11-18"),
    ("before March, and since June", "…/2026-03-01", "2026-06-01/…"),
    ("yesterday, yesterday", "2026-11-17"),
    ("on 31 December 9999", "9999-12-31"),
    ("1 May 2020, 2 May 2020, 3 May 2020, 4 May 2020, 5 May 2020", "2020-05-01", "2020-05-02", "2020-05-03", "2020-05-04"),
]

NO_TIMES = """May I ask|it may be|This may be wrong|this May be wrong|8 may fail|and may 8 people join|those in may have
march on|a second|the sun sat on it|mon ami|I sat there|Sun|Mondays|every Monday|next Tuesday|next week|3.11.2024|10.1.2.3
v3.2023-05-08|24/7|1/2|1/2/3|13/13/2023|docs/2024/05/06/x|2022 things|in 2000 words|up to 2000 rows|in 9000|in 2022.1|31 April
2023-02-30|2023-13|2023-05-081|when did April call|the last minute|past d|ago|last|week|between and|0 May|8may2023|12:30
""".replace("\n", "|").split("|")

BOUNDS = [
    ("2026-03-01", "2026-03-01", "2026-03-02"),
    ("2026-03", "2026-03-01", "2026-04-01"),
    (" march   2026 ", "2026-03-01", "2026-04-01"),
    ("may", "2026-05-01", "2026-06-01"),
    ("2024", "2024-01-01", "2025-01-01"),
    ("2030", "2030-01-01", "2031-01-01"),
    ("2024-02-29", "2024-02-29", "2024-03-01"),
    ("today", "2026-11-18", "2026-11-19"),
    ("Yesterday", "2026-11-17", "2026-11-18"),
    ("now", "2026-11-18 21:00", "2026-11-18 21:00"),
    ("Tuesday", "2026-11-17", "2026-11-18"),
    ("wed", "2026-11-18", "2026-11-19"),
    ("last Wednesday", "2026-11-11", "2026-11-12"),
    ("3 days ago", "2026-11-15", "2026-11-16"),
    ("2h ago", "2026-11-18 19:00", "2026-11-18 19:00"),
    ("90 min", "2026-11-18 19:30", "2026-11-18 19:30"),
    ("2 weeks", "2026-11-04", "2026-11-05"),
    ("a few days ago", "2026-11-13", "2026-11-17"),
    ("9 months ago", "2026-02-18", "2026-02-19"),
    ("last week", "2026-11-09", "2026-11-16"),
    ("last month", "2026-10-01", "2026-11-01"),
    ("this morning", "2026-11-18", "2026-11-18 12:00"),
    ("8 May 2023", "2023-05-08", "2023-05-09"),
    ("May 8, 2023", "2023-05-08", "2023-05-09"),
    ("the 8th of May", "2026-05-08", "2026-05-09"),
    ("may 8", "2026-05-08", "2026-05-09"),
    ("5/5/2023", "2023-05-05", "2023-05-06"),
    ("2026-03-01T10:00:00Z", "2026-03-01 11:00", "2026-03-01 11:00"),
    ("2026-03-01t10:00:00.5+02:00", "2026-03-01 09:00:00.5", "2026-03-01 09:00:00.5"),
    ("2026-03-01 10:00", "2026-03-01 10:00", "2026-03-01 10:00"),
]


def _at(text: str, tz: tzinfo = BERLIN) -> float:
    if text == "9999-12-31/":
        return _at("9999-12-31", tz) + 86400
    return datetime.fromisoformat(text.replace(":00.5", ":00.500000")).replace(tzinfo=tz).timestamp()


def _span(text: str, tz: tzinfo = BERLIN) -> Span:
    start, slash, end = text.partition("/")
    if not slash:
        last = datetime.fromisoformat(start)
        return Span(_at(start, tz), _at(f"{last + timedelta(days=1):%Y-%m-%d}" if last.year < 9999 else f"{start}/", tz))
    return Span(0.0 if start == "…" else _at(start, tz), FOREVER if end == "…" else _at(end, tz))


@pytest.mark.parametrize(("question", "spans"), [(first, rest) for first, *rest in SPANS])
def test_a_question_names_these_times(question: str, spans: list[str]) -> None:
    assert mentions(question, NOW, BERLIN) == tuple(_span(each) for each in spans)


@pytest.mark.parametrize("question", NO_TIMES)
def test_a_question_names_no_time(question: str) -> None:
    assert mentions(question, NOW, BERLIN) == ()


@pytest.mark.parametrize(("text", "start", "end"), BOUNDS)
def test_a_bound_is_where_its_day_month_or_year_begins_or_ends(text: str, start: str, end: str) -> None:
    assert bound(text, NOW, BERLIN, end=False) == _at(start)
    assert bound(text, NOW, BERLIN, end=True) == _at(end)


@pytest.mark.parametrize(
    "text",
    ["", "foo", "2026-02-30", "31 February", "9999 years ago", "2026-03-01T25:00", "May I", "a", "1 May " * 99, "\0\ud800"],
)
def test_a_bound_that_is_no_time_is_named_with_two_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"(?s)not a time: .*'2026-03-01' or '3 days ago'"):
        bound(text, NOW, BERLIN, end=False)


def test_a_bound_with_two_readings_names_both() -> None:
    with pytest.raises(ValueError, match="'2023-05-08' or as '2023-08-05'"):
        bound("5/8/2023", NOW, BERLIN, end=False)


@pytest.mark.parametrize(
    ("tz", "today", "tuesday"),
    [(BERLIN, "2026-11-18", "2026-11-17"), (NEW_YORK, "2026-11-18", "2026-11-17"), (KOLKATA, "2026-11-19", "2026-11-17")],
)
def test_a_day_is_the_one_of_the_place(tz: tzinfo, today: str, tuesday: str) -> None:
    assert mentions("today", NOW, tz) == (_span(today, tz),)
    assert mentions("last Tuesday", NOW, tz) == (_span(tuesday, tz),)


@pytest.mark.parametrize(
    ("tz", "on", "hours"),
    [
        (BERLIN, "2026-03-29", 23),
        (BERLIN, "2026-10-25", 25),
        (NEW_YORK, "2026-03-08", 23),
        (NEW_YORK, "2026-11-01", 25),
        (KOLKATA, "2026-03-29", 24),
        (ZoneInfo("America/Sao_Paulo"), "2018-11-04", 23),  # its midnight was skipped
        (ZoneInfo("America/Havana"), "2026-11-01", 25),
    ],
)
def test_a_day_lasts_from_midnight_to_midnight_when_clocks_change(tz: tzinfo, on: str, hours: int) -> None:
    (span,) = mentions(f"on {on}", NOW, tz)
    assert span.end - span.start == hours * 3600
    assert (bound(on, NOW, tz, end=False), bound(on, NOW, tz, end=True)) == (span.start, span.end)
    assert day(span.start, tz) == day(span.end - 1, tz) == on


def test_days_are_counted_on_the_calendar_across_a_change_of_clocks() -> None:
    monday = datetime(2026, 10, 26, 0, 30, tzinfo=BERLIN)
    assert mentions("yesterday", monday, BERLIN) == (_span("2026-10-25"),)
    assert mentions("last week", monday, BERLIN) == (_span("2026-10-19/2026-10-26"),)
    assert mentions("last weekend", monday, BERLIN) == (_span("2026-10-24/2026-10-26"),)
    assert mentions("an hour ago", monday, BERLIN)[0].start == monday.timestamp() - 5400


def test_the_last_day_of_a_shorter_month_stands_for_a_missing_one() -> None:
    leap = datetime(2024, 2, 29, 12, tzinfo=UTC)
    assert bound("a year ago", leap, UTC, end=False) == _at("2023-02-28", UTC)
    assert bound("1 month ago", leap.replace(month=3, day=31), UTC, end=False) == _at("2024-02-29", UTC)
    assert mentions("on 29 February", leap, UTC) == (_span("2024-02-29", UTC),)
    assert mentions("on 29 February", datetime(1904, 2, 28, tzinfo=UTC), UTC) == (_span("1896-02-29", UTC),)


@pytest.mark.parametrize("now", [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
@pytest.mark.parametrize("tz", [UTC, NEW_YORK, KOLKATA, timezone(timedelta(hours=23, minutes=59))])
def test_the_ends_of_the_calendar_are_no_failure(now: datetime, tz: tzinfo) -> None:
    for text in [first for first, *_ in SPANS] + [first for first, *_ in BOUNDS] + ["0001-01-01", "9999-12-31"]:
        mentions(text, now, tz)
        try:
            assert isfinite(bound(text, now, tz, end=True))
        except ValueError as error:
            assert "not a time" in str(error) or "can be read" in str(error)


def test_only_the_beginning_of_a_long_text_is_read() -> None:
    assert mentions("x" * 1990 + " today", NOW, UTC) == (_span("2026-11-18", UTC),)
    assert mentions("x " * 50_000 + "today", NOW, UTC) == ()


WORDS = sorted({word for first, *_ in SPANS for word in first.split()} | {"0001-01-01", "1/2", "9999", "-", "T10:00", "of"})
TEXTS = st.text() | st.lists(st.sampled_from(WORDS)).map(" ".join) | st.lists(st.sampled_from(WORDS)).map("".join)
MOMENTS = st.just(NOW) | st.datetimes(timezones=st.just(UTC))
ZONES = st.sampled_from([UTC, BERLIN, NEW_YORK, KOLKATA])


@given(TEXTS, MOMENTS, ZONES)
def test_any_question_gives_at_most_four_spans_that_begin_before_they_end(text: str, now: datetime, tz: tzinfo) -> None:
    spans = mentions(text, now, tz)
    assert len(spans) <= 4
    assert all(span.start < span.end for span in spans)


@given(TEXTS, MOMENTS, ZONES)
def test_any_bound_is_a_moment_or_a_value_error(text: str, now: datetime, tz: tzinfo) -> None:
    try:
        assert bound(text, now, tz, end=False) <= bound(text, now, tz, end=True)
    except ValueError as error:
        assert "not a time" in str(error) or "can be read" in str(error)


@given(st.dates(), ZONES)
def test_what_is_written_is_read_again(on: object, tz: tzinfo) -> None:
    start = _at(str(on), tz) + 43200
    assert day(start, tz) == str(on)
    for text in (written(start, tz) if int(str(on)[:4]) > 999 else str(on), str(on)):
        assert bound(text, NOW, tz, end=False) <= start < bound(text, NOW, tz, end=True)


@pytest.mark.parametrize(
    ("name", "hours"),
    [(None, 0), ("UTC", 0), ("z", 0), ("+02:00", 2), ("UTC+2", 2), ("-0530", -5.5), ("Asia/Kolkata", 5.5), ("Etc/GMT+5", -5)],
)
def test_a_zone_has_a_name_or_an_offset(name: str | None, hours: float) -> None:
    assert zone(name).utcoffset(NOW) == timedelta(hours=hours)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "../x",
        "/etc/passwd",
        "Europe/../x",
        "a\0b",
        "x" * 9999,
        "America",
        "zone.tab",
        "SECURITY",
        "+25:00",
        "\ud800",
        "Mars/X",
    ],
)
def test_a_zone_that_is_none_is_refused_with_the_fix(name: str) -> None:
    with pytest.raises(ValueError, match="write a name like 'Europe/Berlin', 'UTC' or an offset like"):
        zone(name)


@given(st.text())
def test_any_zone_is_one_or_a_value_error(name: str) -> None:
    try:
        assert zone(name).utcoffset(NOW) is not None
    except ValueError as error:
        assert "unknown time zone" in str(error)


def test_without_time_zone_data_the_fix_is_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(key: str) -> tzinfo:
        raise ZoneInfoNotFoundError(key)

    monkeypatch.setattr(when, "ZoneInfo", missing)
    with pytest.raises(ValueError, match="install tzdata"):
        zone("Europe/Berlin")
    assert zone("UTC") is UTC


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("1970-01-01T00:00:00Z", 0.0),
        ("2026-11-18T20:00:00.000Z", NOW.timestamp()),
        ("2026-11-18t21:00:00+01:00", NOW.timestamp()),
        ("0001-01-01T00:00:00+14:00", -62135596800.0 - 14 * 3600),
        ("2026-11-18T20:00:00", None),
        ("2026-11-18", None),
        ("20261118T200000Z", None),
        ("2026-02-30T20:00:00Z", None),
        ("2026-11-18T20:00:00+25:00", None),
        ("", None),
    ],
)
def test_a_timestamp_is_read_and_nothing_else(text: str, at: float | None) -> None:
    assert posix(text) == at


def test_dates_are_written_in_the_place_they_are_asked_for() -> None:
    assert written("2023-05-08T23:30:00Z") == "8 May 2023"
    assert written("2023-05-08T23:30:00Z", BERLIN) == "9 May 2023"
    assert (written(0.0), day(0.0), day(-1)) == ("1 January 1970", "1970-01-01", "1969-12-31")


@pytest.mark.parametrize("at", ["yesterday", float("nan"), FOREVER, 1e15, -1e15])
def test_a_moment_off_the_calendar_is_not_written(at: float | str) -> None:
    with pytest.raises(ValueError, match="no date can be written"):
        written(at)
