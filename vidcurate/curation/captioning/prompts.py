"""Prompts for captions, as data: name of the caption → question, longest answer.

`long` asks for what text-to-video models are trained on (subject, action, setting, camera, light, in the
order of the pictures), `short` for one sentence. Both ask for no opening of the kind that
`caption_scores.text_scores.PREFIX` finds.
"""

from typing import Any

PROMPTS: dict[str, dict[str, Any]] = {
    "long": {
        "text": (
            "These pictures are frames of one video clip, in order of time. Describe the clip in one "
            "paragraph of 80 to 150 words: the main subject and how it looks, what happens from the first "
            "frame to the last, the surroundings, the camera (its angle and movement), the light and the "
            "style. Write in the present tense and in English. Say only what can be seen; name no frame, "
            "picture or video. "
            "Begin with the subject itself, not with words such as 'The video shows'. Give the description "
            "alone."
        ),
        "max_tokens": 400,
    },
    "short": {
        "text": (
            "These pictures are frames of one video clip, in order of time. Describe in one sentence of at "
            "most 25 words who or what is seen, what happens and where. Write in the present tense and in "
            "English. Begin with the subject itself, not with words such as 'The video shows'. Give the "
            "sentence alone."
        ),
        "max_tokens": 100,
    },
}
