"""Node status: GPUs and their processes, runs, load, disks and network."""

import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainer.cluster.node import facts, processes
from trainer.health import gpu as health_gpu
from trainer.health.watch import heartbeat

SMI_SHARE = 0.8  # of the whole limit, for nvidia-smi


def answers(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the one document. `request`: runs (folders), seconds (between two readings of the counters)."""
    began, ports, ticks = time.monotonic(), facts.ports(), facts.cpu_ticks()
    gpus = health_gpu.read_gpus(request["limit_seconds"] * SMI_SHARE)
    time.sleep(max(0.0, request["seconds"] - (time.monotonic() - began)))
    seconds = time.monotonic() - began
    network = facts.port_rates(ports, facts.ports(), seconds)
    worked, all_ticks = (after - before for after, before in zip(facts.cpu_ticks(), ticks, strict=True))
    folders = [Path(run) for run in request["runs"]]
    recorded = [record for run in folders for record in processes.records(run)]
    all_of = processes.everything()
    trained = processes.trainings(all_of, recorded)
    yield {
        "seconds": round(seconds, 3),
        "machine": facts.machine(folders or [Path.cwd()]),
        "cpu_percent": round(100 * worked / all_ticks, 1) if all_ticks else None,
        "driver": gpus.driver,
        "gpu_problem": gpus.problem,
        "gpus": [_gpu(gpu, all_of, trained) for gpu in gpus.gpus],
        "runs": _runs(all_of, trained),
        "network": network,
    }


def _gpu(
    gpu: health_gpu.Gpu, all_of: dict[int, processes.Process], trained: dict[int, dict[str, Any]]
) -> dict[str, Any]:
    """Return a GPU's facts, its processes with their command, run and rank if known."""
    people = []
    for process in gpu.processes:
        seen = all_of.get(process.pid)
        named = trained.get(process.pid, {"run": None, "rank": None, "worker_of": None})
        people.append(asdict(process) | {"command": seen.command if seen else None} | named)
    return asdict(gpu) | {"processes": people}


def _runs(all_of: dict[int, processes.Process], trained: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one line per rank that runs here, with its number of children."""
    lines = []
    for pid, named in sorted(trained.items()):
        if named["worker_of"] is None:
            workers = sum(other["worker_of"] == pid for other in trained.values())
            process = all_of[pid]
            beat = heartbeat.read_heartbeat(Path(named["run"])).get(named["rank"], {})
            lines.append(
                {"run": named["run"], "rank": named["rank"], "pid": pid, "user": process.user}
                | {"state": process.state, "num_workers": workers, "command": process.command}
                | {"step": beat.get("step"), "phase": beat.get("phase")}
                | {"seconds_since_beat": time.time() - beat["time"] if beat else None}
                | {"seconds_since_progress": beat.get("seconds_since_progress")}
            )
    return lines
