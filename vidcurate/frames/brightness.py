"""How bright is the clip? The mean luma of each frame, 0 to 255."""

from vidcurate.frames.look import Columns, Look, aggregates


class Brightness:
    def __init__(self) -> None:
        self._means: list[float] = []

    def see(self, look: Look) -> None:
        self._means.append(look.brightness)

    def finish(self, end_seconds: float) -> Columns:
        return aggregates("brightness", self._means)
