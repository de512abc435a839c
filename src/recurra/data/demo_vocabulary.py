"""Words of the demo corpus: nouns, adjectives and invented names, and which of them only the test split uses.

Two kinds of words are held out. Nouns of the second list and names of the second kind never occur in train or
validation: they carry no sentiment, and a model must not need them. ``reserved`` adjectives occur in train only in
the constructions that `recurra.data.demo_grammar.OPEN_CONSTRUCTIONS` lists; the test split uses them under negation,
operators and contrast too, so that a model knows their polarity and has never seen it turned over there.

Every adjective is gradable, so that "fairly", "far from" and "more ... than" read well with each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Marks a plural noun in the lists below.
_PLURAL = "*"


@dataclass(frozen=True)
class Noun:
    """An aspect that a review speaks of, for example ``soup``."""

    word: str
    plural: bool


@dataclass(frozen=True)
class WordClass:
    """Nouns of one kind and the adjectives that fit each of them.

    Attributes:
        domain: The domain that it belongs to.
        name: What the nouns are.
        nouns: Nouns of every split.
        held_out_nouns: Nouns of the test split only.
        adjectives: By polarity (+1 or -1), adjectives that all constructions use in all splits.
        reserved: By polarity, adjectives that train and validation use in some constructions only.
        person: Whether the nouns are people, whom no "it" can take up.
    """

    domain: str
    name: str
    nouns: tuple[Noun, ...]
    held_out_nouns: tuple[Noun, ...]
    adjectives: Mapping[int, tuple[str, ...]]
    reserved: Mapping[int, tuple[str, ...]]
    person: bool = False


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _nouns(text: str) -> tuple[Noun, ...]:
    parts = (part.strip() for part in text.split(","))
    return tuple(Noun(part.removesuffix(_PLURAL), part.endswith(_PLURAL)) for part in parts)


def _kind(domain: str, name: str, *lists: str, person: bool = False) -> WordClass:
    """Makes a class from lists: nouns, held-out nouns, good, bad, reserved good and reserved bad adjectives."""
    nouns, held_out, good, bad, reserved_good, reserved_bad = lists
    shared = _SHARED["people" if person else "things"]
    return WordClass(
        domain,
        name,
        _nouns(nouns),
        _nouns(held_out),
        {1: _words(f"{good} {shared[0]}"), -1: _words(f"{bad} {shared[1]}")},
        {1: _words(f"{reserved_good} {shared[2]}"), -1: _words(f"{reserved_bad} {shared[3]}")},
        person,
    )


# Adjectives that fit every class: good, bad, reserved good, reserved bad.
_SHARED: Mapping[str, tuple[str, str, str, str]] = {
    "people": ("pleasant engaging", "annoying disappointing", "pleasing", "unpleasant"),
    "things": (
        "pleasant impressive satisfying appealing",
        "disappointing annoying mediocre unimpressive",
        "enjoyable pleasing",
        "unpleasant underwhelming",
    ),
}

WORD_CLASSES: tuple[WordClass, ...] = (
    _kind("restaurants", "dishes",
          "soup, bread, curry, pasta, salad, dessert, noodles*, dumplings*, stew, rice, pancakes*, fish, steak, "
          "omelette, pizza, lamb, chicken, beans*",
          "risotto, ravioli, lentils*, casserole, waffles*, goulash",
          "tasty fresh flavourful fragrant filling", "bland greasy stale soggy salty",
          "delicate juicy", "mushy tasteless"),
    _kind("restaurants", "staff",
          "waiter, waitress, host, owner, manager, waiters*, service, bartender, chef, doorman, cook, porter",
          "sommelier, hostess, staff, cashier",
          "friendly attentive polite helpful welcoming", "rude careless inattentive impatient unfriendly",
          "courteous gracious", "grumpy dismissive", person=True),
    _kind("restaurants", "places",
          "dining room, terrace, garden, bar, seats*, decor, music, tables*, entrance, upper floor, booths*, patio",
          "courtyard, balcony, lounge, benches*",
          "cosy comfortable elegant inviting relaxing", "cramped noisy dirty gloomy shabby",
          "tasteful spotless", "draughty grubby"),
    _kind("films", "stories",
          "plot, story, script, dialogue, ending, opening, jokes*, pacing, twists*, premise, first act, "
          "monologue, scenes*, chase",
          "storyline, finale, epilogue, subplots*, banter",
          "gripping clever witty moving coherent", "predictable clumsy confusing muddled tedious",
          "poignant amusing", "contrived incoherent"),
    _kind("films", "people",
          "lead actor, cast, heroine, villain, narrator, actress, extras*, children*, hero, detective, "
          "sisters*, leading lady",
          "protagonist, sidekick, stuntmen*, newcomer",
          "convincing charismatic likeable graceful believable", "wooden stiff lifeless unconvincing irritating",
          "magnetic endearing", "bloodless unlikeable", person=True),
    _kind("films", "craft",
          "camera work, score, soundtrack, editing, costumes*, sets*, lighting, effects*, title song, colours*, "
          "sound, dance numbers*",
          "cinematography, choreography, backdrops*, makeup",
          "striking beautiful imaginative stylish atmospheric", "sloppy garish drab amateurish distracting",
          "inventive lavish", "murky lazy"),
    _kind("gadgets", "bodies",
          "hinge, case, keyboard, strap, buttons*, stand, frame, handle, cover, shell, wheels*, cable, feet*",
          "clasp, bezel, knobs*, lid, grip",
          "sturdy solid durable sleek robust", "flimsy brittle wobbly fragile clunky",
          "compact rugged", "creaky bulky"),
    _kind("gadgets", "parts",
          "screen, speaker, camera, microphone, sensors*, battery, charger, speakers*, motor, scanner, display, chip",
          "touchpad, webcam, antenna, headphones*",
          "reliable responsive dependable efficient precise", "unreliable sluggish erratic faulty inaccurate",
          "accurate quick", "glitchy inefficient"),
    _kind("gadgets", "software",
          "app, menu, setup, manual, interface, settings*, updates*, documentation, home page, search, "
          "shortcuts*, voice control",
          "dashboard, firmware, tutorials*, wizard",
          "intuitive simple clear handy helpful", "confusing awkward buggy cumbersome messy",
          "straightforward tidy", "cluttered bewildering"),
)  # fmt: skip

# Invented names are two open syllables and an ending; about a fifth of the pairs of syllables is for the test split.
_CONSONANTS, _VOWELS = "bdfgklmnrstvz", "aeiou"
NAME_SYLLABLES = tuple(consonant + vowel for consonant in _CONSONANTS for vowel in _VOWELS)
NAME_ENDINGS = ("x", "th", "nd", "rn", "sk", "lm")


def is_held_out_name(first: int, second: int) -> bool:
    """Whether names of these two syllables (places in `NAME_SYLLABLES`) are for the test split only."""
    return (first * 7 + second * 3) % 5 == 0
