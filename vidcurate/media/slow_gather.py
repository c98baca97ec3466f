"""Choose FFmpeg's horizontal scaler: without gather instructions where faster.

With AVX2 FFmpeg's scaler (libswscale) loads pixels by gather instructions, unless the processor's flags say
that gathers are slow. FFmpeg sets that flag for older AMD processors, but not for Zen 5, where the scaler
without gathers takes 0.9 of the time at 720p and 0.5 at 1080p; and on Intel processors the microcode against
CVE-2022-40982 slows gathers down. So `choose_scaler` tries both. Every byte of a picture is the same.

The flags are those of the whole process, and FFmpeg reads them twice while it makes a scaler: call this while
no other thread makes one.
"""

import ctypes
import platform
from collections.abc import Callable
from time import thread_time

import av._core
from av import VideoFrame
from av.video.reformatter import Interpolation, VideoReformatter

# AV_CPU_FLAG_… of libavutil/cpu.h on x86
_AVX2 = 0x8000
SLOW_GATHER = 0x2000000
_SIZE, _SCALED = (1920, 64), (426, 16)  # width, height; 50 µs
_TRIES = 8


def _library() -> ctypes.CDLL | None:
    """Return the library whose scaler has the two forms: FFmpeg as PyAV has loaded it, on x86."""
    library = ctypes.CDLL(av._core.__file__)  # its symbols are looked up in the libraries that it needs, too
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    return library if is_x86 and hasattr(library, "av_force_cpu_flags") else None


def cpu_flags() -> int:
    """Return FFmpeg's flags of the processor; 0 where there is nothing to choose."""
    library = _library()
    return int(library.av_get_cpu_flags()) if library is not None else 0


def set_cpu_flags(flags: int) -> None:
    """Set FFmpeg's flags of the processor in this process, as `ffmpeg -cpuflags` does."""
    library = _library()
    if library is not None:
        library.av_force_cpu_flags(flags)


def _seconds(flags: int) -> float:
    """Return the least CPU seconds of a few rows of 1080p, scaled under these flags."""
    set_cpu_flags(flags)
    scaler, frame = VideoReformatter(), VideoFrame(*_SIZE, "yuv420p")
    width, height = _SCALED

    def scaled() -> float:
        start = thread_time()
        scaler.reformat(frame, width, height, interpolation=Interpolation.AREA, threads=1)
        return thread_time() - start

    return min(scaled() for _ in range(_TRIES))


def choose_scaler(seconds: Callable[[int], float] = _seconds) -> bool:
    """Set the flag for slow gathers if `seconds` of scaling are fewer with it; return whether it is set."""
    flags = cpu_flags()
    if flags & _AVX2 and not flags & SLOW_GATHER:
        without = flags | SLOW_GATHER
        set_cpu_flags(without if seconds(without) < seconds(flags) else flags)
    return bool(cpu_flags() & SLOW_GATHER)
