"""Dates and times as people write them: the bounds of a search, and the spans that a question names.

Pure: the present is an argument; a day runs from local midnight to local midnight, so it may last 23 or 25 hours.
"""

import re
from calendar import monthrange
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import msgspec

LOOKED_AT, MOST_SPANS = 2000, 4
FOREVER = float("inf")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAMES = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
MONTHS = [name[:3].lower() for name in NAMES]
WEEKDAYS = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
HOURS = {"morning": (0, 12), "afternoon": (12, 18), "evening": (17, 24), "night": (18, 30)}
SECONDS = {"minute": 60.0, "hour": 3600.0}
UNITS = {"h": "hour", "d": "day", "w": "week", "y": "year", "mo": "month"}
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
AMOUNTS = {word: (n, n) for n, word in enumerate(NUMBERS, 1)}
AMOUNTS |= {"a": (1, 1), "an": (1, 1), "couple": (2, 3), "few": (2, 5), "several": (3, 7)}

ASKED = "asked"  # stands for the preposition where the whole text is known to be a time
DURING = {ASKED, "in", "during", "throughout", "since", "until", "till"}
AROUND = DURING | {"before", "prior to", "after", "from", "between", "part"}  # "part": the end of, early
VERBS = {"may", "march", "mar", "MAY", "MARCH", "MAR"}  # as they are spelled where they may be no month


class Span(msgspec.Struct, frozen=True):
    """From `start` up to but not including `end`, in POSIX seconds."""

    start: float
    end: float


Reader = Callable[[re.Match[str], datetime, str], list[Span]]  # a match, the local present, the preposition before it


def zone(tz: str | None) -> tzinfo:
    name = "UTC" if tz is None else tz
    if name.upper() in ("UTC", "GMT", "Z"):
        return UTC
    if (m := _OFFSET.fullmatch(name)) and int(m[2]) < 24:
        ahead = timedelta(hours=int(m[2]), minutes=int(m[3] or 0))
        return timezone(-ahead if m[1] == "-" else ahead)
    try:
        if len(name) <= 64 and _ZONE.fullmatch(name):
            return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # no such zone; a file that is none; a directory
        pass
    raise ValueError(
        f"unknown time zone {name[:64]!r}: write a name like 'Europe/Berlin', 'UTC' or an offset like '+02:00' "
        "(if the name is right, this machine has no time zone data: install tzdata)"
    )


def posix(created_at: str) -> float | None:
    """The moment an RFC 3339 timestamp names; None for any other text."""
    if not _RFC3339.fullmatch(created_at):
        return None
    try:
        return datetime.fromisoformat(created_at.upper()).timestamp()
    except ValueError:
        return None


def written(at: float | str, tz: tzinfo = UTC) -> str:
    """`8 May 2023`, whatever the locale."""
    on = _date_of(at, tz)
    return f"{on.day} {NAMES[on.month - 1]} {on.year}"


def day(at: float | str, tz: tzinfo = UTC) -> str:
    """`2023-05-08`."""
    return _date_of(at, tz).isoformat()


def bound(text: str, now: datetime, tz: tzinfo, *, end: bool) -> float:
    """Where a search begins or, with `end`, where it ends: a day, a month or a year counts whole."""
    words = " ".join(text.split()).removeprefix("the ") if len(text) <= 200 else ""
    try:
        spans = _asked(words, now.astimezone(tz))
    except (ValueError, OverflowError):  # 31 February; a year beyond the calendar
        spans = []
    if len(spans) == 1:
        return spans[0].end if end else spans[0].start
    if spans:
        raise ValueError(f"{words!r} can be read as {' or as '.join(f'{day(span.start, tz)!r}' for span in spans)}: write one")
    raise ValueError(f"not a time: {text[:60]!r}; write it like '2026-03-01' or '3 days ago'")


