"""Checkpoint time: seconds and GB/s of a save and a load, and the training's stall.

    python benchmarks/checkpoint.py [--size XL/2] [--folder FOLDER] [--repeats 3] [--keep]
    torchrun --nproc-per-node 2 benchmarks/checkpoint.py --sharding full

The state is that of a real run (weights, average, both moments, float32) with random values, laid over the
ranks as training lays it. Measured are a save at once, one in the background (its stall is what the training
loop waits for: the checksums; the first one also pins the memory), and a load with all checks. Peers:
`torch.save` and `torch.load` of the same tensors by one process, flushed to disk, without hashes; and the
copy of a file of that size. `--size small` is for a CPU. The files of a load are in the page cache unless
--cold drops them.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import torch
from rows import card, cpu, keep, row

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from trainer.distributed import mesh, parallelize
from trainer.distributed.mesh import World
from trainer.distributed.spec import ParallelSpec
from trainer.model.stdit import GIANT_3B_2, XL_2, STDiT3, STDiT3Config
from trainer.run_folder import layout as run_folder_layout
from trainer.run_folder.checkpoint import checkpoint, checksum, parts
from trainer.run_folder.checkpoint.async_save import AsyncSaver
from trainer.training.optim import adamw, ema

SIZES = {
    "small": STDiT3Config(hidden_size=384, depth=4, num_heads=6),
    "XL/2": XL_2,
    "3B/2": GIANT_3B_2,
}
Parts = dict[str, dict[str, torch.Tensor]]


def state(config: STDiT3Config, sharding: str, world: World) -> Parts:
    """Return a run's tensors with random values, laid over the ranks."""
    with torch.device("meta"):
        model = STDiT3(config)
    model.to_empty(device="cpu")
    spec = ParallelSpec.model_validate({"sharding": sharding})
    parallelize.parallelize_model(model, spec, world, torch.float32)
    for tensor in model.state_dict().values():
        mesh.local_shard(tensor).normal_()
    optimizer = adamw.make_optimizer(model)
    tensors = {
        "model": dict(model.state_dict()),
        "ema": ema.make_ema(model),
        "optimizer": adamw.moments(model, optimizer),
    }
    for tensor in tensors["optimizer"].values():
        mesh.local_shard(tensor).normal_()
    return tensors


def size_bytes(tensors: Parts) -> int:
    """Return the bytes of all tensors, each counted once, however many ranks hold it."""
    return sum(value.numel() * value.element_size() for part in tensors.values() for value in part.values())


def seconds(work: Callable[[], object], world: World) -> float:
    """Return how long the slowest rank takes."""
    if world.device.type == "cuda":
        torch.cuda.synchronize()
    mesh.all_gather(None, world)
    began = perf_counter()
    work()
    if world.device.type == "cuda":
        torch.cuda.synchronize()
    return max(mesh.all_gather(perf_counter() - began, world))


def drop_from_cache(folder: Path) -> None:
    """Ask the system to forget the pages of all files in `folder`."""
    for path in folder.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def measure(tensors: Parts, folder: Path, world: World, repeats: int, cold: bool) -> dict[str, list[float]]:
    """Return the seconds of every save and load."""
    times: dict[str, list[float]] = {"save": [], "stall": [], "written": [], "load": []}
    at_once, background = AsyncSaver(folder / "run", world), AsyncSaver(folder / "run", world)

    def reported() -> dict[str, str]:
        return {part: checksum.checksum(values) for part, values in tensors.items()}

    for number in range(repeats):
        step = 2 * number + 1
        times["save"].append(
            seconds(lambda step=step: at_once.save(step, tensors, reported, keep_last=1), world)  # type: ignore[misc]
        )
        mesh.all_gather(None, world)
        began = perf_counter()
        background.save(step + 1, tensors, reported, keep_last=1, in_background=True)
        saved = background.wait()
        assert saved is not None
        times["stall"].append(max(mesh.all_gather(saved.stall_seconds, world)))
        times["written"].append(max(mesh.all_gather(perf_counter() - began, world)))
        path = folder / "run" / run_folder_layout.folder_name(step + 1)
        if cold and world.is_first:
            drop_from_cache(path)

        def load(path: Path = path) -> None:
            checkpoint.verify(path, world=world)
            for name, values in tensors.items():
                parts.fill(values, path / name)

        times["load"].append(seconds(load, world))
    background.close()
    return times


