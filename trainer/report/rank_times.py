"""Report section on predicted and measured time, per rank and bucket."""
# ruff: noqa: E501

import html
from collections.abc import Sequence

from trainer.report.balance import OFF, Balance, balance
from trainer.report.read import RunData


def section(runs: Sequence[RunData], names: Sequence[str]) -> str:
    """Return the section; "" if no run has measured its micro-batches."""
    parts = []
    for run, name in zip(runs, names, strict=True):
        found = balance(run.lines, run.events)
        if found is None:
            continue
        title = f"<h3>{html.escape(name)}</h3>" if len(runs) > 1 else ""
        parts.append(f"{title}{_summary(found)}{_buckets(found)}{_ranks(found)}{_advice(run, found)}")
    if not parts:
        return ""
    return f'<section id="ranks"><h2>Predicted and actual time</h2>{"".join(parts)}</section>'


def _summary(found: Balance) -> str:
    steps = f"Over {found.steps:,} updates"
    if found.waste_predicted is None or found.waste_measured is None:
        return f'<p class="soft">{steps}, on one rank.</p>'
    reported = "" if found.correlation is None else f" Correlation of both: {found.correlation:.2f}."
    return (
        f"<p>{steps}, {found.ranks} ranks spent {100 * found.waste_measured:.1f} % of their time waiting for the slowest of "
        f"them; by the costs it should be {100 * found.waste_predicted:.1f} %.{reported}</p>"
    )


def _figure(value: float) -> str:
    """Return a figure that no browser breaks at the hyphen of 1e-05."""
    return f'<span class="n">{value:.4g}</span>'


def _buckets(found: Balance) -> str:
    rows = "".join(
        f'<tr><th scope="row">{html.escape(one.bucket)}</th><td class="n">{one.micro_batches:,}</td>'
        f'<td class="n">{_figure(one.predicted)} {found.unit}</td><td class="n">{_figure(one.measured)} s</td>'
        f'<td class="n">{1 + one.off:.2f}</td><td>{"its cost is wrong" if abs(one.off) > OFF else ""}</td></tr>'
        for one in found.of_buckets
    )
    return (
        '<div class="scroll"><table><thead><tr><th>bucket</th><th class="n">micro-batches</th><th class="n">cost of one</th>'
        '<th class="n">took, median</th><th class="n">factor beside the others</th><th></th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _ranks(found: Balance) -> str:
    if not found.of_ranks:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{one.rank}</th><td class="n">{100 * one.predicted:.2f} %</td>'
        f'<td class="n">{100 * one.measured:.2f} %</td></tr>'
        for one in found.of_ranks
    )
    more = found.ranks - len(found.of_ranks)
    rest = f'<p class="soft">and {more:,} more ranks</p>' if more > 0 else ""
    return (
        f"<details><summary>share of each rank</summary>"
        '<div class="scroll"><table><thead><tr><th>rank</th><th class="n">by the costs</th><th class="n">measured</th>'
        f"</tr></thead><tbody>{rows}</tbody></table></div>{rest}</details>"
    )


def _advice(run: RunData, found: Balance) -> str:
    if not found.wrong:
        return ""
    command = f"python -m trainer report {run.path} --cost-table costs.json"
    return (
        f'<p class="soft"><code>{html.escape(command)}</code> writes the costs as this run measured them, for the recipe\'s '
        "<code>buckets.cost_table</code>.</p>"
    )
