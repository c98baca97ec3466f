"""`python -m vidcurate` is `vidcurate`."""

from vidcurate.cli import main

main()
