"""Run the CPU benchmarks named on the command line; print all kept results as a table.

python benchmarks/run.py                # the table of benchmarks/results
python benchmarks/run.py probe tables   # run these scripts first
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from rows import RESULTS, as_table

HERE = Path(__file__).parent


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("names", nargs="*", metavar="NAME", help="a script to run first, without .py")
    names = arguments.parse_args().names
    for name in names:
        if not (HERE / f"{name}.py").is_file():
            arguments.error(f"{name}: no such script in {HERE}")
    for name in names:
        print(f"-- {name}", flush=True)
        subprocess.run([sys.executable, str(HERE / f"{name}.py")], check=True)
    rows = [row for path in sorted(RESULTS.glob("*.json")) for row in json.loads(path.read_text())]
    print(as_table(rows))


if __name__ == "__main__":
    main()
