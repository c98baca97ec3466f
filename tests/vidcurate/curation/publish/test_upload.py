"""Uploads to the hub, against a fake of its calls that keeps files in a folder."""

import hashlib
import inspect
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.shard_runs import build, make_run, rows
from vidcurate.cli.main import app
from vidcurate.curation.publish import upload
from vidcurate.curation.publish.upload import push
from vidcurate.errors import InputError, ShardError, StorageError


class FolderHub:
    """Hub whose repository is a folder; `failures` are raised by the next uploads, one each."""

    def __init__(self, folder: Path, failures: list[OSError | None] | None = None) -> None:
        self.folder, self.failures, self.sent = folder, failures or [], list[str]()
        self.commits: list[tuple[str, int]] = []
        self.questions: list[int] = []

    def create_repo(self, repo_id: str, *, repo_type: str, private: bool, exist_ok: bool) -> None:
        assert (repo_type, exist_ok) == ("dataset", True)
        self.folder.mkdir(exist_ok=True)

    def get_paths_info(self, repo_id: str, paths: list[str], *, repo_type: str) -> list[Any]:
        self.questions.append(len(paths))
        return [self._info(name) for name in paths if (self.folder / name).exists()]

    def _info(self, name: str) -> Any:
        data = (self.folder / name).read_bytes()
        is_lfs = name.endswith((".tar", ".parquet"))
        lfs = SimpleNamespace(sha256=hashlib.sha256(data).hexdigest()) if is_lfs else None
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        return SimpleNamespace(path=name, size=len(data), lfs=lfs, blob_id=blob)

    def create_commit(
        self, repo_id: str, operations: list[Any], *, repo_type: str, commit_message: str
    ) -> None:
        if self.failures and (failure := self.failures.pop(0)) is not None:
            raise failure
        for added in operations:
            shutil.copy(added.path_or_fileobj, self.folder / added.path_in_repo)
            self.sent.append(added.path_in_repo)
        self.commits.append((commit_message, len(operations)))


class HTTPFailure(OSError):
    def __init__(self, status: int, retry_after: str = "") -> None:
        super().__init__(f"{status} for hf_SeCrEt0123456789")
        self.response = SimpleNamespace(status_code=status, headers={"Retry-After": retry_after})


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("push")
    make_run(folder, rows(12))
    build(folder)
    (folder / "shards" / "README.md").write_text("---\nlicense: mit\n---\n")
    return folder / "shards"


def test_all_files_arrive_and_the_manifest_last(shards: Path, tmp_path: Path) -> None:
    hub = FolderHub(tmp_path / "hub")

    summary = push(shards, "me/squares", hub=hub, is_private=True)

    assert hub.sent[-1] == "manifest.json"
    assert {path.name for path in hub.folder.iterdir()} == {path.name for path in shards.iterdir()}
    assert all((hub.folder / name).read_bytes() == (shards / name).read_bytes() for name in hub.sent)
    assert summary.num_uploaded == summary.num_files == len(hub.sent)
    assert push(shards, "me/squares", hub=hub, is_private=True).num_uploaded == 0


def test_a_killed_upload_sends_only_what_is_missing_or_other(shards: Path, tmp_path: Path) -> None:
    hub = FolderHub(tmp_path / "hub", [None, None, KeyboardInterrupt()])  # type: ignore[list-item]
    with pytest.raises(KeyboardInterrupt):
        push(shards, "me/squares", hub=hub, is_private=False, files_per_commit=1)
    before = list(hub.sent)
    damaged = hub.folder / before[0]
    damaged.write_bytes(damaged.read_bytes()[::-1])

    push(shards, "me/squares", hub=hub, is_private=False, files_per_commit=1)

    assert hub.sent[2] == before[0]
    assert before[1] not in hub.sent[2:]
    assert damaged.read_bytes() == (shards / before[0]).read_bytes()


