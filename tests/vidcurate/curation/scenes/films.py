"""Films whose scenes are known, and the settings that split and extract them."""

from vidcurate.curation.scenes.spec import ExtractSpec, SceneSpec

FPS = 24
# Frames of each scene of the two films; the last one is too short.
FILMS = {"a.mp4": (30, 54, 40, 6), "b.mkv": (48, 24, 36)}
SPEC = SceneSpec(min_seconds=0.5, max_seconds=None, time_limit_seconds=None)
EXTRACT = ExtractSpec(time_limit_seconds=None)
