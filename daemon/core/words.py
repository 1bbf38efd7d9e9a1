"""Turns text into the terms that search compares: stems, identifiers whole, character pairs where words have no spaces.

A term is the 32-bit hash of its text, so an index needs no dictionary; `terms` serves documents and questions alike.
"""

import re
from hashlib import blake2b

import msgspec
import Stemmer

END = 0
"""Closes the flow of a text; no term has this number."""
MOST_CACHED = 50_000

_UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\u0e00-\u0e7f"
_ascii_word = re.compile(r"[a-z0-9]+")
_word = re.compile(rf"[{_UNSPACED}]+|[^\W_{_UNSPACED}]+|[\u2190-\u2bff\U0001f000-\U0001faff]")
_unspaced = re.compile(f"[{_UNSPACED}]")
_camel = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_compound = re.compile(r"\w+(?:[_./\\:@#-]+\w+)+|\w*_\w+|[^\W\d_]*[a-z0-9][A-Z]\w*")
_may_be_compound = re.compile(r"\w[_./\\:@#-]+\w|_\w|[a-z0-9][A-Z]")

STOP = frozenset(
    _ascii_word.findall(
        """
    a about above after again against all am an and any are aren as at be because been before being below between both but by
    can cannot could couldn d did didn do does doesn doing don down during each few for from further get got had hadn has hasn
    have haven having he her here hers herself him himself his how i if in into is isn it its itself just ll m me mightn more
    most mustn my myself needn no nor not now o of off on once only or other our ours ourselves out over own re s same shan she
    should shouldn so some such t than that the their theirs them themselves then there these they this those through to too
    under until up us ve very was wasn we were weren what when where which while who whom whose why will with won would wouldn
    you your yours yourself yourselves
    """
    )
)

_FORMS = """
be was were been am are is; go went gone; child children; person people; man men; woman women; foot feet; tooth teeth;
mouse mice; goose geese; buy bought; bring brought; think thought; teach taught; catch caught; fight fought; seek sought;
take took taken; give gave given; get got gotten; see saw seen; come came; become became; make made; say said; tell told;
find found; feel felt; leave left; keep kept; sleep slept; meet met; read; lead led; feed fed; speak spoke spoken;
break broke broken; choose chose chosen; write wrote written; drive drove driven; ride rode ridden; rise rose risen;
fly flew flown; grow grew grown; know knew known; draw drew drawn; throw threw thrown; show shown; eat ate eaten;
fall fell fallen; forget forgot forgotten; begin began begun; drink drank drunk; swim swam swum; sing sang sung;
ring rang rung; run ran; win won; sit sat; stand stood; understand understood; hold held; build built; send sent;
spend spent; lend lent; lose lost; pay paid; sell sold; hear heard; mean meant; learn learnt; dream dreamt; burn burnt;
wear wore worn; tear tore torn; bear bore born borne; swear swore sworn; steal stole stolen; freeze froze frozen;
wake woke woken; shake shook shaken; hide hid hidden; bite bit bitten; do did done; have had; lie lay lain; sew sewn;
dig dug; stick stuck; strike struck; hang hung; shoot shot; shine shone; light lit; slide slid; swing swung; bend bent;
wife wives; life lives; knife knives; leaf leaves; half halves; wolf wolves; loaf loaves; shelf shelves; thief thieves;
better best good; worse worst bad; mom mum mommy mother; dad daddy father; photo photograph picture pic; tv television;
bike bicycle; fridge refrigerator; vacation holiday; movie film; database db; config configuration;
repo repository; app application; auth authentication; env environment; doc document docs
"""
IRREGULAR = {form: first for line in _FORMS.split(";") for first, *others in [line.split()] for form in others}
IRREGULAR |= dict.fromkeys(("kid", "kids", "children"), "child") | {"photos": "photo", "pictures": "photo", "pics": "photo"}
IRREGULAR |= {"movies": "movie", "films": "movie", "databases": "database", "dbs": "database", "apps": "app", "repos": "repo"}

_stem = Stemmer.Stemmer("porter", 0).stemWord
_known: dict[str, int] = {}


class Terms(msgspec.Struct, frozen=True):
    """The terms of a text in their order, and besides them compounds (paths, identifiers, names with hyphens) as a whole."""

    flow: list[int]
    wholes: list[int]


def terms(text: str) -> Terms:
    wholes: list[int] = []
    if _may_be_compound.search(text):
        wholes = [_hashed("=" + found.casefold()) for found in _compound.findall(text)]
        text = _camel.sub(" ", text)
    lowered = text.casefold()
    known = _known.get
    found = _ascii_word.findall(lowered) if lowered.isascii() else _split(lowered)
    flow = [number for word in found if (number := known(word) or _learn(word)) > 0]
    return Terms(flow, wholes)


def spelled(text: str) -> list[tuple[str, int]]:
    """Each word that counts as it is written, with its term: for telling a person which words matched."""
    pieces = _word.findall(_camel.sub(" ", text).casefold())
    return [(word, number) for piece in pieces for word in _pairs(piece) if (number := _known.get(word) or _learn(word)) > 0]


def _split(lowered: str) -> list[str]:
    return [word for piece in _word.findall(lowered) for word in _pairs(piece)]


def _pairs(piece: str) -> list[str]:
    """Scripts without spaces are compared by pairs of characters."""
    if not _unspaced.match(piece):
        return [piece]
    return [piece[i : i + 2] for i in range(len(piece) - 1)] or [piece]


def _learn(word: str) -> int:
    """The term of a word, or -1 for one that says nothing; remembered, because most words come again."""
    if word in STOP:
        number = -1
    elif word.isascii() and word.isalpha():
        number = _hashed(_stem(IRREGULAR.get(word, word)))
    else:
        number = _hashed(word)
    if len(_known) >= MOST_CACHED:
        _known.clear()
    _known[word] = number
    return number


def _hashed(term: str) -> int:
    return int.from_bytes(blake2b(term.encode("utf-8", "replace"), digest_size=4).digest(), "little") or 1
