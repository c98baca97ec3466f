"""What a trainer has to read of the exported clips."""

from pathlib import Path

from tests.vidcurate.curation.export import clip_runs, readers

# Trainers that read a caption from a text file see it on one line; the others as it came with the data.
ONE_LINE = {"finetrainers", "mochi", "cogvideo", "cosmos-predict2", "simpletuner"}
# A folder's name for the shell, TOML and YAML to trip over.
HOSTILE = '-it\'s "$(touch pwned)" \\ `x` # {a: b}\x7f\x85\u2028\u202e☂\n%s'


def expected(out: Path, fold: str, *, one_line: bool) -> readers.Read:
    found = {}
    for number, (name, _, _, _, _, changes) in enumerate(clip_runs.CLIPS):
        stem = str(changes.get("clip_id", name.partition(".")[0])).replace(".", "_")
        match = list((out / fold).glob(f"{stem}*.mp4"))
        if match:
            caption = changes.get("caption", f"clip {number}, {name}")
            found[match[0].resolve()] = [" ".join(caption.split()) if one_line else caption]
    return found
