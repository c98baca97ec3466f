"""Run lock: one training at a time per run folder."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from trainer.distributed import mesh
from trainer.distributed.mesh import World
from vidcurate.errors import InputError
from vidcurate.storage import lock


@contextmanager
def locked(run: Path, world: World) -> Iterator[None]:
    """Create the run's folder and lock it: a second training would corrupt its files."""

    def busy(holder: str) -> InputError:
        return InputError(
            f"output {run}: another process is training into this folder. Wait for it, or stop it."
        )

    with ExitStack() as stack:

        def take() -> None:
            try:
                run.mkdir(parents=True, exist_ok=True)
                stack.enter_context(lock.exclusive(run / ".lock", wait=False, busy=busy))
            except OSError as error:
                raise InputError(f"output {run}: cannot be written ({error.strerror}).") from error

        mesh.run_on_first_rank(take, world)
        yield
