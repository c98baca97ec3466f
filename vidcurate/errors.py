"""Every error that a user can meet, as one tree.

    VidcurateError                  exit code 1: the work failed
    ├── RequestError                exit code 2: what was asked for is wrong, nothing was written
    │   ├── RecipeError             a YAML recipe or a --set
    │   ├── InputError              a metadata file, a folder or an argument
    │   │   └── MissingError        a file or a folder that is named and is not there
    │   ├── ColumnError             a column that is missing or of the wrong kind
    │   └── StageError              a stage was asked for before, or against, the one it needs
    ├── MediaError                  one video that cannot be read; in a stage it becomes a ledger row
    ├── TableError                  a stage's table that is damaged or does not belong here
    ├── ShardError                  a shard or an index that does not hold what it says
    ├── StateError                  a loader or training state that belongs to other data or another recipe
    ├── CheckpointError             a checkpoint that is incomplete, altered or of another model
    ├── StorageError                the disk or the network refused
    ├── BadNodeError                exit code 77: a node failed its preflight; begin again without it
    └── FailureLimitError           exit code 3: the work is done, and more failed than was allowed

A message names the thing, gives the value, says what is needed and, where there is one, the next step.
It is one line: the command line prints it as it is.
"""


class VidcurateError(Exception):
    """The work failed. `exit_code` is what the command line ends with."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class RequestError(VidcurateError):
    """What was asked for is wrong; nothing was written."""

    exit_code = 2


class RecipeError(RequestError):
    """A recipe (or a --set) holds an unknown key or a value that does not fit."""


class InputError(RequestError):
    """A metadata file, a folder or an argument cannot be used as given."""


class MissingError(InputError):
    """A file or a folder that is named is not there."""


class ColumnError(RequestError):
    """A column is missing or of the wrong kind."""


class StageError(RequestError):
    """A stage was asked for before the one it needs, or after that one changed."""


class MediaError(VidcurateError):
    """One video cannot be read. `kind` is the short word that the table records."""

    def __init__(self, message: str, *, kind: str = "unreadable") -> None:
        super().__init__(message)
        self.kind = kind

    def __reduce__(self) -> tuple[object, ...]:
        return _media_error, (str(self), self.kind)


def _media_error(message: str, kind: str) -> MediaError:
    return MediaError(message, kind=kind)


class TableError(VidcurateError):
    """A stage's table is damaged or does not belong where it lies."""


class ShardError(VidcurateError):
    """A shard or an index does not hold what it says."""


class StateError(VidcurateError):
    """A loader or training state belongs to other data or another recipe."""


class CheckpointError(VidcurateError):
    """A checkpoint is incomplete, altered or of another model."""


class StorageError(VidcurateError):
    """The disk or the network refused."""


class BadNodeError(VidcurateError):
    """A node failed its preflight: it computes wrongly, hangs, or lacks what the run needs."""

    exit_code = 77


class FailureLimitError(VidcurateError):
    """The work is done and written, and a larger share of it failed than the limit that was set allows."""

    exit_code = 3
