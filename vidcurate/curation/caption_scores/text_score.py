"""Define a score of captions, so that each score is one file and one line of the stage."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import polars as pl


@dataclass(frozen=True, slots=True, kw_only=True)
class TextScore:
    """One or more columns of the table that follow from the captions alone.

    `measure` takes the captions of some rows (String, null where there is none) and returns the columns for
    them, in order; its result for a row does not depend on the rows beside it. `see`, where there is one, is
    given the captions of the whole table, slice by slice, before the first is measured. `settings` is what
    decides the values, as plain JSON: when it changes the table is scored again. `said` goes into the
    summary. `check` looks at the table before it is scored and raises when the score must not be put in.
    """

    columns: tuple[str, ...]
    measure: Callable[[pl.Series], pl.DataFrame]
    see: Callable[[pl.Series], None] | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    said: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[pl.LazyFrame, str], None] | None = None
