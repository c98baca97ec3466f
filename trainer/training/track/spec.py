"""Track recipe: data, model, length, target. Techniques change its settings."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from trainer.model.encoders.space_to_depth import SpaceToDepth, SpaceToDepthSpec
from trainer.model.encoders.word_hash import WordsSpec
from trainer.model.rectified_flow import FlowSpec
from trainer.model.routing import RoutingSpec
from trainer.model.stdit import STDiT3Config
from trainer.training.optim.schedule import OptimSpec
from vidcurate.recipe.recipe import Recipe

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]


class ClipsSpec(Recipe):
    """The generated clips. A technique may not change them; `sha256` proves that it did not."""

    seed: int = 0
    """what the clips are made from"""
    count: Count = 20_480
    """clips to train on"""
    validation: Count = 128
    """clips behind them, to validate on"""
    frames: Count = 16
    """frames of a clip"""
    height: Annotated[int, Field(ge=16)] = 96
    """px"""
    width: Annotated[int, Field(ge=16)] = 96
    """px"""
    sha256: str | None = None
    """hash of all clips and captions; null: not checked"""


class TargetSpec(Recipe):
    """What a run is measured by. A technique may not change it."""

    loss: Annotated[float, Field(gt=0)] | None = None
    """dense validation loss to reach; null: none yet"""
    every: Count = 100
    """steps between validations"""
    prompts: Annotated[int, Field(ge=0)] = 64
    """validation captions that are sampled at the end, to count those that were followed"""
    sample_steps: Count = 30
    """Euler steps of a sample"""
    guidance: float = 4.0
    """scale of classifier-free guidance"""


class TrackRecipe(Recipe):
    """A run on the track."""

    name: str
    """what the run changes, in a word or two"""
    output: Path
    """folder of the records"""
    seed: int = 1
    """of weights, order and noise; the data has its own"""
    steps: Count = 1200
    """updates"""
    batch: Count = 12
    """clips of an update"""
    clips: ClipsSpec = ClipsSpec()
    """the data"""
    target: TargetSpec = TargetSpec()
    """the measure"""
    model: STDiT3Config
    """the model"""
    video_encoder: SpaceToDepthSpec = SpaceToDepthSpec()
    """pixels to latents"""
    text_encoder: WordsSpec = WordsSpec()
    """captions to features"""
    optim: OptimSpec = OptimSpec()
    """learning rate and update"""
    flow: FlowSpec = FlowSpec()
    """how timesteps are drawn"""
    routing: RoutingSpec | None = None
    """token routing; null: none"""
    caption_dropout: Share = 0.1
    """share of the captions that are replaced by the null caption"""
    ema_decay: Share = 0.99
    """decay of the average that is validated"""
    precision: Literal["float32", "bfloat16", "float8"] = "float32"
    """of the model's arithmetic; float8: the large matmuls of fast blocks, all else bfloat16"""
    blocks: Literal["eager", "fast"] = "eager"
    """plain torch, or the Triton kernels"""

    @field_validator("name")
    @classmethod
    def _is_file_name(cls, name: str) -> str:
        if not name.isprintable() or "/" in name or not name.strip(" .") or len(name.encode()) > 200:
            raise ValueError("a record is named after it: give a word or two, without a slash")
        return name

    @model_validator(mode="after")
    def _fits(self) -> Self:
        video = SpaceToDepth(spatial=self.video_encoder.spatial, temporal=self.video_encoder.temporal)
        for key, has, needs in (
            ("in_channels", self.model.in_channels, video.latent_channels),
            ("caption_channels", self.model.caption_channels, self.text_encoder.caption_channels),
            ("model_max_length", self.model.model_max_length, self.text_encoder.model_max_length),
        ):
            if has != needs:
                raise ValueError(
                    f"model.{key} is {has} and the encoder makes {needs}; set model.{key}={needs}"
                )
        if self.routing and self.routing.pairs[1] >= self.model.depth:
            raise ValueError(f"routing.pairs ends at {self.routing.pairs[1]}; give less than model.depth")
        if self.precision == "float8" and self.blocks != "fast":
            raise ValueError("precision is float8, which only fast blocks compute; set blocks=fast")
        if self.batch > self.clips.count:
            raise ValueError(f"batch is {self.batch} and there are {self.clips.count} clips")
        return self
