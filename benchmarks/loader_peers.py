"""Loaders compared by `benchmarks/loader.py`: same frames, clips and worker count.

    python benchmarks/loader_peers.py NAME FOLDER SHAPE WORKERS

SHAPE is FRAMESxHEIGHTxWIDTH. FOLDER is what `loader.py` made: shards, the clips as files, `wanted-SHAPE.json`
(clip → first frame, and its times and key frame) and what a peer's own format needs. Batches of 4 clips of
uint8 (B, T, H, W, 3). After two batches, when its workers are up and busy, a contender reads as many clips
as there are, and prints seconds, CPU seconds of all its processes, and clips. One whose library is not there
says so. Every one is written as its own documentation does it, decodes no frame behind the last wanted one,
and begins at a key frame where its library can.
"""

import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

BATCH = 4
WARM = 2  # batches before the clock starts: the workers are up and busy then


def cpu_seconds_of_tree() -> float:
    """Return the CPU time of this process, its living descendants and those it has waited for."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    tree = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= more
    return sum(ticks[pid] for pid in tree) / os.sysconf("SC_CLK_TCK")


class Job:
    """What is to be read, and how large."""

    def __init__(self, folder: Path, shape: str, workers: int) -> None:
        self.folder, self.workers = folder, workers
        self.frames, self.height, self.width = map(int, shape.split("x"))
        self.bytes = self.frames * self.height * self.width * 3
        self.wanted: dict[str, Any] = json.loads((folder / f"wanted-{shape}.json").read_text())

    def range_of(self, key: str) -> range:
        first = self.wanted[key]["first"]
        return range(first, first + self.frames)

    def file_of(self, key: str) -> Path:
        return self.folder / "videos" / self.wanted[key]["file"]

    def covering(self, height: int, width: int) -> tuple[int, int]:
        """Return the (height, width) to which a picture is scaled so that it covers the shape."""
        scale = max(self.height / height, self.width / width)
        return max(self.height, math.ceil(height * scale)), max(self.width, math.ceil(width * scale))

    def cut(self, frames: Any) -> Any:
        """Return the middle of frames (…, H, W, 3)."""
        top, left = (frames.shape[-3] - self.height) // 2, (frames.shape[-2] - self.width) // 2
        return frames[..., top : top + self.height, left : left + self.width, :]


def pyav_as_users_write_it(data: bytes, job: Job, key: str) -> Any:
    """Decode until the window ends, convert each wanted frame at full size, resize with torch, cut."""
    import av
    import torch

    wanted, kept = job.range_of(key), []
    with av.open(io.BytesIO(data)) as container:
        for number, frame in enumerate(container.decode(video=0)):
            if number in wanted:
                kept.append(torch.from_numpy(frame.to_ndarray(format="rgb24")))
            if number == wanted[-1]:
                break
    frames = torch.stack(kept).permute(0, 3, 1, 2)
    size = job.covering(*frames.shape[2:])
    small = torch.nn.functional.interpolate(frames, size=size, mode="bilinear", antialias=True)
    return job.cut(small.permute(0, 2, 3, 1)).contiguous()


def _torch_loader(dataset: Any, job: Job, **more: Any) -> Iterator[Any]:
    import torch

    torch.set_num_threads(1)
    yield from torch.utils.data.DataLoader(dataset, num_workers=job.workers, **more)


def webdataset(job: Job) -> Iterator[Any]:
    import webdataset as wds

    shards = sorted(str(path) for path in (job.folder / "shards").glob("*.tar"))

    def decode(sample: dict[str, Any]) -> Any:
        return (pyav_as_users_write_it(sample["mp4"], job, sample["__key__"]),)

    urls = wds.WebDataset(shards, shardshuffle=False, workersplitter=wds.split_by_worker, empty_check=False)
    batches = urls.map(decode).repeat(3).batched(BATCH)
    yield from (batch[0] for batch in _torch_loader(batches, job, batch_size=None))


def streaming(job: Job) -> Iterator[Any]:
    import streaming as mosaic

    class Clips(mosaic.StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, at: Any) -> Any:
            sample = super().__getitem__(at)
            return pyav_as_users_write_it(sample["mp4"], job, sample["key"])

    folder = job.folder / "mds"
    if not folder.exists():
        with mosaic.MDSWriter(out=str(folder), columns={"key": "str", "mp4": "bytes"}) as writer:
            for key in job.wanted:
                writer.write({"key": key, "mp4": job.file_of(key).read_bytes()})
    dataset = Clips(local=str(folder), batch_size=BATCH, shuffle=False)
    for _ in range(3):
        yield from _torch_loader(dataset, job, batch_size=BATCH)


def energon(job: Job) -> Iterator[Any]:
    import torch
    from megatron import energon

    @energon.edataclass
    class Clip(energon.Sample):  # type: ignore[misc]
        frames: torch.Tensor

    @energon.stateless
    def cook(sample: dict[str, Any]) -> Any:
        key = sample["__key__"].rpartition("/")[2]
        known, wanted = job.wanted[key], job.range_of(key)
        height, width = job.covering(known["height"], known["width"])
        found = sample["mp4"].get_clips(
            video_clip_ranges=[(wanted[0], wanted[-1])],
            video_unit="frames",
            video_out_frame_size=(width, height),
        )
        frames = job.cut(found.video_clips[0].permute(0, 2, 3, 1)).contiguous()
        return Clip(**energon.basic_sample_keys(sample), frames=frames)

    class Encoder(energon.DefaultTaskEncoder):  # type: ignore[misc]
        decoder = energon.SampleDecoder(av_decode="AVDecoder")
        cookers = (energon.Cooker(cook),)

        def batch(self, samples: Any) -> Any:
            return torch.stack([sample.frames for sample in samples])

    config = energon.WorkerConfig(rank=0, world_size=1, num_workers=job.workers)
    dataset = energon.get_train_dataset(
        job.folder / "shards",
        worker_config=config,
        batch_size=BATCH,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=Encoder(),
    )
    yield from energon.get_loader(dataset)


class _Files:
    """A map-style dataset over the clips as files, three times over."""

    def __init__(self, job: Job, read: Callable[[Job, str], Any]) -> None:
        self.job, self.read, self.keys = job, read, list(job.wanted)

    def __len__(self) -> int:
        return 3 * len(self.keys)

    def __getitem__(self, number: int) -> Any:
        return self.read(self.job, self.keys[number % len(self.keys)])


def _torchcodec_read(job: Job, key: str) -> Any:
    from torchcodec.decoders import VideoDecoder
    from torchcodec.transforms import CenterCrop, Resize

    known, wanted = job.wanted[key], job.range_of(key)
    size = job.covering(known["height"], known["width"])
    decoder = VideoDecoder(
        str(job.file_of(key)),
        dimension_order="NHWC",
        num_ffmpeg_threads=1,
        transforms=[Resize(size), CenterCrop((job.height, job.width))],
    )
    return decoder.get_frames_in_range(wanted[0], wanted[-1] + 1).data


def _decord_read(job: Job, key: str) -> Any:
    import decord
    import torch

    known = job.wanted[key]
    height, width = job.covering(known["height"], known["width"])
    reader = decord.VideoReader(str(job.file_of(key)), width=width, height=height, num_threads=1)
    return torch.from_numpy(job.cut(reader.get_batch(list(job.range_of(key))).asnumpy()).copy())


def torchcodec(job: Job) -> Iterator[Any]:
    import torchcodec.transforms  # noqa: F401 - says at once whether it is there

    yield from _torch_loader(_Files(job, _torchcodec_read), job, batch_size=BATCH)


def decord(job: Job) -> Iterator[Any]:
    import decord  # noqa: F401 - says at once whether it is there

    yield from _torch_loader(_Files(job, _decord_read), job, batch_size=BATCH)


def _bare_read(job: Job, key: str, *, is_scaled: bool) -> Any:
    """Decode from the key frame to the last wanted frame, and no more: FFmpeg's own time."""
    import av
    from av.video.reformatter import Interpolation

    known, left = job.wanted[key], set(job.wanted[key]["times"])
    size = job.covering(known["height"], known["width"])
    kept = []
    with av.open(str(job.file_of(key))) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count, stream.codec_context.thread_type = 1, "NONE"
        if known["key_time"] is not None:
            container.seek(known["key_time"], stream=stream)
        for frame in container.decode(stream):
            if frame.pts in left:
                left.remove(frame.pts)
                if is_scaled:
                    area = {"interpolation": Interpolation.AREA, "threads": 1}
                    picture = frame.reformat(width=size[1], height=size[0], format="rgb24", **area)
                    kept.append(job.cut(picture.to_ndarray()))
                if not left:
                    break
    return np.stack(kept) if is_scaled else np.zeros(1, dtype=np.uint8)


