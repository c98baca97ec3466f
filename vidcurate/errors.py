"""Errors that a user can meet, as one tree.

    VidcurateError                  exit code 1: the work failed
    ├── RequestError                exit code 2: the request is wrong, nothing was written
    │   ├── RecipeError             a YAML recipe or a --set
    │   ├── InputError              a metadata file, a folder or an argument
    │   │   └── MissingError        a named file or folder does not exist
    │   ├── ColumnError             a column that is missing or of the wrong type
    │   ├── StageError              a stage that needs another stage first
    │   └── StateError              a loader or training state of other data, another recipe or model
    ├── MediaError                  one unreadable video; a stage records it as a ledger row
    ├── TableError                  a stage's table that is damaged or does not belong here
    ├── ShardError                  a shard or an index with the wrong contents
    ├── CheckpointError             a checkpoint that is incomplete, altered or of another model
    │   ├── CheckpointFormatError   exit code 2: a checkpoint that another version has written
    │   └── WeightsError            exit code 2: a weights file that no model can be read from
    ├── StorageError                an error of the disk or the network
    │   └── ObjectError             a file at a URL that cannot be had
    ├── DeviceMemoryError           a GPU without the memory for a micro-batch
    ├── BadNodeError                exit code 77: a node failed its preflight; restart without it
    └── FailureLimitError           exit code 3: the work is done, and more failed than the limit allows

A message says what failed, the value and what to do, in one line: the command line prints the message as is.
"""


def printable(text: str) -> str:
    """Return text with escapes (`\\x1b`, `\\n`) for what a terminal would obey or cannot show.

    Names of files, clip ids and captions come from others: they may not move the cursor or colour a line.
    """
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text
    )


def counted(number: int, noun: str, plural: str = "s") -> str:
    """Return a count with its noun, such as `1 clip` or `2,000 clips`; `plural` is the noun's ending."""
    return f"{number:,} {noun}{'' if number == 1 else plural}"


class VidcurateError(Exception):
    """Base of all errors: the work failed. The command line exits with `exit_code`."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(printable(" ".join(message.split())))


class RequestError(VidcurateError):
    """Wrong request; nothing was written."""

    exit_code = 2


class RecipeError(RequestError):
    """Unknown key or wrong value in a recipe (or a --set)."""


class InputError(RequestError):
    """Unusable metadata file, folder or argument."""


class MissingError(InputError):
    """Missing file or folder."""


class ColumnError(RequestError):
    """Missing column, or column of the wrong type."""


class StageError(RequestError):
    """Stage that needs another stage first, or whose input stage has changed."""


class StateError(RequestError):
    """Loader or training state of other data, another recipe or another model; a restart cannot help."""


class MediaError(VidcurateError):
    """Unreadable video. `kind` is the short name that the table records."""

    def __init__(self, message: str, *, kind: str = "unreadable") -> None:
        super().__init__(message)
        self.kind = kind

    def __reduce__(self) -> tuple[object, ...]:
        return _media_error, (str(self), self.kind)


def _media_error(message: str, kind: str) -> MediaError:
    return MediaError(message, kind=kind)


class TableError(VidcurateError):
    """Stage table that is damaged or belongs to another run."""


class ShardError(VidcurateError):
    """Shard or index with the wrong contents."""


class CheckpointError(VidcurateError):
    """Checkpoint that is incomplete, altered or of another model."""


class CheckpointFormatError(CheckpointError):
    """Checkpoint in the format of another version; a restart cannot help."""

    exit_code = 2


class WeightsError(CheckpointError):
    """Weights file that is damaged or of another model; a restart cannot help."""

    exit_code = 2


class StorageError(VidcurateError):
    """Error of the disk or the network."""


class ObjectError(StorageError):
    """File at a URL that cannot be had. `status`: 404 not there, 403 refused, None what may pass."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class DeviceMemoryError(VidcurateError):
    """GPU without the memory for a micro-batch; what one rank meets, another need not."""


class BadNodeError(VidcurateError):
    """Node that failed its preflight: the node computes wrongly, hangs, or lacks what the run needs."""

    exit_code = 77


class FailureLimitError(VidcurateError):
    """Failure share above the limit; the work is done and written."""

    exit_code = 3
