"""Forms in -s by their place: verbs behind a subject or in a row, plural nouns elsewhere.

A * stands before each noun, as in the captions labelled by hand.
"""

import polars as pl
import pytest

from vidcurate.curation.caption_scores import nouns_builtin

VERBS = (
    "A *barista froths *milk in a *metal *jug .",
    "The *video features a sleeping *kitten .",
    "A *dog barks at the *mailman .",
    "The *camera zooms in and pauses on a *face .",
    "An *athlete hurdles over three *barriers .",
    "A *boxer ducks , jabs and hooks .",
    "The *boxer ducks , jabs , hooks and backs away .",
    "A *teacher points at the *board .",
    "The *camera zooms slowly , pauses and tilts up .",
    "A *runner hurdles the *fence and sprints away .",
    "The *clip features two *dancers on a *stage .",
    "A *seal barks and claps .",
    "The *cat paws at the *string .",
    "A *gymnast vaults , lands and bows to the *audience .",
    "A *blacksmith hammers a glowing *blade .",
    "The *drone hovers above the *lake , then circles back .",
    "A *man peels *potatoes while his *wife chops *onions .",
    "The *train rounds a *bend and speeds past the *station .",
    "A *goat butts its *head against a *post .",
    "The *kettle whistles loudly on the *stove .",
    "A *toddler splashes in a *puddle .",
    "The *skater carves around the *bowl .",
    "A *waiter trips , stumbles and drops a *tray .",
    "The *surfer bobs on the *waves .",
    "A *potter shapes a *vase on the *wheel .",
    "The *lizard darts under a *rock .",
    "The *video loops twice .",
    "A *girl blows *bubbles in the *garden .",
    "A *lion roars at the *camera .",
    "A small *robot vacuums under the *sofa .",
    "The *puppy tugs on a *rope and growls .",
    "A *wrestler grapples , twists and pins his *opponent .",
    "The *chef drizzles *oil over the *salad and plates it .",
    "A *monkey swings between the *trees .",
    "The *pitcher winds up and hurls the *ball .",
    "The *horse bucks , rears and throws its *rider .",
    "A *cat stalks a *mouse and pounces on it .",
    "The *teacher grades *papers at her *desk .",
    "The *clown juggles *pins and winks at a *child .",
)
PLURALS = (
    "*Ducks and *dogs swim in the *pond .",
    "A *dog barks at *ducks .",
    "The *video has special *features and *captions .",
    "*Hooks , *ropes and *anchors cover the *wall .",
    "*Barks of *dogs and *sirens in the *distance .",
    "The *track has *hurdles and *lanes .",
    "A *woman points at the *stars on the *flag .",
    "The *house *plants in the *window need *water .",
    "A *pair of *hands shapes the *clay .",
    "The *coffee *beans in a *jar .",
    "*Street *signs at *night .",
    "Two *cars and three *trucks wait at the *lights .",
    "A *table with *plates , *forks and *drinks on it .",
    "A *row of *boats on the *shore .",
    "Many *cat *videos on the *screen .",
    "The *hotel *rooms above the *bar are dark .",
    "A *box of *stamps on the *desk .",
    "*Office *workers with *laptops on their *laps .",
    "*Swings , *slides and *ladders in a *park .",
    "A *child draws *circles , *squares and *stars .",
    "*Traffic *lights along the *street .",
    "A *man with *scars , *cuts and *burns on his *arms .",
    "*Boats and *ships leave the *harbor .",
    "The *shop sells *pots , *pans and *knives .",
    "A *choir gathers under green *leaves and *branches .",
    "An *artist paints on a large *canvas .",
    "A *zoom *lens on a *tripod .",
    "A few dark *spots on its *fur .",
    "A *tent with a *sleeping *bag .",
)


def spoken(caption: str) -> str:
    return caption.replace("*", "").replace(" ,", ",").replace(" .", ".")


@pytest.mark.parametrize("caption", VERBS)
def test_verbs_in_the_third_person_are_not_counted(caption: str) -> None:
    assert nouns_builtin.count(pl.Series([spoken(caption)])).to_list() == [caption.count("*")]


@pytest.mark.parametrize("caption", PLURALS)
def test_plural_nouns_are_counted(caption: str) -> None:
    assert nouns_builtin.count(pl.Series([spoken(caption)])).to_list() == [caption.count("*")]


def test_captions_beside_it_do_not_move_a_count() -> None:
    captions = pl.Series([spoken(caption) for caption in VERBS + PLURALS])
    alone = [nouns_builtin.count(captions[n : n + 1]).item() for n in range(len(captions))]

    assert nouns_builtin.count(captions).to_list() == alone