def _bare(job: Job, *, is_scaled: bool) -> Iterator[Any]:
    """Share the clips out between processes that do nothing but decode and say that they have."""
    import multiprocessing

    context = multiprocessing.get_context("fork")
    keys = list(job.wanted) * 3
    done, taken = context.SimpleQueue(), context.Value("i", 0)

    def work() -> None:
        while True:
            with taken.get_lock():
                number = taken.value
                taken.value += 1
            if number >= len(keys):
                return
            _bare_read(job, keys[number], is_scaled=is_scaled)
            done.put(number)

    workers = [context.Process(target=work, daemon=True) for _ in range(job.workers)]
    for worker in workers:
        worker.start()
    for _ in range(len(keys) // BATCH):
        yield [done.get() for _ in range(BATCH)]


def bare_decode(job: Job) -> Iterator[Any]:
    yield from _bare(job, is_scaled=False)


def bare_decode_and_scale(job: Job) -> Iterator[Any]:
    yield from _bare(job, is_scaled=True)


def vidcurate(job: Job) -> Iterator[Any]:
    """Warm up with the last clips of pass 0 and read pass 1, whose frames are those of `wanted`."""
    from loader import plan_of

    from vidcurate.loader.loader import Loader
    from vidcurate.loader.spec import LoaderSpec
    from vidcurate.shards.index import read_index

    index = read_index(job.folder / "shards")
    plan = plan_of(index, job.frames, job.height, job.width)
    ahead = 2 * job.workers * BATCH * job.bytes  # as torch's DataLoader has it
    spec = LoaderSpec(num_workers=job.workers, prefetch_bytes=ahead)
    with Loader(index, plan, spec) as loader:
        batches = len(job.wanted) // BATCH
        for step in range(batches - WARM, 2 * batches + WARM):
            for batch in loader.step(step):
                yield batch.frames


CONTENDERS: dict[str, Callable[[Job], Iterator[Any]]] = {
    "vidcurate": vidcurate,
    "webdataset + PyAV": webdataset,
    "mosaicml-streaming + PyAV": streaming,
    "Megatron-Energon": energon,
    "torchcodec": torchcodec,
    "decord": decord,
    "bare decode and scale": bare_decode_and_scale,
    "bare decode": bare_decode,
}


def main() -> None:
    name, folder, shape, workers = sys.argv[1:]
    job = Job(Path(folder), shape, int(workers))
    num_clips = len(job.wanted)
    is_bare = name.startswith("bare")
    try:
        batches = CONTENDERS[name](job)
        for _ in range(WARM):
            batch = next(batches)
            assert is_bare or (math.prod(batch.shape) == BATCH * job.bytes and batch.shape[-1] == 3), (
                batch.shape
            )
    except (ImportError, RuntimeError, OSError) as error:  # RuntimeError: of a worker, or of a shared library
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        print(json.dumps({"absent": reason}), flush=True)
        os._exit(0)
    cpu, start = cpu_seconds_of_tree(), perf_counter()
    for _ in range(num_clips // BATCH):
        next(batches)
    seconds, cpu = perf_counter() - start, cpu_seconds_of_tree() - cpu
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu, "clips": num_clips}), flush=True)
    os._exit(0)  # workers that are still reading ahead are not waited for


if __name__ == "__main__":
    main()
