"""`python -m vidcurate` is `vidcurate`."""

from vidcurate.cli.main import main

main()
