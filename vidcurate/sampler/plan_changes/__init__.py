"""Changes of data or recipe that a resumed run accepts on purpose.

`transition` continues one plan with another, `changed_stream` one cell's clips; `change_log` records and
replays changes, `plan_file` stores plans.
"""