def mentions(question: str, now: datetime, tz: tzinfo) -> tuple[Span, ...]:
    """The times a question speaks of, in its order; whatever is in doubt counts as no time."""
    try:
        local = now.astimezone(tz)
    except (ValueError, OverflowError):
        return ()
    text = _AHEAD.sub("·", " ".join(question[:LOOKED_AT].split()))
    found = [(m.start(), rank, m) for rank, (pattern, _) in enumerate(_PHRASES) for m in pattern.finditer(text)]
    groups: list[list[Span]] = []
    begun: tuple[Reader, re.Match[str], str] | None = None  # the phrase just read, if a range may begin with it
    until = 0
    for at, rank, m in sorted(found, key=lambda one: one[:2]):
        if at < until:
            continue
        read = _PHRASES[rank][1]
        if begun and (link := _JOIN.fullmatch(text, until, at)) and (link[1].lower() != "and" or begun[2] == "between"):
            if last := _readings(read, m, local, begun[2]):
                groups[-1] = _ranges(begun, last, local)
                begun, until = None, m.end()
            continue
        lead = _lead(text, at)
        if spans := _readings(read, m, local, lead):
            groups.append([_opened(span, lead) for span in spans])
            begun, until = (read, m, lead) if lead in ("between", "from", "since") else None, m.end()
    return tuple(dict.fromkeys(span for spans in groups for span in spans if span.start < span.end))[:MOST_SPANS]


def _asked(words: str, now: datetime) -> list[Span]:
    if words.lower() == "now":
        return [Span(now.timestamp(), now.timestamp())]
    if _CLOCK.fullmatch(words):
        moment = datetime.fromisoformat(words.upper())
        at = (moment if moment.tzinfo else moment.replace(tzinfo=now.tzinfo)).timestamp()
        return [Span(at, at)]
    if m := _LENGTH.fullmatch(words):
        fewest, most, unit = _length(m)
        if unit in SECONDS:
            return [Span(now.timestamp() - most * SECONDS[unit], now.timestamp() - fewest * SECONDS[unit])]
        return [_days(now, _back(now.date(), unit, most), _back(now.date(), unit, fewest))]
    for pattern, read in _PHRASES:
        if (m := pattern.fullmatch(words)) and (spans := read(m, now, ASKED)):
            return list(dict.fromkeys(spans))
    return []


def _readings(read: Reader, m: re.Match[str], now: datetime, lead: str) -> list[Span]:
    try:
        return read(m, now, lead)
    except (ValueError, OverflowError):
        return []


def _ranges(begun: tuple[Reader, re.Match[str], str], last: list[Span], now: datetime) -> list[Span]:
    """From the first phrase to the last; a first one without a year is the one before the last."""
    read, m, lead = begun
    firsts = _readings(read, m, now, lead)
    if read in (_date, _month, _weekday) and all(a.start >= b.end for a in firsts for b in last):
        with suppress(OverflowError):  # the first day of the calendar, east of Greenwich
            firsts = _readings(read, m, _moment(last[0].start, now.tzinfo), lead)
    pairs = [(a, b) for a in firsts for b in last]
    return [Span(a.start, b.end) for a, b in pairs if a.start < b.end] or [Span(b.start, a.end) for a, b in pairs]


def _lead(text: str, at: int) -> str:
    """The preposition before a phrase; `part` for "early", "the end of" and such without one."""
    m = _LEAD.search(text, max(0, at - 40), at)
    return (m["lead"] or (m["part"] and "part") or "").lower() if m else ""


def _opened(span: Span, lead: str) -> Span:
    match lead:
        case "before" | "prior to":
            return Span(0.0, span.start)
        case "until" | "till" | "by" | "up to":
            return Span(0.0, span.end)
        case "after":
            return Span(span.end, FOREVER)
        case "since":
            return Span(span.start, FOREVER)
    return span


def _moment(at: float, tz: tzinfo | None) -> datetime:
    return (EPOCH + timedelta(seconds=at)).astimezone(tz)


def _date_of(at: float | str, tz: tzinfo) -> date:
    seconds = posix(at) if isinstance(at, str) else at
    try:
        if seconds is not None:
            return _moment(seconds, tz).date()
    except (ValueError, OverflowError):  # not a number; beyond the calendar
        pass
    raise ValueError(f"no date can be written for {at!r}")


def _midnight(now: datetime, on: date, hour: int = 0) -> float:
    if hour >= 24:
        return _midnight(now, on, 23) + 3600.0 if on == date.max else _midnight(now, on + timedelta(days=1), hour - 24)
    return datetime.combine(on, time(hour), now.tzinfo).timestamp()


