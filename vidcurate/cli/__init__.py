"""Command line `vidcurate`: one command per stage.

`main.main` is the entry point; the other files define commands. They parse, call a stage and print.
"""
