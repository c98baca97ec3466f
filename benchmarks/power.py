"""GPU clock and power during a measurement: at the power limit the clock falls."""

import statistics
import threading
from types import TracebackType
from typing import Any, Self

import torch

INTERVAL_SECONDS = 0.05


class Meter:
    """Samples of torch's current device from `with` to its end: `sm_mhz` and `watts` are their medians then.

    `most_mhz` is the clock that the device may reach, `most_watts` the power that it may draw.
    """

    def __init__(self) -> None:
        import pynvml  # of the extra `bench`, which a machine without a GPU does not need

        self._pynvml: Any = pynvml
        pynvml.nvmlInit()
        # By its number it would be another one under CUDA_VISIBLE_DEVICES.
        own = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
        self._device: Any = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{own}")
        self.most_mhz = float(pynvml.nvmlDeviceGetMaxClockInfo(self._device, self._pynvml.NVML_CLOCK_SM))
        self.most_watts = pynvml.nvmlDeviceGetPowerManagementLimit(self._device) / 1000
        self.sm_mhz = self.watts = 0.0
        self._clocks: list[float] = []
        self._powers: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        while not self._over.wait(INTERVAL_SECONDS):
            self._clocks.append(self._pynvml.nvmlDeviceGetClockInfo(self._device, self._pynvml.NVML_CLOCK_SM))
            self._powers.append(self._pynvml.nvmlDeviceGetPowerUsage(self._device) / 1000)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._clocks:
            self.sm_mhz, self.watts = statistics.median(self._clocks), statistics.median(self._powers)
