"""What the factbook can say: kinds of subject, their attributes, and the words for each.

``{s}`` stands for the subject, ``{v}`` for the value. A lead says an attribute in one way, its clause; sources say it in
several others, its phrases, so that a summary of copied source sentences shares few bigrams with the lead. Remarks name
the subject and state nothing. No two attributes share a clause or a phrase, and a phrase is recognised by its words up to
its last slot, so that a sentence cut behind that is still understood.
"""

import re
from dataclasses import dataclass
from enum import Enum
from functools import cache


class Shape(Enum):
    """The form of a name or value, by the regular expression (of normalised text) that recognises it."""

    WORD = r"[a-z]+"
    PERSON = r"[a-z]+ [a-z]+"
    YEAR = r"\d{4}"


@dataclass(frozen=True, eq=False)
class Attribute:
    name: str
    shape: Shape
    clause: str
    phrases: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Kind:
    """``opening`` begins a lead and is followed by clauses, as is ``pronoun`` in its second sentence."""

    shape: Shape
    opening: str
    pronoun: str
    attributes: tuple[Attribute, ...]
    remarks: tuple[str, ...]


RIVER = Kind(
    Shape.WORD,
    "{s} is a river that",
    "It",
    (
        Attribute(
            "spring",
            Shape.WORD,
            "rises at {v}",
            (
                "Walkers who trace {s} upstream arrive in {v}.",
                "The first trickle of {s} seeps from a meadow near {v}.",
                "A cold well in {v} feeds the young {s}.",
                "Melting snow around {v} is where {s} starts.",
            ),
        ),
        Attribute(
            "basin",
            Shape.WORD,
            "drains {v}",
            (
                "Most rain falling on {v} ends up in {s}.",
                "Farmers across {v} water their fields from {s}.",
                "{s} collects nearly every brook of {v}.",
                "Without {s} the plain of {v} would be a desert.",
            ),
        ),
        Attribute(
            "town",
            Shape.WORD,
            "passes {v}",
            (
                "Wool is washed where {s} touches the market of {v}.",
                "In {v} the old houses lean over {s}.",
                "The mills of {v} take their power from {s}.",
                "Ferries on {s} land below the church of {v}.",
            ),
        ),
        Attribute(
            "mouth",
            Shape.WORD,
            "joins {v}",
            (
                "After the last weir {s} empties into {v}.",
                "The brown water of {s} is swallowed by {v}.",
                "{v} doubles in width once {s} comes in.",
                "Sailors leave {s} for the wide {v}.",
            ),
        ),
        Attribute(
            "surveyor",
            Shape.PERSON,
            "was mapped by {v}",
            (
                "{v} drew the earliest chart of {s}.",
                "The depths of {s} were sounded by {v}.",
                "An expedition under {v} measured {s} from end to end.",
                "Modern plans of {s} go back to {v}.",
            ),
        ),
    ),
    (
        "{s} is a river that painters love.",
        "{s} is a river with few fish and many stones.",
        "Songs about {s} are older than any book.",
        "Nobody agrees on the true length of {s}.",
        "The colour of {s} changes with the season.",
    ),
)

COMPOSER = Kind(
    Shape.PERSON,
    "{s} was a composer who",
    "She",
    (
        Attribute(
            "birthplace",
            Shape.WORD,
            "was born in {v}",
            (
                "The parish book of {v} records the baptism of {s}.",
                "{s} spent a poor childhood near {v}.",
                "Neighbours from {v} remembered the infant {s}.",
                "The cradle of {s} is kept at {v}.",
            ),
        ),
        Attribute(
            "teacher",
            Shape.PERSON,
            "studied under {v}",
            (
                "{v} taught harmony to {s}.",
                "{s} learned counterpoint from {v}.",
                "The lessons of {v} shaped the young {s}.",
                "As a pupil {s} copied the masses of {v}.",
            ),
        ),
        Attribute(
            "post",
            Shape.WORD,
            "worked for {v}",
            (
                "The organ of {v} was played by {s} for decades.",
                "{s} conducted the choir of {v}.",
                "The court at {v} paid {s} a small wage.",
                "Its chapel made {v} hire {s}.",
            ),
        ),
        Attribute(
            "work",
            Shape.WORD,
            "wrote {v}",
            (
                "Audiences still ask for {v}, the masterpiece of {s}.",
                "The score of {v} is in the hand of {s}.",
                "{s} finished the opera {v} within one winter.",
                "Critics praise {v} above all else by {s}.",
            ),
        ),
        Attribute(
            "death",
            Shape.YEAR,
            "died in {v}",
            (
                "The grave of {s} bears the date {v}.",
                "{s} did not live past {v}.",
                "A funeral march for {s} sounded during {v}.",
                "Letters from {s} stop abruptly with {v}.",
            ),
        ),
    ),
    (
        "{s} was a composer who rarely slept.",
        "{s} was a composer with a sharp tongue.",
        "A portrait of {s} hangs in many schools.",
        "Stories about {s} are often invented.",
        "The handwriting of {s} is hard to read.",
    ),
)