def test_a_commit_has_many_files_as_the_hub_takes_few_commits_an_hour(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = sorted(path.name for path in shards.iterdir())
    tars = [name for name in names if name.endswith(".tar")]
    hub = FolderHub(tmp_path / "hub")

    push(shards, "me/squares", hub=hub, is_private=False)

    assert hub.commits == [(f"Add {tars[0]} and {len(names) - 1} other files", len(names))]
    assert hub.sent[-1] == "manifest.json"
    for limit, value in (
        ("_BYTES_PER_COMMIT", (shards / tars[0]).stat().st_size),
        ("_PATHS_PER_QUESTION", 2),
    ):
        monkeypatch.setattr(upload, limit, value)
    hub = FolderHub(tmp_path / "by size")
    push(shards, "me/squares", hub=hub, is_private=False)
    assert hub.commits[0] == (f"Add {tars[0]}", 1)
    assert len(hub.commits) > 1
    assert hub.questions == [2] * (len(names) // 2) + [1] * (len(names) % 2)
    assert sorted(hub.sent) == names


def test_an_hour_that_the_hub_asks_for_is_waited_and_no_more(shards: Path, tmp_path: Path) -> None:
    waits: list[float] = []
    hub = FolderHub(tmp_path / "hub", [HTTPFailure(429, "2500"), HTTPFailure(429, "1e9")])

    push(shards, "me/squares", hub=hub, is_private=False, sleep=waits.append)

    assert waits == [2500.0, 3600.0]


def test_what_may_pass_is_tried_again_as_the_server_asks(shards: Path, tmp_path: Path) -> None:
    waits: list[float] = []
    failures: list[OSError | None] = [HTTPFailure(429, "7"), HTTPFailure(503), ConnectionError("reset")]
    hub = FolderHub(tmp_path / "hub", failures)

    push(shards, "me/squares", hub=hub, is_private=False, files_per_commit=1, sleep=waits.append)

    assert waits == [7.0, 2.0, 4.0]
    assert len(hub.sent) == len({*hub.sent}) == len(list(shards.iterdir()))


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (403, InputError, "hf auth login"),
        (413, StorageError, "sends only what is missing"),
        (500, StorageError, "500"),
    ],
)
def test_what_stays_wrong_is_one_line_without_the_token(
    shards: Path, tmp_path: Path, status: int, error: type[Exception], words: str
) -> None:
    hub = FolderHub(tmp_path / "hub", [HTTPFailure(status)] * 20)

    with pytest.raises(error, match=words) as raised:
        push(shards, "me/squares", hub=hub, is_private=False, sleep=lambda seconds: None)

    assert "SeCrEt" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_hub_that_cannot_be_reached_is_one_line(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's own client, and a port where nobody listens: its error is httpx's, not an OSError."""
    from huggingface_hub import HfApi, constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    waits: list[float] = []
    with pytest.raises(StorageError, match=r"me/squares: cannot be created \(.*refused"):
        push(
            shards, "me/squares", hub=HfApi("http://127.0.0.1:9", token="hf_x"), is_private=False,
            sleep=waits.append,
        )  # fmt: skip
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0]


def test_what_is_no_whole_set_is_refused_before_anything_is_sent(shards: Path, tmp_path: Path) -> None:
    hub = FolderHub(tmp_path / "hub")
    with pytest.raises(InputError, match="USER/NAME"):
        push(shards, "../me", hub=hub, is_private=False)
    cut = tmp_path / "cut"
    shutil.copytree(shards, cut)
    tar = next(cut.glob("*.tar"))
    tar.write_bytes(tar.read_bytes()[:-600])
    with pytest.raises(ShardError, match="vidcurate verify"):
        push(cut, "me/squares", hub=hub, is_private=False)
    shutil.copy(shards / tar.name, tar)
    (cut / "README.md").unlink()
    with pytest.raises(InputError, match="vidcurate card"):
        push(cut, "me/squares", hub=hub, is_private=False)
    (tmp_path / "token").write_text("hf_SeCrEt")
    (cut / "README.md").symlink_to(tmp_path / "token")
    with pytest.raises(InputError, match=r"README\.md: is a link; it is not followed"):
        push(cut, "me/squares", hub=hub, is_private=False)
    (cut / "README.md").unlink()
    os.mkfifo(cut / "README.md")
    with pytest.raises(InputError, match="vidcurate card"):
        push(cut, "me/squares", hub=hub, is_private=False)
    assert not hub.folder.exists()


def test_a_flipped_bit_is_not_sent_and_the_set_stays_unfinished(shards: Path, tmp_path: Path) -> None:
    hub = FolderHub(tmp_path / "hub")
    copy = shutil.copytree(shards, tmp_path / "copy")
    tar = sorted(copy.glob("*.tar"))[0]
    data = bytearray(tar.read_bytes())
    data[len(data) // 2] ^= 1  # of a video: the headers that `index` reads are whole
    tar.write_bytes(data)

    with pytest.raises(ShardError, match=f"{tar.name}: is not the file that manifest.json names"):
        push(copy, "me/squares", hub=hub, is_private=False, files_per_commit=1)
    assert not {tar.name, "manifest.json"} & set(hub.sent)


def test_a_set_that_is_built_again_meanwhile_is_not_finished(shards: Path, tmp_path: Path) -> None:
    hub = FolderHub(tmp_path / "hub")
    copy = shutil.copytree(shards, tmp_path / "copy")

    def build_again(done: int, total: int, unit: str) -> None:
        if done:
            text = (copy / "manifest.json").read_text()
            (copy / "manifest.json").write_text(text + "\n")

    with pytest.raises(ShardError, match=r"built again meanwhile"):
        push(copy, "me/squares", hub=hub, is_private=False, files_per_commit=1, progress=build_again)
    assert "manifest.json" not in hub.sent


def test_the_command_sends_through_the_hubs_own_client(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    hub = FolderHub(tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    answer = CliRunner().invoke(app, ["push", str(shards), "me/squares", "--private", "--json"])
    assert answer.exit_code == 0, answer.output
    assert '"num_uploaded": ' in answer.stdout
    # The fake is called as the client can be.
    client, words = huggingface_hub.hf_api.HfApi, {"repo_id": "me/squares", "repo_type": "dataset"}
    inspect.signature(client.create_repo).bind(client, **words, private=True, exist_ok=True)
    inspect.signature(client.get_paths_info).bind(client, **words, paths=["a"])
    inspect.signature(client.create_commit).bind(client, **words, operations=[], commit_message="Add a")
