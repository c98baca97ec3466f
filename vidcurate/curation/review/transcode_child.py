"""Child process that transcodes one clip for the review app.

Its argument is JSON: [source, target, start in seconds, end in seconds, id of the parent process].
"""

import json
import sys
from pathlib import Path

from vidcurate.errors import VidcurateError
from vidcurate.executor.die_with_parent import die_with_parent
from vidcurate.media.transcode import TranscodeSpec, transcode_video
from vidcurate.storage import atomic_file

# A browser's preview: small and fast to make; the clip itself stays as it is.
PREVIEW = TranscodeSpec(crf=23, short_side_px=480)


def main() -> int:
    source, target, start, end, parent = json.loads(sys.argv[1])
    die_with_parent(parent)
    try:
        cut = transcode_video(Path(source), start, end, PREVIEW)
        atomic_file.write_bytes(Path(target), cut.payload, is_flushed=False)
    except VidcurateError as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
