"""What every test may use: small real videos whose content is known, and a fresh interpreter."""

import gc
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from numpy.typing import NDArray

from tests import skips
from tests.forked_runs import Forks
from tests.temporary_folder import TemporaryFolder
from trainer.cluster.launch import connection
from vidcurate.media import encode

# Hundreds of modules are loaded to collect the tests, and nothing of them is garbage: to look for it is a
# third of the time.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


TEMPORARY = pytest.StashKey[TemporaryFolder]()
FAILED = pytest.StashKey[bool]()

# A script starts what it leaves in the background deaf to SIGINT, and so would be every process started here.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gpu", action="store_true", help="let the tests see this machine's GPU")
    skips.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs unless asked for, so that the tests are the same ones on every machine.

    Both are read later: by CUDA at its first call, by Triton where a kernel is defined.
    """
    skips.register(config)
    if config.getoption("basetemp") is None:  # an xdist worker is given its folder
        config.stash[TEMPORARY] = TemporaryFolder()
    if not config.getoption("--gpu"):
        os.environ |= {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1"}
    elif not os.path.exists("/dev/nvidia0"):
        raise pytest.UsageError("--gpu: this machine has no /dev/nvidia0; leave it out, and the CPU does.")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[FAILED] = exitstatus != pytest.ExitCode.OK


def pytest_unconfigure(config: pytest.Config) -> None:
    if folder := config.stash.get(TEMPORARY, None):
        folder.close(keep=config.stash.get(FAILED, True))


# A busy machine may be slow, and no test is about how long an example takes. The examples are the same each
# time, so that what fails once fails again; `HYPOTHESIS_PROFILE=search make test` looks for others.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("search"), derandomize=True, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

SHARED = Path(__file__).resolve().parents[1].parent / "shared"

Frames = NDArray[np.uint8]


@pytest.fixture(autouse=True)
def same_chance() -> None:
    """Seed the random numbers, so that a test's draws do not depend on earlier tests."""
    random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real clips and reference tensors beside the checkout; skips where it is not there."""
    if not SHARED.is_dir():
        pytest.skip("no folder `shared` beside the checkout: the tests' own videos cover the same ground")
    return SHARED


def moving_square(num_frames: int = 24, height: int = 64, width: int = 96) -> Frames:
    """Return frames (T, H, W, 3) of a white square on a grey ramp; the corner of frame t is 8·t."""
    frames = np.empty((num_frames, height, width, 3), dtype=np.uint8)
    frames[:] = np.linspace(40, 120, width, dtype=np.uint8)[None, None, :, None]
    for number in range(num_frames):
        left = 2 * number % (width - 16)
        frames[number, height // 2 - 8 : height // 2 + 8, left : left + 16] = 255
        frames[number, :16, :16] = 8 * number % 256
    return frames


@pytest.fixture(scope="session")
def make_video(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that writes a small video and gives its path; equal calls give one file."""
    folder = tmp_path_factory.mktemp("videos")
    made: dict[str, Path] = {}

    def make(
        name: str = "clip.mp4", num_frames: int = 24, height: int = 64, width: int = 96, **options
    ) -> Path:  # type: ignore[no-untyped-def]
        key = f"{name}-{num_frames}-{height}-{width}-{sorted(options.items())}"
        if key not in made:
            path = folder / str(len(made)) / name
            path.parent.mkdir()
            options.setdefault("fps", 24.0)
            encode.write_video(path, moving_square(num_frames, height, width), **options)
            made[key] = path
        return made[key]

    return make


@pytest.fixture(scope="session")
def run_python() -> Callable[[str], str]:
    """Return a function that runs code in a fresh interpreter and gives what it printed."""

    def run(code: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=600
        ).stdout

    return run


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """The process that has loaded torch once, and from which training runs are forked."""
    with Forks(tmp_path_factory.mktemp("said")) as forks:
        yield forks


@pytest.fixture
def forked_agents(forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents that find torch loaded; those of a launch that is a process of its own begin as everywhere."""
    monkeypatch.setattr(connection, "AGENT", [*forks.python(), "trainer.cluster.launch.launch_agent"])
