"""What surrounds the judgements of the demo corpus: companions, times, titles, neutral facts and remarks.

Where two tuples stand together, the second one is for the test split only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """What surrounds the judgement in one domain.

    Attributes:
        modifiers: Phrases that may follow a noun; ``{title}`` is a proper name.
        titles: Proper names around an invented one, ``{name}``.
        times: Phrases that may follow a clause, in all splits and in test only.
        facts: Neutral clauses as (stated, negated with one "not").
        moments: Neutral clauses as (stated, with one "hardly").
        remarks: Neutral sentences, in all splits and in test only.
    """

    modifiers: tuple[str, ...]
    titles: tuple[str, ...]
    times: tuple[tuple[str, ...], tuple[str, ...]]
    facts: tuple[tuple[str, str], ...]
    moments: tuple[tuple[str, str], ...]
    remarks: tuple[tuple[str, ...], tuple[str, ...]]


COMPANIONS: tuple[tuple[str, ...], tuple[str, ...]] = (
    (
        "my sister",
        "my brother",
        "my wife",
        "my husband",
        "my mother",
        "my father",
        "a friend",
        "my neighbour",
        "my daughter",
        "my son",
    ),
    ("my cousin", "my flatmate", "my landlord", "my classmate {name}", "my niece", "my grandfather"),
)
DAYS: tuple[tuple[str, ...], tuple[str, ...]] = (
    ("Monday", "Tuesday", "Thursday", "Friday", "Sunday"),
    ("Wednesday", "Saturday"),
)
NUMBERS: tuple[tuple[str, ...], tuple[str, ...]] = (("two", "three", "four", "six", "ten"), ("seven", "nine", "eleven"))
# Behind "nobody" and "everybody".
GROUPS = ("in our group", "I asked", "in the family", "I know")
WEAK_DEGREES = ("slightly", "somewhat", "fairly", "mildly", "a little", "a bit")
STRONG_DEGREES = ("extremely", "truly", "incredibly", "remarkably", "exceptionally", "thoroughly")

SETTINGS: Mapping[str, Setting] = {
    "restaurants": Setting(
        modifiers=("at {title}", "at this place", "at {title}"),
        titles=("{name}", "the {name} House", "Chez {name}", "the {name} Grill", "Old {name}"),
        times=(
            ("that evening", "on both visits", "this time", "all night", "at lunch"),
            ("on our anniversary", "during our stay", "at breakfast"),
        ),
        facts=(
            ("we had booked a table", "we had not booked a table"),
            ("I had been there before", "I had not been there before"),
            ("it was raining", "it was not raining"),
            ("{who} was with us", "{who} was not with us"),
            ("it was a holiday", "it was not a holiday"),
            ("we were in a hurry", "we were not in a hurry"),
        ),
        moments=(
            ("we had sat down when the menu came", "we had hardly sat down when the menu came"),
            ("we had ordered when {who} arrived", "we had hardly ordered when {who} arrived"),
        ),
        remarks=(
            (
                "we went there on {day} with {who}.",
                "{who} had picked {title} for {day}.",
                "there was nobody but us in the room.",
                "I only ordered a drink and one main course.",
                "{title} is far from the centre, so we drove.",
                "I do not eat meat, and {who} does not eat fish.",
                "we stayed for more than {number} hours.",
                "we did not order anything else.",
                "{who} paid the bill for all {number} of us.",
                "it was hardly noon when we got there.",
                "we did not sit outside but took a table by the door.",
                "although it was {day}, we did not need to book.",
                "I go there with {who} every {day}.",
            ),
            (
                "{who} celebrated a birthday there on {day}.",
                "{title} opened {number} weeks ago beside the theatre.",
                "we walked over from the museum with {who}.",
                "parking was across the street, but we had come by tram.",
                "I was there for work, not on holiday, with {who}.",
            ),
        ),
    ),
    "films": Setting(
        modifiers=("of {title}", "in {title}", "in the second half", "by {name}"),
        titles=("{name}", "The {name} Affair", "{name} Rising", "The House of {name}", "Captain {name}"),
        times=(
            ("from start to finish", "for two hours", "throughout", "that night", "all the way through"),
            ("until the credits", "scene after scene", "on a second viewing"),
        ),
        facts=(
            ("I had read the book", "I had not read the book"),
            ("I had seen the trailer", "I had not seen the trailer"),
            ("the cinema was full", "the cinema was not full"),
            ("{who} was there", "{who} was not there"),
            ("it was a premiere", "it was not a premiere"),
            ("I was tired that day", "I was not tired that day"),
        ),
        moments=(
            ("the lights had gone out when it began", "the lights had hardly gone out when it began"),
            ("I had sat down when {who} called", "I had hardly sat down when {who} called"),
        ),
        remarks=(
            (
                "I saw {title} on {day} with {who}.",
                "{who} had bought the tickets for {day}.",
                "it runs for more than {number} hours.",
                "I had only heard of {title} from {who}.",
                "there was nobody but us in the cinema.",
                "we did not sit in front but in the last row.",
                "I had not heard anything about {title} before.",
                "the cinema is far from our house, so we drove.",
                "although it was {day}, we did not need to queue.",
                "it had hardly been out for {number} days when we went.",
                "{who} does not go to the cinema but streams at home.",
                "it is the third film that I have seen this month.",
                "I watched it twice, once with {who}.",
            ),
            (
                "{who} rented {title} on {day}.",
                "we watched it on a train to the coast with {who}.",
                "{title} was shot in {number} weeks on one island.",
                "I streamed it at home, not at the theatre, on {day}.",
                "the festival showed it at dawn, but we went to the late screening.",
            ),
        ),
    ),
    "gadgets": Setting(
        modifiers=("of the {title}", "on my {title}", "of this model", "on the {title}"),
        titles=("{name}", "{name} 3", "{name} Mini", "{name} Pro", "{name} 12"),
        times=(
            ("after a week", "in daily use", "from day one", "on every trip", "at work"),
            ("on a long hike", "in cold weather", "after the holidays"),
        ),
        facts=(
            ("I had owned one before", "I had not owned one before"),
            ("it was a present", "it was not a present"),
            ("I had read the box", "I had not read the box"),
            ("{who} was there to help", "{who} was not there to help"),
            ("the shop was open", "the shop was not open"),
            ("I was in a hurry", "I was not in a hurry"),
        ),
        moments=(
            ("I had opened the box when {who} called", "I had hardly opened the box when {who} called"),
            ("I had switched it on when {who} came in", "I had hardly switched it on when {who} came in"),
        ),
        remarks=(
            (
                "I bought the {title} on {day}.",
                "{who} gave me the {title} for my birthday.",
                "I have used it for more than {number} months.",
                "I only use it at home and on the train.",
                "there was nothing in the box but a cable and a leaflet.",
                "it did not come in black but in grey.",
                "I have not tried anything else from this brand.",
                "my desk is far from the socket, so I use a long cable.",
                "although {who} has the same one, I did not ask for advice.",
                "it had hardly been on sale for {number} days when I ordered it.",
                "I do not travel much, and {who} does not either.",
                "it replaces an older one that I had for {number} years.",
                "{who} and I share it at weekends.",
            ),
            (
                "{who} ordered the {title} for our workshop.",
                "the courier dropped it off on {day} at noon.",
                "I took it abroad with {who} for {number} weeks.",
                "it was meant for the kitchen, but it lives in the garage now.",
                "I chose the blue one, not the white one, on {day}.",
            ),
        ),
    ),
}  # fmt: skip

DOMAINS: tuple[str, ...] = tuple(SETTINGS)


# Words of the demo corpus: nouns, adjectives and invented names, and which of them only the test split uses.
#
# Two kinds of words are held out. Nouns of the second list and names of the second kind never occur in train or
# validation: they carry no sentiment, and a model must not need them. ``reserved`` adjectives occur in train only in
# the constructions that `recurra.data.demo_grammar.OPEN_CONSTRUCTIONS` lists; the test split uses them under negation,
# operators and contrast too, so that a model knows their polarity and has never seen it turned over there.
#
# Every adjective is gradable, so that "fairly", "far from" and "more ... than" read well with each.
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
