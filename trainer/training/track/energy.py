"""Energy and clock of this process's GPU, by NVML; None without GPU or NVML."""

from typing import Any

import torch


class EnergyMeter:
    """Reads the GPU's energy counter. The counter is the whole GPU's: other processes on it count too."""

    def __init__(self, device: torch.device) -> None:
        self._nvml: Any = None
        if device.type != "cuda":
            return
        try:
            import pynvml  # type: ignore[import-untyped]  # of the extra `ops`

            pynvml.nvmlInit()
            # By its number it would be another one under CUDA_VISIBLE_DEVICES.
            uuid = torch.cuda.get_device_properties(device).uuid
            self._device = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            pynvml.nvmlDeviceGetTotalEnergyConsumption(self._device)
            self._nvml = pynvml
        except Exception:  # noqa: BLE001 - of a library or a driver: the record then has no joules
            self._nvml = None

    def joules(self) -> float | None:
        """Return the energy since the driver was loaded."""
        if self._nvml is None:
            return None
        return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._device)) / 1000

    def sm_mhz(self) -> float | None:
        """Return the clock now."""
        if self._nvml is None:
            return None
        return float(self._nvml.nvmlDeviceGetClockInfo(self._device, self._nvml.NVML_CLOCK_SM))