def peers(tensors: Parts, folder: Path, repeats: int, cold: bool) -> dict[str, list[float]]:
    """Return the seconds that one process takes for torch.save, torch.load and the copy of the file."""
    times: dict[str, list[float]] = {"save": [], "load": [], "copy": []}
    file, other = folder / "peer.pt", folder / "peer-copy.pt"
    for _ in range(repeats):
        began = perf_counter()
        with file.open("wb") as stream:
            torch.save(tensors, stream)
            stream.flush()
            os.fsync(stream.fileno())
        times["save"].append(perf_counter() - began)
        began = perf_counter()
        shutil.copyfile(file, other)
        with other.open("rb") as stream:
            os.fsync(stream.fileno())
        times["copy"].append(perf_counter() - began)
        other.unlink()
        if cold:
            drop_from_cache(folder)
        began = perf_counter()
        loaded = torch.load(file, map_location="cpu", mmap=True)
        for name, part in tensors.items():
            for key, value in part.items():
                value.copy_(loaded[name][key])
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times["load"].append(perf_counter() - began)
        del loaded
        file.unlink()
    return times


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--size", choices=list(SIZES), default="XL/2")
    arguments.add_argument("--sharding", choices=["none", "full", "hybrid"], default="none")
    arguments.add_argument("--folder", type=Path, help="where to write; default: a new temporary folder")
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument(
        "--cold", action="store_true", help="drop the files from the page cache before a load"
    )
    arguments.add_argument("--keep", action="store_true", help="keep the figures in benchmarks/results")
    given = arguments.parse_args()
    world = mesh.init_process_groups()
    made = mesh.run_on_first_rank(lambda: tempfile.mkdtemp(prefix="checkpoint-", dir=given.folder), world)
    folder = Path(made)
    try:
        tensors = state(SIZES[given.size], given.sharding, world)
        gigabytes = size_bytes(tensors) / 1e9
        times = measure(tensors, folder, world, given.repeats, given.cold)
        # The peer is one process with everything in it; it cannot be asked of tensors that are cut.
        plain = tensors
        if world.size > 1 and given.sharding != "none":
            plain = state(SIZES[given.size], "none", World(rank=0, size=1, device=world.device))
        alone = mesh.run_on_first_rank(lambda: peers(plain, folder, given.repeats, given.cold), world)
        if world.is_first:
            report(given, world, gigabytes, times, alone)
    finally:
        mesh.all_gather(None, world)
        if world.is_first:
            shutil.rmtree(folder, ignore_errors=True)
        mesh.destroy_process_groups(world)


def report(
    given: argparse.Namespace,
    world: World,
    gigabytes: float,
    times: dict[str, list[float]],
    alone: dict[str, list[float]],
) -> None:
    """Print the table, and keep it where asked."""
    hardware = torch.cuda.get_device_name() if world.device.type == "cuda" else cpu()
    middle = {name: statistics.median(values) for name, values in times.items()}
    peer = {name: statistics.median(values) for name, values in alone.items()}
    what = f"{given.size}, {gigabytes:.1f} GB, {world.size} rank{'s' * (world.size > 1)}, {given.sharding}"
    rows = [
        row(
            f"{what}: {name}",
            value,
            "s",
            peer=by,
            peer_value=theirs,
            goal=goal,
            higher_is_better=False,
            hardware=hardware,
        )
        for name, value, by, theirs, goal in (
            ("save, hashed", middle["save"], "torch.save", peer["save"], ""),
            ("stall of a save in the background", middle["stall"], "torch.save", peer["save"], "<= 1 s"),
            ("first such stall (memory is pinned)", times["stall"][0], "torch.save", peer["save"], ""),
            ("save in the background, till whole", middle["written"], "torch.save", peer["save"], ""),
            ("load, hashes checked", middle["load"], "torch.load", peer["load"], ""),
        )
    ]
    rows.append(
        row(f"{what}: save", gigabytes / middle["save"], "GB/s", peer="copy of a file",
            peer_value=gigabytes / peer["copy"], hardware=hardware)
    )  # fmt: skip
    if given.keep:
        name = f"checkpoint_{world.size}x{card(hardware) if world.device.type == 'cuda' else 'cpu'}"
        keep(name.lower(), rows)
    else:
        from rows import as_table

        print(as_table(rows))


if __name__ == "__main__":
    main()
