"""Experiment: several runs of one recipe, compared.

`command` is `python -m trainer experiment`; `arms` plans the runs, `results` reads them, `page` writes table
and plot.
"""
