"""The look of the run report: that of the curation's report, with its names."""
# ruff: noqa: E501

STYLE = """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; padding: 2.5rem 1.5rem 5rem; max-width: 74rem; background: var(--paper); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .5rem; font-weight: 650; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 3rem 0 .5rem; font-weight: 650; } h3 { font-size: .95rem; margin: .6rem 0 .35rem; font-weight: 600; }
p { margin: .35rem 0 1rem; max-width: 46rem; } a { color: var(--ink-0); } .soft { color: var(--soft); font-weight: 400; }
code { font: .87em/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
nav { margin: 1.5rem 0 0; display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; font-size: .92rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .75rem; margin: 1rem 0 0; padding: 0; }
.tile, .panel { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.tile { padding: .8rem 1rem .75rem; } .tile dt { color: var(--soft); font-size: .85rem; }
.tile dd { margin: 0; font-size: 1.3rem; line-height: 1.3; font-weight: 600; font-variant-numeric: tabular-nums; }
.tile dd small { font-size: .8rem; font-weight: 400; color: var(--soft); }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(26rem, 100%), 1fr)); gap: .9rem; margin-top: 1rem; }
.panel { padding: .9rem 1rem .7rem; min-width: 0; }
svg { display: block; width: 100%; height: auto; } svg.life { height: 26px; border-radius: 6px; margin: .6rem 0 .4rem; }
svg.times { height: 54px; margin: 0 0 .8rem; overflow: visible; } svg.times .attempt { fill: var(--soft); opacity: .55; }
svg.life rect { stroke: none; } .part-idle { fill: var(--line); background: var(--line); } .part-other { fill: var(--soft); background: var(--soft); }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: .85rem; color: var(--soft); margin: .3rem 0 .7rem; max-width: none; }
.key { display: inline-block; width: .75em; height: .75em; border-radius: 2px; margin-right: .4em; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 10px; background: var(--card); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .45rem .8rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
tbody tr:last-child > * { border-bottom: 0; } thead th { color: var(--soft); font-weight: 500; font-size: .85rem; white-space: nowrap; }
tbody th { font-weight: 400; } .n { text-align: right; white-space: nowrap; }
tr:target > * { background: var(--well); box-shadow: inset 0 1px var(--ink-0), inset 0 -1px var(--ink-0); }
details { margin-top: .2rem; } summary { cursor: pointer; color: var(--soft); }
dl { margin: .3rem 0; } td dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem .8rem; font-size: .86rem; }
td dt { color: var(--soft); } td dd { margin: 0; overflow-wrap: anywhere; }
video { display: block; height: 7rem; border-radius: 4px; background: #000; image-rendering: pixelated; }
.key.dot { border-radius: 50%; } td details { margin: 0; min-width: 15rem; overflow-wrap: anywhere; } #events tbody th { white-space: nowrap; }
@media (max-width: 40rem) { .panel svg text { font-size: 18px; } .moment { display: none; } body { padding: 1.5rem 1rem 3rem; } th, td { padding: .4rem .55rem; } }
@media print { .panel, tr { break-inside: avoid; } nav { display: none; } }
"""
