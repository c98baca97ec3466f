"""A program `nvidia-smi` for a folder on PATH: it prints what a driver prints, complains, or hangs."""

from collections.abc import Mapping
from pathlib import Path

FIELDS = {
    "remap_pending": "No",
    "remap_failure": "No",
    "reset": "No",
    "uncorrected": "0",
    "hw_slowdown": "Not Active",
    "width": "16x",
    "power": "123.45 W",
    "temperature": "41 C",
    "processes": "",
}
# The layout of nvidia-smi -q -x of drivers 535 to 580, without the parts that nothing here reads.
GPU = """\
\t<gpu id="0000000{index}:41:00.0">
\t\t<product_name>NVIDIA H200</product_name>
\t\t<product_brand>NVIDIA</product_brand>
\t\t<mig_mode>
\t\t\t<current_mig>Disabled</current_mig>
\t\t\t<pending_mig>Disabled</pending_mig>
\t\t</mig_mode>
\t\t<mig_devices>
\t\t\tNone
\t\t</mig_devices>
\t\t<uuid>GPU-00000000-0000-0000-0000-00000000000{index}</uuid>
\t\t<gpu_reset_status>
\t\t\t<reset_required>{reset}</reset_required>
\t\t\t<drain_and_reset_recommended>N/A</drain_and_reset_recommended>
\t\t</gpu_reset_status>
\t\t<pci>
\t\t\t<pci_bus_id>0000000{index}:41:00.0</pci_bus_id>
\t\t\t<pci_gpu_link_info>
\t\t\t\t<pcie_gen>
\t\t\t\t\t<max_link_gen>5</max_link_gen>
\t\t\t\t\t<current_link_gen>1</current_link_gen>
\t\t\t\t</pcie_gen>
\t\t\t\t<link_widths>
\t\t\t\t\t<max_link_width>16x</max_link_width>
\t\t\t\t\t<current_link_width>{width}</current_link_width>
\t\t\t\t</link_widths>
\t\t\t</pci_gpu_link_info>
\t\t</pci>
\t\t<fan_speed>N/A</fan_speed>
\t\t<clocks_event_reasons>
\t\t\t<clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>
\t\t\t<clocks_event_reason_sw_power_cap>Not Active</clocks_event_reason_sw_power_cap>
\t\t\t<clocks_event_reason_hw_slowdown>{hw_slowdown}</clocks_event_reason_hw_slowdown>
\t\t</clocks_event_reasons>
\t\t<fb_memory_usage>
\t\t\t<total>143771 MiB</total>
\t\t\t<reserved>620 MiB</reserved>
\t\t\t<used>4 MiB</used>
\t\t\t<free>143148 MiB</free>
\t\t</fb_memory_usage>
\t\t<utilization>
\t\t\t<gpu_util>7 %</gpu_util>
\t\t\t<memory_util>0 %</memory_util>
\t\t\t<jpeg_util>N/A</jpeg_util>
\t\t</utilization>
\t\t<ecc_errors>
\t\t\t<volatile>
\t\t\t\t<sram_correctable>1</sram_correctable>
\t\t\t\t<sram_uncorrectable_parity>0</sram_uncorrectable_parity>
\t\t\t\t<sram_uncorrectable_secded>0</sram_uncorrectable_secded>
\t\t\t\t<dram_correctable>2</dram_correctable>
\t\t\t\t<dram_uncorrectable>{uncorrected}</dram_uncorrectable>
\t\t\t</volatile>
\t\t\t<aggregate>
\t\t\t\t<sram_correctable>9</sram_correctable>
\t\t\t\t<sram_uncorrectable_parity>0</sram_uncorrectable_parity>
\t\t\t\t<dram_uncorrectable>3</dram_uncorrectable>
\t\t\t\t<sram_threshold_exceeded>No</sram_threshold_exceeded>
\t\t\t</aggregate>
\t\t</ecc_errors>
\t\t<remapped_rows>
\t\t\t<remapped_row_corr>0</remapped_row_corr>
\t\t\t<remapped_row_unc>1</remapped_row_unc>
\t\t\t<remapped_row_pending>{remap_pending}</remapped_row_pending>
\t\t\t<remapped_row_failure>{remap_failure}</remapped_row_failure>
\t\t</remapped_rows>
\t\t<temperature>
\t\t\t<gpu_temp>{temperature}</gpu_temp>
\t\t\t<memory_temp>N/A</memory_temp>
\t\t</temperature>
\t\t<gpu_power_readings>
\t\t\t<power_state>P0</power_state>
\t\t\t<power_draw>{power}</power_draw>
\t\t\t<current_power_limit>700.00 W</current_power_limit>
\t\t</gpu_power_readings>
\t\t<module_power_readings>
\t\t\t<power_draw>[N/A]</power_draw>
\t\t</module_power_readings>
\t\t<clocks>
\t\t\t<graphics_clock>345 MHz</graphics_clock>
\t\t\t<sm_clock>345 MHz</sm_clock>
\t\t</clocks>
\t\t<max_clocks>
\t\t\t<sm_clock>1980 MHz</sm_clock>
\t\t</max_clocks>
\t\t<processes>
{processes}\t\t</processes>
\t</gpu>
"""
PROCESS = """\
\t\t\t<process_info>
\t\t\t\t<gpu_instance_id>N/A</gpu_instance_id>
\t\t\t\t<pid>{pid}</pid>
\t\t\t\t<type>C</type>
\t\t\t\t<process_name>{name}</process_name>
\t\t\t\t<used_memory>{memory}</used_memory>
\t\t\t</process_info>
"""


def process(pid: int, name: str = "python", memory: str = "1024 MiB") -> str:
    return PROCESS.format(pid=pid, name=name, memory=memory)


def xml(*gpus: Mapping[str, str]) -> str:
    """Return what `nvidia-smi -q -x` prints of GPUs that differ from healthy ones in the given fields."""
    body = "".join(GPU.format(index=index, **(FIELDS | dict(gpu))) for index, gpu in enumerate(gpus))
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n<nvidia_smi_log>\n'
        "\t<timestamp>Sun Nov 22 02:00:00 2026</timestamp>\n\t<driver_version>580.159.04</driver_version>\n"
        f"\t<cuda_version>13.0</cuda_version>\n\t<attached_gpus>{len(gpus)}</attached_gpus>\n{body}"
        "</nvidia_smi_log>\n"
    )


def put(folder: Path, name: str, script: str) -> Path:
    """Write a shell program `name` into `folder`; return the folder, for PATH."""
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return folder


def put_smi(folder: Path, *gpus: Mapping[str, str]) -> Path:
    """Write an `nvidia-smi` that knows these GPUs into `folder`; return the folder."""
    folder.mkdir(exist_ok=True)
    (folder / "smi.xml").write_text(xml(*gpus))
    return put(folder, "nvidia-smi", f"cat {folder}/smi.xml")


def put_dmesg(folder: Path, *lines: str) -> Path:
    """Write a `dmesg` that prints these lines into `folder`; return the folder."""
    folder.mkdir(exist_ok=True)
    (folder / "dmesg.txt").write_text("".join(f"{line}\n" for line in lines))
    return put(folder, "dmesg", f"cat {folder}/dmesg.txt")
