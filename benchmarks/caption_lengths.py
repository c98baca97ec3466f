"""Count T5 tokens of captions: the mean that a trainer reads, and the spread.

    python benchmarks/caption_lengths.py TOKENIZER NAME=FILE ... [--keep]
    python benchmarks/caption_lengths.py build/t5 dense=build/dense_captions.parquet --keep

TOKENIZER is a folder with T5's tokenizer, or its name on the hub; FILE is a Parquet or CSV file with the
column `caption`. The end token counts, and the mean takes at most TEXT_TOKENS of a caption, as the model
does. benchmarks/project_speedrun.py reads the kept means; no caption is kept.
"""

import argparse
import sys
from pathlib import Path

import polars as pl
from rows import Row, as_table, keep, row
from step_shapes import TEXT_TOKENS

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from vidcurate.curation.caption_scores import t5_tokens

QUANTILES = (0.1, 0.5, 0.9)
MEAN = "mean as read"


def captions_of(path: Path) -> pl.Series:
    """Return the captions of a table, without empty ones."""
    read = pl.read_parquet if path.suffix == ".parquet" else pl.read_csv
    captions = read(path)["caption"].drop_nulls()
    return captions.filter(captions.str.strip_chars() != "")


def rows_of(name: str, tokens: pl.Series) -> list[Row]:
    """Return the mean as read and the quantiles of the tokens of captions."""
    found = {MEAN: tokens.clip(1, TEXT_TOKENS).mean()}
    found |= {f"{share:.0%} have at most": tokens.quantile(share, "lower") for share in QUANTILES}
    of = f"T5 tokens of {len(tokens):,} captions ({name})"
    return [
        row(f"{of}: {what}", value, "tokens", peer="the model's most", peer_value=TEXT_TOKENS,
            higher_is_better=False)
        for what, value in found.items()
    ]  # fmt: skip


def mean_read(table: list[Row], name: str) -> float:
    """Return the mean as read of the captions kept as `name`."""
    ends = f"captions ({name}): {MEAN}"
    found = next((entry for entry in table if entry["metric"].endswith(ends)), None)
    if found is None:
        raise SystemExit(f"no captions are kept as {name}; name others, or count them with --keep.")
    return float(found["value"])


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("tokenizer", metavar="TOKENIZER")
    arguments.add_argument("tables", nargs="+", metavar="NAME=FILE")
    arguments.add_argument("--keep", action="store_true", help="keep the figures in benchmarks/results")
    given = arguments.parse_args()
    counted = t5_tokens.score(given.tokenizer)
    rows = []
    for table in given.tables:
        name, _, path = table.partition("=")
        rows += rows_of(name, counted.measure(captions_of(Path(path)))[t5_tokens.COLUMN])
    if given.keep:
        keep("caption_lengths", rows)
    else:
        print(as_table(rows))


if __name__ == "__main__":
    main()
