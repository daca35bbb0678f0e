"""Prose: sentences of a small grammar, four to seven a paragraph."""

import random
from collections.abc import Iterator

from labkit.measure.workloads.content import Draft, content, tag

PEOPLE = (
    "the baker", "an old sailor", "my neighbour", "the youngest clerk", "a travelling surveyor", "the night nurse",
    "our carpenter", "the ferryman", "a tired teacher", "the lighthouse keeper", "her cousin", "the postmaster",
    "a quiet gardener", "the clockmaker", "two students", "the mayor's driver", "a stranger", "the organist",
)  # fmt: skip
DEEDS = (
    "carried", "repaired", "described", "remembered", "painted", "measured", "borrowed", "counted", "sold", "watched",
    "hid", "found", "wrote about", "asked for", "argued over", "wrapped", "weighed", "drew", "lost", "returned",
)  # fmt: skip
THINGS = (
    "a ladder", "the broken lamp", "three baskets of pears", "an unsigned letter", "the town's oldest map", "a kettle",
    "a box of glass beads", "the harbour bell", "a bicycle without a chain", "the last loaf", "a bundle of keys",
    "someone's umbrella", "a wooden horse", "the ledger of the mill", "a pair of boots", "the painted door", "a kite",
    "an hourglass", "the violin", "a jar of nails",
)  # fmt: skip
PLACES = (
    "beside the canal", "behind the station", "on the hill road", "under the bridge", "in the cold kitchen",
    "near the orchard wall", "at the edge of the market", "by the tannery", "in the attic", "along the dry riverbed",
    "outside the chapel", "between two warehouses", "at the ferry steps", "in a rented room", "past the second gate",
)  # fmt: skip
TIMES = (
    "before sunrise", "on the first warm evening", "during the long strike", "after the fair", "late in November",
    "while it rained", "the year the well froze", "on a Tuesday", "as the bells rang", "between two trains",
    "once the shops had closed", "a week later", "at low tide", "in the middle of the concert",
)  # fmt: skip
MOODS = (
    "slowly", "without a word", "against advice", "with great care", "twice", "half asleep", "for no good reason",
    "laughing", "in silence",
)  # fmt: skip
TURNS = (
    "nobody thought it strange", "the dogs began to bark", "it was already too late", "everyone wanted to help",
    "the wind had turned", "there was nothing left to pay", "the lights went out", "it took far longer than planned",
    "no one could say why", "the answer was plain enough", "that was only the beginning", "the price had doubled",
)  # fmt: skip
LINKS = ("because", "although", "and soon", "so that", "but", "until", "even though", "and by then")


def sentence(chance: random.Random) -> str:
    """One sentence of 8 to 30 words."""
    who, did, what, where, when = (chance.choice(words) for words in (PEOPLE, DEEDS, THINGS, PLACES, TIMES))
    form = chance.randrange(5)
    if form == 0:
        text = f"{when}, {who} {did} {what} {where}"
    elif form == 1:
        text = f"{who} {did} {what} {chance.choice(MOODS)}, {chance.choice(LINKS)} {chance.choice(TURNS)}"
    elif form == 2:
        text = f"{where}, {chance.choice(LINKS[:2])} {chance.choice(TURNS)}, {who} {did} {what}"
    elif form == 3:
        then = f"{chance.choice(PEOPLE)} {chance.choice(DEEDS)} {chance.choice(THINGS)}"
        text = f"{who} {did} {what} {where}, {chance.choice(LINKS)} {then}"
    else:
        text = f"{when}, {who} had {chance.randrange(2, 400)} coins, {chance.choice(LINKS)} {chance.choice(TURNS)}"
    return f"{text[0].upper()}{text[1:]}."


def paragraphs(chance: random.Random) -> Iterator[str]:
    """Paragraphs without an end."""
    while True:
        yield " ".join(sentence(chance) for _ in range(chance.randrange(4, 8))) + "\n\n"


@content("prose")
def prose(chance: random.Random) -> Draft:
    """Short tales of a town, sentences of a grammar, with the request to go on."""
    return Draft(f"{tag(chance)}. ", paragraphs(chance), "\n\nGo on with this tale in the same manner.\n")
