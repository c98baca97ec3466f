"""Demo data: short clips of moving shapes whose captions are true, some of them broken on purpose.

`scene` says what a clip shows and draws it, `plan` chooses the clips of a data set, `write` makes the folder,
`judge` measures from frames what moved where. The same seed gives the same bytes.
"""

from vidcurate.synthetic.judge import follows
from vidcurate.synthetic.plan import demo_prompts, plan_clips
from vidcurate.synthetic.scene import Scene, Thing, caption, render_clip, scene_from
from vidcurate.synthetic.write import DemoSummary, write_demo_data

__all__ = [
    "DemoSummary",
    "Scene",
    "Thing",
    "caption",
    "demo_prompts",
    "follows",
    "plan_clips",
    "render_clip",
    "scene_from",
    "write_demo_data",
]
