"""Made-up captions with gold nouns: the sentence patterns of video captions, filled with words at random.

The treebank's letters and reviews seldom have what these sentences have: third-person verbs in rows ("opens
the door, sits down and drinks coffee"), after "as" and "while", after names, before a comma or a full stop;
and, as often, plural nouns in the same places ("with cups, plates and drinks").
"""

import random
from collections.abc import Iterator

from caption_verbs import VERBS, VERBS_AND_NOUNS
from present_tense import third_person
from word_classes import participles

# Words in capitals are slots: N noun, NS its plural, V verb, VS its third person, A adjective,
# R adverb, P preposition, D determiner, H possessive, S pronoun of the third person, M name. The fillings of
# N, NS and M are nouns; so are the words behind a *.
PATTERNS = (
    "D N VS P D N , VS H N and VS .",
    "D A N VS , VS and VS P D N .",
    "D N VS R , VS H N and VS R .",
    "D N VS H N and VS NS .",
    "D N VS D N , VS N and VS it .",
    "D N R VS D N and VS P NS .",
    "D N in D A N VS , VS twice and VS .",
    "D N and D N VS as D N VS .",
    "D N VS while D N VS P NS .",
    "As D N VS , one N VS NS and another VS P D N .",
    "While S VS , D N VS H NS .",
    "S VS D N , VS P it and VS away .",
    "S VS , VS H N and VS R .",
    "S VS up , VS H NS and VS back .",
    "M VS D N , VS inside and VS M , who VS and VS him .",
    "M VS P D N and VS .",
    "The *video VS with D N who VS H NS , VS and VS P D N .",
    "The *video VS D A N where NS V NS and NS V .",
    "The *scene VS to D N where D N VS NS into D N .",
    "The *camera VS left and VS D N , who VS R .",
    "The *camera VS in as D N VS , VS and VS .",
    "The *clip VS two NS who V , V each other and V away .",
    "D N VS , VS and VS , and D N VS .",
    "D N VS P D N before it VS and VS P NS .",
    "NS V P D N and N VS P D N .",
    "N VS P D N and NS V .",
    "D N that VS P NS VS D N .",
    "D N VS NS , NS and NS P D N .",
    "D N with NS , NS and NS VS P D N .",
    "D N NS V P D N .",
    "D N NS and D N NS are P D N .",
    "D A N NS V H NS .",
    "Two N NS V while D N VS .",
    "There are NS , NS and A NS P D N .",
    "In the *background , NS and N NS V .",
    "D N is V-ing D N , V-ing and V-ing P NS .",
    "D N wearing D A N VS D N .",
    "H NS V as S VS D N NS .",
    "NS , NS and NS P D N .",
    "NS , NS and NS P D N .",
    "NS , NS and NS P D N .",
    "NS and A NS P D N .",
    "NS and A NS P D N .",
    "NS and A NS P D N .",
    "A N , NS and A NS .",
    "Two N NS , D A N and NS P NS .",
    "A NS V past the N , and its NS V .",
    "Two A NS V P D N .",
    "Three A NS V R beside D A N .",
    "D A N and D A N P A NS .",
    "D A N with A NS and A NS VS R .",
    "A NS V P D A N .",
    "D N has A NS , A NS and D A N P D A N .",
    "S VS H NS V-ing and H N up , and VS A NS .",
    "S VS H N and VS N while S VS P D N .",
    "D N VS N , VS N and VS N .",
    "D N VS and VS N P D N .",
    "D N VS hard , VS suddenly and VS V-ing .",
)
_FILL = {
    "D": ["the", "the", "the", "the", "a", "a", "one", "another", "each", "this"],
    "H": ["his", "her", "its", "their", "the"],
    "S": ["he", "she", "it"],
    "M": ["John", "Mary", "Anna", "Tom", "Lisa", "Peter", "Maria", "David"],
    "P": [
        "in",
        "on",
        "at",
        "with",
        "by",
        "from",
        "near",
        "behind",
        "under",
        "over",
        "through",
        "across",
        "along",
        "into",
        "onto",
        "toward",
        "against",
        "around",
        "past",
    ],
    "R": [
        "slowly",
        "quickly",
        "gently",
        "softly",
        "carefully",
        "suddenly",
        "gracefully",
        "briefly",
        "deeply",
        "slightly",
        "up",
        "down",
        "back",
        "away",
        "forward",
        "again",
        "together",
        "outside",
        "inside",
    ],
    "A": [
        "young",
        "old",
        "small",
        "large",
        "red",
        "blue",
        "white",
        "black",
        "wooden",
        "bright",
        "dark",
        "busy",
        "quiet",
        "long",
        "tall",
        "elderly",
        "colorful",
        "bustling",
        "winding",
        "golden",
        "cyan",
        "green",
        "orange",
        "yellow",
        "pink",
        "purple",
        "brown",
        "gray",
        "grey",
        "beige",
        "silver",
        "pale",
        "round",
        "rocky",
        "thick",
        "clean",
        "tiny",
        "wide",
        "narrow",
        "fluffy",
        "shiny",
        "smooth",
        "soft",
    ],
}


def sentences(things: list[str], number: int) -> Iterator[str]:
    """Yield `number` sentences with a * before each noun, the same each time; `things` are nouns for N."""
    rng = random.Random(0)
    verbs, both = sorted(VERBS), sorted(VERBS_AND_NOUNS)
    things = [thing for thing in things if thing not in VERBS]
    for index in range(number):
        words = []
        for slot in PATTERNS[index % len(PATTERNS)].split():
            if slot in ("N", "NS"):
                noun = rng.choice(both if rng.random() < (0.3 if slot == "N" else 0.5) else things)
                words.append("*" + (noun if slot == "N" else third_person(noun)))
            elif slot in ("V", "VS", "V-ing"):
                verb = rng.choice(both if rng.random() < 0.6 else verbs)
                words.append({"V": verb, "VS": third_person(verb), "V-ing": participles(verb)[0]}[slot])
            elif slot in _FILL:
                words.append(("*" if slot == "M" else "") + rng.choice(_FILL[slot]))
            else:
                words.append(slot)
        first = words[0].removeprefix("*")
        words[0] = words[0].removesuffix(first) + first[0].upper() + first[1:]
        yield " ".join(words)
