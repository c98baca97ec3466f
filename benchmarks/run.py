"""Run the CPU benchmarks named on the command line; print all kept results as a table.

python benchmarks/run.py                # the table of benchmarks/results
python benchmarks/run.py probe tables   # run these scripts first
"""

import json
import subprocess
import sys
from pathlib import Path

from rows import RESULTS, as_table

HERE = Path(__file__).parent


def main() -> None:
    for name in sys.argv[1:]:
        print(f"-- {name}", flush=True)
        subprocess.run([sys.executable, str(HERE / f"{name}.py")], check=True)
    rows = [row for path in sorted(RESULTS.glob("*.json")) for row in json.loads(path.read_text())]
    print(as_table(rows))


if __name__ == "__main__":
    main()
