"""A rank that trains; from the third on, its steps never end if HANGS is 1.

The file PIDS/<its process id> is there before the training begins.
"""

import os
import sys
import time
from itertools import count
from pathlib import Path

from trainer import train
from trainer.__main__ import main
from trainer.training.step import train_step


def run() -> int:
    numbers = count(1)

    def step(*arguments, **more):  # type: ignore[no-untyped-def]
        hangs = next(numbers) > 2 and os.environ["HANGS"] == "1"
        while hangs:
            time.sleep(0.1)
        return train_step(*arguments, **more)

    train.train_step = step
    Path(os.environ["PIDS"], str(os.getpid())).touch()
    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(run())