def _days(now: datetime, first: date, last: date) -> Span:
    return Span(_midnight(now, first), _midnight(now, last, 24))


def _back(on: date, unit: str, count: int) -> date:
    if unit in ("day", "week", "weekend"):
        return on - timedelta(days=count if unit == "day" else 7 * count)
    year, month = divmod(on.year * 12 + on.month - 1 - count * (12 if unit == "year" else 1), 12)
    return date(year, month + 1, min(on.day, monthrange(year, month + 1)[1]))


def _calendar(now: datetime, on: date, unit: str) -> Span:
    """The whole day, week, weekend, month or year that has the date in it."""
    monday = on - timedelta(days=on.weekday())
    match unit:
        case "week" | "weekend":
            return _days(now, monday + timedelta(days=5 if unit == "weekend" else 0), monday + timedelta(days=6))
        case "month":
            return _days(now, on.replace(day=1), on.replace(day=monthrange(on.year, on.month)[1]))
        case "year":
            return _days(now, date(on.year, 1, 1), date(on.year, 12, 31))
    return _days(now, on, on)


def _length(m: re.Match[str]) -> tuple[int, int, str]:
    """How many at least, how many at most, of which unit."""
    word, unit = (m["n"] or "a").lower(), m["unit"].lower()
    fewest, most = (int(word), int(word)) if word.isdigit() else AMOUNTS[word.removeprefix("a ").removesuffix(" of")]
    return fewest, most, UNITS.get(unit[:2]) or UNITS.get(unit[0]) or "minute"


def _year(m: re.Match[str], now: datetime) -> int | None:
    word = (m["y"] or "").lower()
    return int(word) if word.isdigit() else {"": None, "last year": now.year - 1, "this year": now.year}[word]


def _month_of(m: re.Match[str]) -> int:
    return MONTHS.index(m["m"][:3].lower()) + 1


def _stamp(m: re.Match[str], now: datetime, lead: str) -> list[Span]:
    return [_calendar(now, _date_of(m[0], now.tzinfo or UTC), "day")]


def _iso_day(m: re.Match[str], now: datetime, lead: str) -> list[Span]:
    return [_calendar(now, date(int(m[1]), int(m[3]), int(m[4])), "day")]


def _iso_month(m: re.Match[str], now: datetime, lead: str) -> list[Span]:
    return [_calendar(now, date(int(m[1]), int(m[2]), 1), "month")]


def _slashed(m: re.Match[str], now: datetime, lead: str) -> list[Span]:
    """Month first or day first: both, where both are dates."""
    a, b, year = int(m[1]), int(m[2]), int(m[3]) + (2000 if len(m[3]) == 2 else 0)
    if len(m[3]) == 2 and year > now.year:
        return []
    return [_calendar(now, date(year, month, on), "day") for month, on in ((a, b), (b, a)) if _exists(year, month, on)]


def _exists(year: int, month: int, on: int) -> bool:
    return 1 <= month <= 12 and 1 <= on <= monthrange(year, month)[1]


def _date(m: re.Match[str], now: datetime, lead: str) -> list[Span]:
    year, month, on = _year(m, now), _month_of(m), int(m["d"])
    closed = m.string[m.end() : m.end() + 1] in ".?!,;)"
    if m["m"] in VERBS and not (m["y"] or m["th"] or lead or closed):  # "8 may fail"
        return []
    if year is None:  # the latest that is not in the future; 29 February may be eight years back
        today = (now.month, now.day)
        past = range(now.year - (today < (month, on)), max(0, now.year - 10), -1)
        year = next((each for each in past if _exists(each, month, on)), 0)
    return [_calendar(now, date(year, month, on), "day")]


def _month(m: re.Match[str], now: datetime, lead: str) -> list[Span]:
    year, month, which = _year(m, now), _month_of(m), (m["which"] or "").lower()
    if year is None:
        verb = m["m"] in VERBS
        if not (
            which == "last"
            or (which and not verb)
            or lead in (DURING if verb else AROUND | {"of", "by"})
            or m["m"].title() in _CLEAR
        ):
            return []
        year = now.year - (which != "this" and (month > now.month or (which == "last" and month == now.month)))
    return [_calendar(now, date(year, month, 1), "month")]


