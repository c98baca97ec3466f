"""Skip windows: data steps to leave out, and the data step that an update reads.

Both are counted from 1 in a stage; a window includes its first and last step. Update k of a stage reads the
k-th data step outside all windows, so skipping a window changes nothing before it.
"""

from collections.abc import Iterable, Sequence

Windows = tuple[tuple[int, int], ...]


def merged(windows: Iterable[Sequence[int]]) -> Windows:
    """Return the windows in order, joining those that touch."""
    found: list[tuple[int, int]] = []
    for first, last in sorted((int(first), int(last)) for first, last in windows):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


def data_step(windows: Windows, step: int) -> int:
    """Return the data step that training step `step` reads. `windows` are in order (`merged`)."""
    for first, last in windows:
        if step < first:
            break
        step += last - first + 1
    return step


def training_step(windows: Windows, step: int) -> int | None:
    """Return the training step that reads data step `step`; None for one in a window."""
    skipped = 0
    for first, last in windows:
        if step < first:
            break
        if step <= last:
            return None
        skipped += last - first + 1
    return step - skipped


def steps_before(windows: Windows, step: int) -> int:
    """Return the number of training steps that read the data steps before `step`."""
    return step - 1 - sum(last - first + 1 for first, last in before(windows, step))


def before(windows: Windows, step: int) -> Windows:
    """Return the parts of the windows before data step `step`."""
    return tuple((first, min(last, step - 1)) for first, last in windows if first < step)
