"""docs/shards.md: its code runs, and its tables are those of the code."""

import re
from pathlib import Path

import pyarrow as pa
import pytest

from tests.shard_runs import build, make_run, rows
from vidcurate.media.transcode import TranscodeSpec
from vidcurate.shards import index_file
from vidcurate.shards import manifest as shards_manifest
from vidcurate.shards.layout import ShardSpec

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "shards.md").read_text(encoding="utf-8")
ARROW = {
    "string": "string",
    "large_string": "string",
    "large_binary": "binary",
    "double": "double",
    "fixed_size_binary[16]": "16 bytes",
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    make_run(tmp_path, rows())
    build(tmp_path, ShardSpec())
    return tmp_path


@pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO")  # webdataset leaves shards open
def test_its_code_runs(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    assert len(code) == 4
    assert [number for number, block in enumerate(code) if "load_dataset" in block] == [3]
    reported = []
    for block in code[:3]:  # the last is held by tests/vidcurate/curation/publish/test_datasets.py
        block = block.replace("RUN/shards", str(run / "shards")).replace('"RUN"', repr(str(run / "run")))
        exec(compile(block, "docs/shards.md", "exec"), {})
        reported.append(capsys.readouterr().out.splitlines())
    written = [row for row in rows() if (row["fold"], row["level"]) == ("train", 1)]
    assert len(reported[0]) == len(written) > 0
    assert reported[1] == ["36 2 caption 10 – ünï ☂ 870 29.97"]
    assert reported[2] == ["{}", "{} {}", "{'caption': 'caption 10 – ünï ☂'}"]


def test_its_columns_are_those_of_the_index() -> None:
    section = PAGE[PAGE.index("## index.parquet") : PAGE.index("## manifest.json")]
    shown = re.findall(r"^\| `(\w+)` \| ([\w ]+) \| (.*) \|$", section, flags=re.M)
    expected = []
    for name, (dtype, meaning) in index_file.COLUMNS.items():
        plain = dtype.value_type if pa.types.is_dictionary(dtype) else dtype
        expected.append((name, ARROW.get(str(plain), str(plain)), meaning))
    assert shown == expected


def test_its_settings_are_those_of_the_code() -> None:
    fields = set(ShardSpec.model_fields) - {"transcode"}
    fields |= {f"transcode.{name}" for name in TranscodeSpec.model_fields}
    table = PAGE[PAGE.index("| setting |") : PAGE.index("Without a split")]
    assert set(re.findall(r"^\| `([\w.]+)` \|", table, flags=re.M)) == fields


def test_its_keys_are_those_of_the_manifest(run: Path) -> None:
    manifest = shards_manifest.read_manifest(run / "shards")
    assert manifest is not None
    section = PAGE[PAGE.index("## manifest.json") :]
    for name in [*manifest, *manifest["totals"]]:
        assert f"`{name}`" in section, name
