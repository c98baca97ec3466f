"""Common failure: stop a stage whose every clip fails for one reason.

Without the stop the stage would reject every clip, and a table of a million wrong verdicts would look whole.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

from vidcurate.errors import VidcurateError

# Clips after which the stage stops; with fewer clips the stage stops at its end.
STOP_AFTER = 256
_FEWEST = 8  # of fewer clips each may well be broken in the same way

ReasonOf = Callable[[dict[str, Any]], str | None]


def alike(problem: str) -> str:
    """Return a clip's problem without the file's name and without numbers, to compare it with others."""
    return re.sub(r"\d+", "#", problem.partition(": ")[2] or problem)


class CommonFailure:
    """Reasons for which clips failed. `failed` counts them.

    `reason_of` returns None for a good row, the reason for a failed one, and an empty text for a failure that
    is a fact about one file, such as an empty file: such a failure never stops the stage.
    """

    def __init__(self, reason_of: ReasonOf) -> None:
        self._reason_of = reason_of
        self._seen: set[str] = set()  # two are enough to know that there is not one reason
        self._is_one = True
        self._problem = ""
        self.failed = 0

    def add(self, rows: Iterable[dict[str, Any]]) -> None:
        """Count the rows of a finished chunk."""
        for row in rows:
            reason = self._reason_of(row)
            self.failed += reason is not None
            if self._is_one:
                self._problem = self._problem or reason or ""
                self._seen.add(alike(reason or ""))
                self._is_one = bool(reason) and len(self._seen) == 1

    def error(self, done: int, total: int, unit: str) -> VidcurateError | None:
        """Return the error that ends the stage, None when the stage goes ahead."""
        if not self._is_one or done < min(total, STOP_AFTER) or done < _FEWEST:
            return None
        which = f"all {total:,} {unit}" if done == total else f"the first {done:,} of {total:,} {unit}"
        return VidcurateError(
            f"{which} failed for one reason, so nothing was written. "
            f"The first: {self._problem.rstrip('.')}. "
            "`vidcurate version` prints the codecs and libraries of this installation. Mend the cause, then "
            "run the same command again."
        )
