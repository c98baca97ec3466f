"""The published cleaning of captions, held against diffusers' copy of it."""

import pytest

from trainer.model.encoders.clean_caption import clean

NASTY = [
    "A dog runs.",
    "",
    "   ",
    "<person> rides a bike & waves",
    "Visit https://example.com/a?b=c or www.shop.co.uk now",
    "mail me@site.org, see shop.com/page and www:foo",
    "<p>bold <b>claim</b></p> &quot;quoted&quot; &amp;amp; more &lt;x&gt;",
    "@nick said «hello» “world” ‘it’ `x` ´y´",
    "日本語 text 漢字 ㍿ カタカナ ㇰ",
    "long—dash – en‑dash 〜 wave ― bar − minus",
    "ip 192.168.0.1 id 7:15 ",
    "line\\nbreak and real\nbreak",
    "#12 #1234 #123456 number 1234567 and 12345",
    "file photo_001.JPG and clip.mp4 in /a/b.png",
    'so """many""" quotes \'\' and ...... dots . alone',
    "***SALE*** (brackets) [x] {y} a|b c\\d e/f ~tilde~ ½ ¾",
    "this-is-my-cute-cat",
    "this_is_my_cute_cat_too",
    "only-two-dashes here",
    "schÃ¶n brokenâ€™s unicode &amp;lt;b&amp;gt;",
    "code jc6640 jc6640vc 6640vc231 j2d1a2a4 abc",
    "Worldwide free shipping and free download, download free",
    "click for more, click on this",
    "png image jpeg images of page 12",
    "a 1920x1080 photo 3.5х4 or 10×20",
    "colon : spaced ,comma,no space.and dots/slash",
    "'quoted all'",
    '"quoted all"',
    "-starts with dash",
    "ends with plus+",
    ".hidden",
    "50%20off+now %E2%80%93 caf%C3%A9",
    "  MIXED Case  With   Spaces ",
    "a" * 300 + " " + "b1" * 20,
    "The camera pans (slowly) to the right; a man's hat – red/blue – falls... 4K, 24fps, 16:9.",
]


@pytest.fixture(scope="module")
def published():  # type: ignore[no-untyped-def]
    from diffusers import PixArtAlphaPipeline

    class Cleaner:
        bad_punct_regex = PixArtAlphaPipeline.bad_punct_regex

        def __call__(self, caption: str) -> str:
            for _ in range(2):
                caption = PixArtAlphaPipeline._clean_caption(self, caption)
            return caption

    return Cleaner()


@pytest.mark.filterwarnings("ignore::bs4.MarkupResemblesLocatorWarning")
def test_captions_are_cleaned_as_published(published) -> None:  # type: ignore[no-untyped-def]
    joined = [f"{first} {second}" for first, second in zip(NASTY, reversed(NASTY), strict=True)]
    for caption in NASTY + joined:
        assert clean(caption) == published(caption)


@pytest.mark.parametrize(
    ("caption", "cleaned"),
    [
        ("<b>Two DOGS</b> run, see https://example.com/x #1234567", "two dogs run, see"),
        ("This is “fine” — really", 'this is "fine" - really'),
        ("this-is-my-cute-cat", "this is my cute cat"),
        ("caf%C3%A9+au+lait", "café au lait"),
        ("a 1920x1080 photo.jpg", "a"),
        ("", ""),
    ],
)
def test_what_cleaning_does(caption: str, cleaned: str) -> None:
    assert clean(caption) == cleaned
    assert clean(cleaned) == cleaned


def test_a_caption_like_a_file_name_warns_of_nothing() -> None:
    assert clean("photo") == "photo"
    assert clean("/home/me/clip") == "home me clip"
