"""Conversations about invented software whose messages are long, with questions: the second kind of data of `recall`.

Answers of 2,000-6,000 characters and pasted logs of 3,000-20,000, all made from a seed; a question is about one message of
which it repeats identifiers, or plain words, or hardly a word. `dilute` puts such messages between those of another file.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from random import Random
from typing import Any

from bench import long_code
from bench import long_words as w

SEED = 20_240_304
CONVERSATIONS, PARTS, ANSWERS, LOGS, CHATS = 5, 9, 70, 22, 40
ASIDE_SHARE = 0.3
STYLES = ("identifiers", "plain words", "other words")
BEGIN = datetime.fromisoformat("2024-03-04T08:30:00+00:00")
EVERY = 4
"""Between so many messages of another conversation stands one long exchange."""

Message = dict[str, Any]
Question = dict[str, Any]


class Writer:
    """Writes one conversation."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._parts = rng.sample(w.PARTS, PARTS)
        self._number = 0
        self.questions: list[Question] = []
        self._topics = iter(rng.sample([(p, t) for p in self._parts for t in w.TOPICS], ANSWERS))
        self._incidents = iter(rng.sample([(p, i) for p in self._parts for i in w.INCIDENTS], LOGS))
        self._asides = iter(rng.sample(w.ASIDES, len(w.ASIDES)) + rng.sample(w.ASIDES, len(w.ASIDES)))

    def exchanges(self) -> list[list[Message]]:
        kinds = ["answer"] * ANSWERS + ["log"] * LOGS + ["chat"] * CHATS
        self._rng.shuffle(kinds)
        make = {"answer": self._answered, "log": self._pasted, "chat": self._chatted}
        return [make[kind]() for kind in kinds]

    def _said(self, role: str, text: str) -> Message:
        self._number += 1
        return {"external_id": f"m{self._number}", "role": role, "text": text}

    def _slots(self, part: w.Part) -> dict[str, Any]:
        rng = self._rng
        other = rng.choice([p for p in self._parts if p is not part])
        who, who2 = rng.sample(w.PEOPLE, 2)
        return {
            **part._asdict(),
            "c2": other.c,
            "ident2": other.ident,
            "lib": rng.choice(w.LIBRARIES),
            "who": who,
            "who2": who2,
            "code": f"{rng.choice('EXKQ')}{rng.randrange(1000, 9999)}",
            "n": rng.randrange(11, 60),
            "m": rng.randrange(60, 240),
            "team": rng.choice(w.TEAMS),
            "month": rng.choice(w.MONTHS),
            "company": rng.choice(w.COMPANIES),
            "host": rng.choice(w.HOSTS),
            "room": rng.choice(w.ROOMS),
        }

    def _asked(self, kind: str, three: tuple[str, str, str], slots: Mapping[str, Any], evidence: Message) -> None:
        number = self._rng.randrange(3)
        named = dict(slots)
        if STYLES[number] == "other words" and self._rng.random() < 0.5:
            named["other"] = f"the {slots['c']}"  # then at least the part is called by its name
        question = {"question": three[number].format(**named), "category": f"{kind}, {STYLES[number]}"}
        self.questions.append({**question, "evidence": [evidence["external_id"]]})

    def _answered(self) -> list[Message]:
        part, topic = next(self._topics)
        slots = self._slots(part)
        asked = self._said("user", self._rng.choice(topic.asked).format(**slots))
        aside = next(self._asides) if self._rng.random() < ASIDE_SHARE else None
        answer = self._said("assistant", self._answer(topic, slots, aside))
        fact = self._rng.choice(topic.facts)
        self._asked("answer", fact[1:], slots, answer)
        if aside is not None:
            self._asked("one sentence", aside[1:], slots, answer)
        return [asked, answer]

    def _pasted(self) -> list[Message]:
        part, incident = next(self._incidents)
        slots = self._slots(part)
        around = [p.ident for p in self._parts]
        text = long_code.log(self._rng, incident.lines, slots, around, int(self._rng.triangular(3000, 19_500, 5000)))
        shown = self._rng.choice(incident.shown)
        pasted = self._said("user", f"{shown}:\n\n{text}" if self._rng.random() < 0.5 else f"{shown}\n```\n{text}\n```")
        self._asked("log", incident[2:], slots, pasted)
        remarks = self._rng.sample(w.AFTER_LOG, self._rng.randrange(2, 5))
        return [pasted, self._said("assistant", " ".join(remarks).format(**slots))]

    def _chatted(self) -> list[Message]:
        slots = self._slots(self._rng.choice(self._parts))
        said, answer = self._rng.choice(w.FOLLOW_UPS), self._rng.choice(w.REPLIES)
        return [self._said("user", said.format(**slots)), self._said("assistant", answer.format(**slots))]

    def _answer(self, topic: w.Topic, slots: Mapping[str, Any], aside: w.Fact | None) -> str:
        rng = self._rng
        length = rng.randrange(2200, 5200)
        facts = [fact.text.format(**slots) for fact in topic.facts]
        sections = [
            self._section(kind, fact, topic, slots) for kind, fact in zip(("cause", "change", "choice"), facts, strict=True)
        ]
        steps = "\n".join(f"{i}. {step.format(**slots)}" for i, step in enumerate(rng.sample(w.STEPS, 3), 1))
        notes = self._heading("notes") + "\n\n" + " ".join(rng.sample(topic.more, len(topic.more)))
        if rng.random() < 0.6:
            notes += "\n\n" + rng.choice(w.LINKS).format(**slots)
        rest = [notes, f"{self._heading('next')}\n\n{steps}"]
        size = sum(map(len, (*sections, *rest)))
        while size < length:
            rest.append(
                f"{self._heading('code')}: {rng.choice(w.WORDS)}\n\n{self._remark(slots)}\n\n{long_code.block(rng, slots)}"
            )
            size += len(rest[-1])
        rng.shuffle(rest)
        whole = [rng.choice(w.OPENINGS).format(**slots), *_mixed(rng, sections, rest)]
        if aside is not None:
            place = rng.randrange(1, len(whole))
            whole[place] += "\n\n" + aside.text.format(**slots)
        return "\n\n".join(whole)

    def _heading(self, kind: str) -> str:
        title = self._rng.choice(w.HEADINGS[kind])
        return self._rng.choice((f"## {title}", f"### {title}", f"**{title}**"))

    def _section(self, kind: str, fact: str, topic: w.Topic, slots: Mapping[str, Any]) -> str:
        sentences = [fact, self._remark(slots), self._remark(slots)]
        self._rng.shuffle(sentences)
        code = f"\n\n{long_code.block(self._rng, slots)}" if self._rng.random() < 0.4 else ""
        return f"{self._heading(kind)}: {topic.title.lower()}\n\n{' '.join(sentences)}{code}"

    def _remark(self, slots: Mapping[str, Any]) -> str:
        """A sentence that is true of any program."""
        rng = self._rng
        words, other = rng.sample(w.WORDS, 2)
        return rng.choice(REMARKS).format(
            **slots, words=words, others=other, call=long_code.name(rng), many=rng.randrange(2, 900), few=rng.randrange(2, 9)
        )


