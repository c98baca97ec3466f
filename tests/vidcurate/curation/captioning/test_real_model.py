"""The stage `caption` with a vision-language model behind the server: random weights, real generation."""

from pathlib import Path

from tests.chat_server import chatting
from tests.vidcurate.curation.captioning.conftest import ASKED
from vidcurate.curation.captioning.answers import read_answers
from vidcurate.curation.captioning.frames import clip_frames
from vidcurate.curation.captioning.spec import CaptionSpec, PromptSpec
from vidcurate.curation.captioning.stage import run_caption
from vidcurate.curation.clip_table import table
from vidcurate.curation.clip_table.own_columns import captions_of


def test_the_captions_are_what_the_model_says_of_the_clips_own_frames(home: Path) -> None:
    from tests.vidcurate.curation.captioning.tiny_vlm import WORDS, TinyVLM

    model = TinyVLM()
    prompts = {
        "long": PromptSpec(text="reda bigb", max_tokens=6),
        "short": PromptSpec(text="olda", max_tokens=2),
    }
    with chatting(model.answer) as server:
        spec = CaptionSpec(endpoint=server.url, model="tiny", prompts=prompts, num_frames=3, short_side_px=32)
        run_caption(home / "run", spec, videos=home / "videos")
    assert set(model.seen) == {(32, 47)}
    answers = {(answer.clip_id, answer.name): answer for answer in read_answers(home / "run")}
    assert sorted(answers) == [(clip_id, name) for clip_id in ASKED for name in ("long", "short")]
    rows = {row["clip_id"]: row for row in table.scan(home / "run", "caption").collect().to_dicts()}
    questions = {(question.frames, question.prompt): question for question in server.asked}
    for (clip_id, name), answer in answers.items():
        item = {"path": str(home / "videos" / f"{clip_id}.mp4"), "start_seconds": None, "end_seconds": None}
        looked = clip_frames(item, num_frames=3, short_side_px=32)
        said = model.answer(questions[tuple(looked["frames"]), prompts[name].text])
        assert answer.text == said["choices"][0]["message"]["content"]
        assert answer.frames == looked["hash"]
        assert answer.tokens_in == said["usage"]["prompt_tokens"]
        assert answer.text
        assert set(answer.text.split()) <= set(WORDS)
        texts = captions_of(rows[clip_id])
        if name == "long":
            assert texts["long"] == answer.text
        else:  # two words and no end
            assert "short" not in texts
            assert rows[clip_id]["caption_status"] == "cut"