BRIDGE = Kind(
    Shape.WORD,
    "{s} is a bridge that",
    "It",
    (
        Attribute(
            "water",
            Shape.WORD,
            "crosses {v}",
            (
                "Boats on {v} duck beneath {s}.",
                "The piers of {s} are sunk into the bed of {v}.",
                "Floods of {v} have twice shaken {s}.",
                "From the rail of {s} people fish for eels of {v}.",
            ),
        ),
        Attribute(
            "designer",
            Shape.PERSON,
            "was designed by {v}",
            (
                "Drawings for {s} came from the desk of {v}.",
                "{v} calculated every arch of {s}.",
                "Engineers credit {s} to {v}.",
                "A bust on {s} honours its creator {v}.",
            ),
        ),
        Attribute(
            "opening",
            Shape.YEAR,
            "opened in {v}",
            (
                "The first carts rolled over {s} during {v}.",
                "Tolls on {s} were collected from {v}.",
                "The keystone of {s} is carved with {v}.",
                "Crowds cheered the new {s} back in {v}.",
            ),
        ),
        Attribute(
            "quarry",
            Shape.WORD,
            "has stone from {v}",
            (
                "Blocks for {s} were cut in {v}.",
                "Masons hauled granite for {s} out of {v}.",
                "The pale walls of {s} match the cliffs of {v}.",
                "A pit at {v} supplied {s}.",
            ),
        ),
        Attribute(
            "place",
            Shape.WORD,
            "stands in {v}",
            (
                "The people of {v} stroll over {s} every evening.",
                "{v} keeps {s} in good repair.",
                "Street lamps of {v} light {s} at night.",
                "Trams through {v} carry tourists to {s}.",
            ),
        ),
    ),
    (
        "{s} is a bridge that photographers like.",
        "{s} is a bridge with narrow steps and iron railings.",
        "Children call {s} the old giant.",
        "Storms have never closed {s} for long.",
        "Guides tell strange tales of {s}.",
    ),
)

COMET = Kind(
    Shape.WORD,
    "{s} is a comet that",
    "It",
    (
        Attribute(
            "finder",
            Shape.PERSON,
            "was found by {v}",
            (
                "{v} first noticed {s} on a glass plate.",
                "The discovery of {s} made {v} famous.",
                "Credit for spotting {s} belongs to {v}.",
                "In a letter {v} described {s} before anyone else.",
            ),
        ),
        Attribute(
            "observatory",
            Shape.WORD,
            "was seen from {v}",
            (
                "Telescopes at {v} followed {s} for weeks.",
                "The dome of {v} was opened for {s} alone.",
                "{v} holds the oldest photograph of {s}.",
                "Night after night {v} logged the position of {s}.",
            ),
        ),
        Attribute(
            "return",
            Shape.YEAR,
            "returned in {v}",
            (
                "{s} last brightened the sky during {v}.",
                "Old almanacs list {s} under {v}.",
                "The tail of {s} was longest around {v}.",
                "The perihelion of {s} fell into {v}.",
            ),
        ),
        Attribute(
            "constellation",
            Shape.WORD,
            "lies in {v}",
            (
                "Look for {s} among the stars of {v}.",
                "{s} drifts slowly through {v}.",
                "Against the lights of {v} glows {s}.",
                "The orbit of {s} points toward {v}.",
            ),
        ),
        Attribute(
            "shower",
            Shape.WORD,
            "feeds {v}",
            (
                "Dust from {s} makes the shower called {v}.",
                "The meteors of {v} are crumbs of {s}.",
                "Each summer {s} brings the sparks of {v}.",
                "Astronomers trace {v} back to {s}.",
            ),
        ),
    ),
    (
        "{s} is a comet that frightened nobody.",
        "{s} is a comet with a faint green glow.",
        "Sailors once feared the sight of {s}.",
        "Little is known of the core of {s}.",
        "Newspapers printed poor sketches of {s}.",
    ),
)

KINDS = (RIVER, COMPOSER, BRIDGE, COMET)


@cache
def fixed_words() -> frozenset[str]:
    """All words that phrases use themselves: no name may be one."""
    texts = [text for kind in KINDS for text in (kind.opening, kind.pronoun, *kind.remarks)]
    texts += [text for kind in KINDS for attribute in kind.attributes for text in (attribute.clause, *attribute.phrases)]
    return frozenset(re.findall(r"[a-z]+", " ".join(texts).lower()))