def _bare_year(m: re.Match[str], now: datetime, lead: str) -> list[Span]:
    if lead != ASKED and not (lead in AROUND and 1900 <= int(m[1]) <= now.year):
        return []
    return [_calendar(now, date(int(m[1]), 1, 1), "year")]


def _weekday(m: re.Match[str], now: datetime, lead: str) -> list[Span]:
    which, word, today = (m["which"] or "").lower(), m["w"], now.date()
    if len(word) < 6 and lead != ASKED and not (word[0].isupper() and (lead or which)):
        return []
    if which == "this" or m["week"]:
        monday = today - timedelta(days=today.weekday() + (7 if (m["week"] or "").lower() == "last" else 0))
        return [_calendar(now, monday + timedelta(days=WEEKDAYS.index(word[:3].lower())), "day")]
    back = (today.weekday() - WEEKDAYS.index(word[:3].lower())) % 7
    return [_calendar(now, _back(today, "day", back or (7 if which else 0)), "day")]


def _ago(m: re.Match[str], now: datetime, lead: str) -> list[Span]:
    """As loosely as it is said: two weeks ago is the seven days around that one, two months ago the whole month."""
    fewest, most, unit = _length(m)
    if unit in SECONDS:
        at, step = now.timestamp(), SECONDS[unit]
        return [Span(at - (most + max(0.5, most / 4)) * step, at - (fewest - max(0.5, fewest / 4)) * step)]
    early, late = _back(now.date(), unit, most), _back(now.date(), unit, fewest)
    if unit == "week":
        return [_days(now, early - timedelta(days=3), late + timedelta(days=3))]
    return [Span(_calendar(now, early, unit).start, _calendar(now, late, unit).end)]


def _rolling(m: re.Match[str], now: datetime, lead: str) -> list[Span]:
    _, most, unit = _length(m)
    if not m["n"] and (len(m["unit"]) == 1 or (m["which"].lower() == "last" and unit != "hour")):  # a last day, the last minute
        return []
    start = now.timestamp() - most * SECONDS[unit] if unit in SECONDS else _midnight(now, _back(now.date(), unit, most))
    return [Span(start, now.timestamp())]


def _period(m: re.Match[str], now: datetime, lead: str) -> list[Span]:
    count = 2 if m["more"] else {"": None, "this": 0}.get((m["which"] or "").lower(), 1)
    return [] if count is None else [_calendar(now, _back(now.date(), m["unit"].lower(), count), m["unit"].lower())]


def _near(m: re.Match[str], now: datetime, lead: str) -> list[Span]:
    words, today = m[0].lower(), now.date()
    if words == "earlier today":
        return [Span(_midnight(now, today), now.timestamp())]
    on = _back(today, "day", 2 if words.startswith("day") else 1 if words.startswith(("yesterday", "last")) else 0)
    if hours := HOURS.get("night" if words == "tonight" else words.rpartition(" ")[2]):
        return [Span(_midnight(now, on, hours[0]), _midnight(now, on, hours[1]))]
    return [_calendar(now, on, "day")]


