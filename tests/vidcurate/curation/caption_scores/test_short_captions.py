"""Short captions, of three to eight words: another language is not called English, nor English another."""

import polars as pl
import pytest

from vidcurate.curation.caption_scores.other_languages import is_not_english

# Language: how many of its ten captions have words enough to tell, and the captions.
SHORT: dict[str, tuple[int, tuple[str, ...]]] = {
    "sw": (
        10,
        (
            "Mwanaume anatembea barabarani.",
            "Mbwa anakimbia kwenye nyasi.",
            "Mwanamke anapika chakula jikoni",
            "Watoto wanacheza mpira uwanjani.",
            "Gari jekundu linapita mjini.",
            "Ndege wanaruka juu ya bahari.",
            "Msichana anasoma kitabu.",
            "Paka amelala kwenye kiti.",
            "Jua linazama nyuma ya milima",
            "Mvulana anapanda baiskeli.",
        ),
    ),
    "lt": (
        10,
        (
            "Vyras eina gatve.",
            "Šuo bėga per pievą.",
            "Moteris gamina maistą virtuvėje",
            "Vaikai žaidžia futbolą kieme.",
            "Raudonas automobilis važiuoja miestu.",
            "Paukščiai skrenda virš jūros.",
            "Mergina skaito knygą.",
            "Katė miega ant sofos.",
            "Saulė leidžiasi už kalnų",
            "Berniukas mina dviratį.",
        ),
    ),
    "lv": (
        9,
        (
            "Vīrietis iet pa ielu.",
            "Suns skrien pa pļavu.",
            "Sieviete gatavo ēdienu virtuvē",
            "Bērni spēlē futbolu pagalmā.",
            "Sarkana automašīna brauc pa pilsētu.",
            "Putni lido virs jūras.",
            "Meitene lasa grāmatu.",
            "Kaķis guļ uz dīvāna.",
            "Saule riet aiz kalniem",
            "Zēns brauc ar velosipēdu.",
        ),
    ),
    "eu": (
        9,
        (
            "Gizon bat kaletik doa.",
            "Txakur bat belardian korrika dabil.",
            "Emakume batek janaria prestatzen du",
            "Haurrak futbolean jolasten ari dira.",
            "Auto gorri bat hirian zehar.",
            "Txoriak itsasoaren gainean hegan.",
            "Neskak liburu bat irakurtzen du.",
            "Katua sofan lo dago.",
            "Eguzkia mendien atzean sartzen da",
            "Mutil bat bizikletan dabil.",
        ),
    ),
    "hr": (
        10,
        (
            "Muškarac hoda ulicom.",
            "Pas trči po livadi.",
            "Žena kuha ručak u kuhinji",
            "Djeca igraju nogomet u dvorištu.",
            "Crveni auto vozi gradom.",
            "Ptice lete iznad mora.",
            "Djevojka čita knjigu.",
            "Mačka spava na kauču.",
            "Sunce zalazi iza planina",
            "Dječak vozi bicikl.",
        ),
    ),
    "ms": (
        9,
        (
            "Seorang lelaki berjalan di jalan raya.",
            "Anjing berlari di atas rumput.",
            "Wanita memasak makanan di dapur",
            "Kanak-kanak bermain bola.",
            "Kereta merah melalui bandar.",
            "Burung terbang di atas laut.",
            "Budak perempuan membaca buku.",
            "Kucing tidur di sofa.",
            "Matahari terbenam di sebalik gunung",
            "Budak lelaki menunggang basikal.",
        ),
    ),
    "fr": (
        10,
        (
            "Un homme marche dans la rue.",
            "Un chien court sur l'herbe.",
            "Une femme cuisine",
            "Des enfants jouent au ballon.",
            "Voiture rouge en ville.",
            "Les oiseaux volent au-dessus de la mer.",
            "Jeune fille lisant un livre.",
            "Le chat dort.",
            "Coucher de soleil derrière les montagnes",
            "Garçon à vélo.",
        ),
    ),
    "es": (
        9,
        (
            "Un hombre camina por la calle.",
            "Perro corriendo en la hierba.",
            "Mujer cocinando",
            "Niños jugando al fútbol.",
            "Coche rojo en la ciudad.",
            "Pájaros volando sobre el mar.",
            "Una chica lee un libro.",
            "El gato duerme.",
            "Puesta de sol tras las montañas",
            "Niño en bicicleta.",
        ),
    ),
    "de": (
        7,
        (
            "Ein Mann geht spazieren.",
            "Hund rennt über die Wiese.",
            "Frau kocht Essen",
            "Kinder spielen Fußball.",
            "Rotes Auto fährt durch die Stadt.",
            "Vögel fliegen übers Meer.",
            "Ein Mädchen liest.",
            "Die Katze schläft.",
            "Sonnenuntergang hinter den Bergen",
            "Junge auf dem Fahrrad.",
        ),
    ),
    "fi": (
        10,
        (
            "Mies kävelee kadulla.",
            "Koira juoksee nurmikolla.",
            "Nainen laittaa ruokaa keittiössä",
            "Lapset pelaavat jalkapalloa.",
            "Punainen auto ajaa kaupungissa.",
            "Linnut lentävät meren yllä.",
            "Tyttö lukee kirjaa.",
            "Kissa nukkuu sohvalla.",
            "Aurinko laskee vuorten taakse",
            "Poika ajaa pyörällä.",
        ),
    ),
    "ro": (
        10,
        (
            "Un bărbat merge pe stradă.",
            "Câinele aleargă prin iarbă.",
            "O femeie gătește",
            "Copiii joacă fotbal în curte.",
            "Mașină roșie prin oraș.",
            "Păsări zburând peste mare.",
            "O fată citește o carte.",
            "Pisica doarme pe canapea.",
            "Apus de soare peste munți",
            "Băiat pe bicicletă.",
        ),
    ),
    "tl": (
        10,
        (
            "Isang lalaki ang naglalakad sa kalye.",
            "Tumatakbo ang aso sa damuhan.",
            "Nagluluto ang babae sa kusina",
            "Naglalaro ng bola ang mga bata.",
            "Pulang kotse sa lungsod.",
            "Lumilipad ang mga ibon.",
            "Nagbabasa ng libro ang dalaga.",
            "Natutulog ang pusa sa sopa.",
            "Lumulubog ang araw sa likod ng bundok",
            "Nagbibisikleta ang batang lalaki.",
        ),
    ),
}
ENGLISH = (
    "A woman at a café in Paris.",
    "Crème brûlée with raspberries on a plate",
    "A naïve young boy looks up.",
    "Man eats jalapeño nachos",
    "Beyoncé sings on stage.",
    "Jalapeño poppers sizzling",
    "Piñata party",
    'A "Ça va" sign above the door.',
    'A sign says "Gelateria Própria e Única" near the beach.',
    "Dog runs",
    "Woman cooking",
    "Sunset timelapse",
    "Close-up shot",
    "Tofu stir fry recipe",
    "Minecraft gameplay walkthrough",
    "Pokémon battle animation",
    "drone footage of São Paulo",
    "Mariachi band plays",
    "Salsa dancing couple",
    "Chihuahua barks loudly",
    "Sushi, ramen, udon, tempura",
    "Kung fu training montage",
    "Tai chi in park",
    "Señorita dancing flamenco",
    "Matcha latte art",
    "Résumé writing tips",
    "Façade of a building",
    "Doppelgänger scene",
    "Jiu jitsu sparring",
    "Corgi zoomies compilation",
    "Timelapse skyline bokeh",
    "froyo toppings swirl",
    "axolotl swims",
    "quokka selfie",
    "Papier-mâché masks on a wall",
    "El Niño storm hits coast",
    "Smörgåsbord table",
    "saké tasting",
    "pho noodles with cilantro",
    "Düsseldorf street market",
)


def called_other(captions: tuple[str, ...]) -> list[str]:
    found = is_not_english(pl.Series(captions), pl.DataFrame())
    return [caption for caption, other in zip(captions, found, strict=True) if other]


@pytest.mark.parametrize("language", SHORT)
def test_short_captions_of_other_languages_are_not_english(language: str) -> None:
    least, captions = SHORT[language]

    found = called_other(captions)

    assert len(captions) == 10
    assert len(found) >= least, set(captions) - set(found)


def test_short_english_captions_stay_english() -> None:
    assert called_other(ENGLISH) == []


def test_a_word_with_an_accent_leaves_an_english_caption_english() -> None:
    words = ("café", "naïve", "jalapeño", "smörgåsbord", "voilà", "håndværk")

    assert called_other(tuple(f"a man at the {word} door" for word in words)) == []
    assert called_other(tuple(words)) == []


def test_no_caption_is_decided_by_the_one_beside_it() -> None:
    captions = ("", "Le chat dort.", "a dog", "", "Le chat dort.")

    assert called_other(captions) == ["Le chat dort."] * 2