REMARKS = (
    "`{call}()` is called {many} times per request on this path, once for each of the {words}.",
    "The {words} and the {others} are read in the same transaction, which I left as it is.",
    "For {words} without {others} the result stays empty, and the caller in `{ident2}` relies on that.",
    "I measured {many} ms before and {few} ms after with the {words} of last week.",
    "There is a second caller, `{call}()`, which only the {others} need.",
    "The test with {many} {words} covers it; the one with empty {others} did not exist, so I added it.",
    "Nothing changes for the {words}: they still go through `{call}()` first.",
    "The comment above `{call}()` says otherwise, but it is older than the {others}.",
    "With more than {many} {words} at once the order of the {others} is no longer the one in which they came.",
    "The type of the {words} is wider than it has to be, and a later change can narrow it.",
)


def _mixed(rng: Random, sections: list[str], rest: list[str]) -> list[str]:
    """Both in their own order, one among the other."""
    sections, rest = list(sections), list(rest)
    made = []
    while sections or rest:
        taken = sections if not rest or (sections and rng.random() < 0.5) else rest
        made.append(taken.pop(0))
    return made


def conversations(seed: int = SEED) -> list[dict[str, Any]]:
    """The same for the same seed, on every machine."""
    return [_conversation(number, Random(f"{seed}.{number}")) for number in range(CONVERSATIONS)]


def _conversation(number: int, rng: Random) -> dict[str, Any]:
    writer = Writer(rng)
    messages: list[Message] = []
    at = BEGIN + timedelta(days=number)
    left = 0
    for exchange in writer.exchanges():
        if not left:
            left, at = rng.randrange(3, 10), _next_sitting(rng, at)
        left -= 1
        for one in exchange:
            at += timedelta(seconds=rng.randrange(20, 900))
            messages.append({**one, "created_at": written(at)})
    return {"id": f"project {number + 1}", "messages": messages, "questions": writer.questions}


def _next_sitting(rng: Random, at: datetime) -> datetime:
    return (at + timedelta(days=rng.randrange(1, 5))).replace(hour=rng.randrange(7, 20), minute=rng.randrange(60))


def written(at: datetime) -> str:
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")


def dilute(given: Sequence[Mapping[str, Any]], seed: int = SEED + 1) -> list[dict[str, Any]]:
    """The same conversations and questions with long exchanges in between, said in the same sittings."""
    long = _exchanges(seed)
    return [{**one, "messages": list(_diluted(one["messages"], long))} for one in given]


def _exchanges(seed: int) -> Iterator[list[Message]]:
    """Without end: answers and logs of one made conversation after another."""
    number = 0
    while True:
        number += 1
        for exchange in Writer(Random(f"{seed}.{number}")).exchanges():
            if sum(len(one["text"]) for one in exchange) > 2000:
                yield [{**one, "external_id": f"long-{number}-{one['external_id']}"} for one in exchange]


def _diluted(messages: Sequence[Message], long: Iterator[list[Message]]) -> Iterator[Message]:
    """An exchange never comes between a user's message and the answer to it."""
    since = 0
    names = {one["role"]: one.get("speaker") for one in messages}
    for before, one in zip((None, *messages), messages, strict=False):
        if before is not None and since >= EVERY and one["role"] == "user":
            since = 0
            for put in next(long):
                spoken = {"speaker": names["user"]} if put["role"] == "user" and names["user"] else {}
                yield {**put, "created_at": before["created_at"], **spoken}
        since += 1
        yield one