_CLEAR = {name for name in NAMES if name not in ("March", "April", "May", "June", "August")}  # neither verbs nor people
_OPEN, _SHUT = r"(?<![\w./:-])", r"(?![\w/-]|[.:,][0-9])"  # not within a path, a version, a range, a time of day
_M = (
    r"(?P<m>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|"
    r"sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b\.?"
)
_W = r"(?:mon(?:day)?|tue(?:s(?:day)?)?|wed(?:nesday)?|thu(?:rs?(?:day)?)?|fri(?:day)?|sat(?:urday)?|sun(?:day)?)\b"
_Y = rf"(?P<y>[0-9]{{4}}|(?:last|this) year){_SHUT}"
_D = r"(?P<d>[0-9]{1,2})(?P<th>st|nd|rd|th)?"
_N = rf"(?P<n>[0-9]{{1,4}}|an?|{'|'.join(NUMBERS)}|(?:a )?couple(?: of)?|(?:a )?few|several)"
_UNIT = r"(?P<unit>mo(?:nths?)?|m(?:in(?:ute)?s?)?|h(?:(?:ou)?rs?)?|d(?:ays?)?|w(?:(?:ee)?ks?)?|y(?:(?:ea)?rs?)?)\b"
_DAY, _HOUR = r"[0-9]{4}-[0-9]{2}-[0-9]{2}", r"[T ][0-9]{2}:[0-9]{2}"
_FRACTION, _SHIFT = r"(?:\.[0-9]{1,12})?", r"(?:Z|[+-][0-9]{2}:[0-9]{2})"
_STAMP = f"{_DAY}{_HOUR}:[0-9]{{2}}{_FRACTION}{_SHIFT}"
_COUNTED = r"(?! (?:words|lines|bytes|tokens|characters|people|users|files|items|steps|times|ms)\b)"
_FLAGS = re.ASCII | re.IGNORECASE
_PHRASES: list[tuple[re.Pattern[str], Reader]] = [  # of those that begin at one place the first is taken
    (re.compile(source, _FLAGS), read)
    for source, read in (
        (rf"{_OPEN}{_STAMP}{_SHUT}", _stamp),
        (rf"{_OPEN}([0-9]{{4}})([-/])([0-9]{{1,2}})\2([0-9]{{1,2}})(?:(?={_HOUR})|{_SHUT})", _iso_day),
        (rf"{_OPEN}((?:19|20)[0-9]{{2}})-(0[1-9]|1[0-2]){_SHUT}", _iso_month),
        (rf"{_OPEN}([0-9]{{1,2}})/([0-9]{{1,2}})/((?:[12][0-9])?[0-9]{{2}}){_SHUT}", _slashed),
        (rf"(?:\b{_W}\.?,? (?:the )?)?{_OPEN}{_D}(?:[ -]| of ){_M}(?:(?:, ?|[ -]){_Y}|(?!\w))", _date),
        (rf"\b(?:{_W}\.?,? )?{_M}[ -](?:the )?{_D}(?:(?:, ?| )(?:of )?{_Y}|{_SHUT})", _date),
        (rf"\b(?:(?P<which>last|this) )?{_M}(?:,? (?:of )?{_Y}|(?![\w/-])(?! (?:be|have|not|also|well)\b))", _month),
        (
            r"\b(?:(?P<which>last|this|previous) )?(?P<unit>week(?:end)?|month|year)\b(?P<more> before last\b(?! \w+day\b))?",
            _period,
        ),
        (rf"\b(?:(?P<which>last|this|past) )?(?P<w>{_W})(?: (?:of )?(?P<week>last|this) week\b)?", _weekday),
        (r"\b(?:earlier today|today|tonight|day before yesterday|last (?:night|evening))\b", _near),
        (r"\b(?:(?:yesterday|this) (?:morning|afternoon|evening)|yesterday(?: night)?)\b", _near),
        (rf"\b{_N} ?{_UNIT} ago\b", _ago),
        (rf"\b(?P<which>last|past) (?:{_N} ?)?{_UNIT}", _rolling),
        (rf"{_OPEN}([12][0-9]{{3}}){_SHUT}{_COUNTED}", _bare_year),
    )
]
_LENGTH = re.compile(rf"{_N} ?{_UNIT}(?: ago)?", _FLAGS)
_AHEAD = re.compile(r"\b(?:next|every|each|coming|upcoming) \w+", _FLAGS)
_PART = r"(?:the )?(?P<part>(?:early|late|mid|year|(?:start|beginning|middle|end|spring|summer|autumn|fall|winter) of)[ -])?"
_JOIN = re.compile(rf",? ?(and|to|until|till|through|-|\u2013) ?{_PART}", _FLAGS)
_LEAD = re.compile(
    r"(?:\b(?P<lead>before|prior to|after|since|until|till|by|up to|from|between|in|on|during|throughout|of) )?" + _PART + "$",
    _FLAGS,
)
_RFC3339 = re.compile(_STAMP, _FLAGS)
_CLOCK = re.compile(f"{_DAY}{_HOUR}(?::[0-9]{{2}}{_FRACTION})?{_SHIFT}?", _FLAGS)
_OFFSET = re.compile(r"(?:UTC|GMT)?([+-])([0-9]{1,2})(?::?([0-5][0-9]))?", _FLAGS)
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+){0,2}")
