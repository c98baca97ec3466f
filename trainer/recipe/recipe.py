"""The training recipe: one YAML, readable alone, from the model to the samples.

The specifications of the parts live in the files that use them; here they are put together, and what only
the whole can know is checked or added: the widths of the encoders, that a stage has a length. A run's folder
keeps the recipe, and recipe_changes.py says what a resumed run may change of it.
"""

import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import torch
from pydantic import BeforeValidator, Field, field_validator, model_validator

from trainer.distributed import environment_names
from trainer.distributed.spec import ParallelSpec
from trainer.health.checks.spec import PreflightSpec
from trainer.health.watch.spec import WatchSpec
from trainer.model import frame_masks
from trainer.model.encoders.precision import EncodedSpec
from trainer.model.encoders.registry import TextSpec, VideoSpec, text_encoder, video_encoder
from trainer.model.power_average import Widths
from trainer.model.rectified_flow import FlowSpec
from trainer.model.routing import RoutingSpec
from trainer.model.stdit import GIANT_3B_2, XL_2, ModelSpec, STDiT3Config
from trainer.recipe import skip_windows
from trainer.recipe.data_spec import DataSpec
from trainer.recipe.encoding import Encoding
from trainer.recipe.guard_spec import GuardSpec
from trainer.run_folder.sample_spec import SampleSpec
from trainer.run_folder.trackers_spec import TrackersSpec
from trainer.training.optim.schedule import MOST_STEPS, OptimSpec
from vidcurate.loader.spec import LoaderSpec
from vidcurate.recipe import recipe as strict
from vidcurate.recipe import removed_keys
from vidcurate.recipe.recipe import Recipe
from vidcurate.sampler.buckets import BucketSpec

PRESETS: dict[str, ModelSpec] = {"XL/2": XL_2, "3B/2": GIANT_3B_2}

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)]
Count = Annotated[int, Field(ge=1)]


def _preset(value: object) -> object:
    """Turn a preset's name into its settings, {preset: NAME, …} into them with changes."""
    if isinstance(value, str):
        if value not in PRESETS:
            raise ValueError(f"the presets are {', '.join(PRESETS)}; or give the model's settings")
        return PRESETS[value]
    return value


class Stage(Recipe):
    """One stage: its data, its length (`steps` or `epochs`) and how it learns.

    `carry_over` says what a stage takes from the one before: `everything` (weights, moving average,
    optimizer) or `weights` (the published runs began each stage with a fresh optimizer and average).
    """

    name: Name
    """what the stage is called"""
    data: DataSpec
    """which clips, in what shapes"""
    steps: Annotated[int, Field(ge=1, le=MOST_STEPS)] | None = None
    """length in optimizer steps"""
    epochs: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """length in epochs of the stage's clips, instead of steps"""
    optim: OptimSpec = OptimSpec()
    """learning rate and update"""
    flow: FlowSpec = FlowSpec()
    """how timesteps are drawn"""
    mask_ratios: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)
    """strategy → share of the clips whose first, last or other frames are given; the rest is generated
    whole"""
    caption_dropout: Annotated[float, Field(ge=0, le=1)] = 0.1
    """share of the captions that are replaced by the null caption"""
    routing: RoutingSpec | None = None
    """spatial tubes that skip the middle pairs of blocks; null: all tokens go through all blocks"""
    carry_over: Literal["everything", "weights"] = "everything"
    """what is taken from the stage before: everything, or weights only"""
    skip: tuple[tuple[Count, Count], ...] = ()
    """windows of data steps that are not read, [first, last] counted from 1 in the stage; what comes behind
    moves up, and the stage makes as many updates as without"""
    checkpoint_every: Count = 100
    """steps between checkpoints; the stage's last step is always saved"""
    keep_last: Count = 3
    """checkpoints that are kept"""
    keep_every: Count | None = None
    """checkpoints of steps that this divides are kept for good, whatever keep_last says"""
    checkpoint_in_background: bool = False
    """write checkpoints from a copy in the host's memory while training continues"""
    log_every: Count = 10
    """steps between lines on the console; metrics.jsonl has every step"""
    clip_losses_every: Count | None = None
    """steps between lines of clip_losses.jsonl, with loss and timestep of every clip (about 60 bytes a clip),
    for `python -m trainer clips`; null: none"""

    @field_validator("mask_ratios")
    @classmethod
    def _ratios_fit(cls, ratios: dict[str, float]) -> dict[str, float]:
        frame_masks.check_ratios(ratios)
        return ratios

    @field_validator("skip")
    @classmethod
    def _windows_go_forward(cls, skip: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        for first, last in skip:
            if last < first:
                raise ValueError(f"the window [{first}, {last}] ends before it begins; give [first, last]")
        return skip_windows.merged(skip)

    @model_validator(mode="after")
    def _has_one_length(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            given = "neither is" if self.steps is None else "both are"
            raise ValueError(f"stage {self.name} needs steps or epochs, one of them; {given} given")
        return self


class ValidationSpec(Recipe):
    """The moving average's loss on clips that are not trained, at ten fixed timesteps.

    The clips are those of the stage's shards in the fold `validation`, in the stage's levels unless `levels`
    names others; each round reads the same.
    """

    every: Count = 1000
    """steps between rounds; there is one before the first step and after the last, too"""
    clips_per_bucket: Count = 64
    """clips of each bucket, over its levels; all of them where there are fewer"""
    buckets: BucketSpec | None = None
    """shapes to validate in; null: the stage's own"""
    levels: tuple[int, ...] | None = None
    """levels to validate on, the same in every stage; null: those that the stage shows"""


class TrainRecipe(Recipe):
    """A whole run. Relative paths are taken from the folder in which the command is run."""

    name: Name
    """what the run is called, in its files and in the console"""
    seed: Annotated[int, Field(ge=0)] = 42
    """decides the order of the clips, every draw and the initial weights"""
    output: Path
    """the run's folder: metrics, events, checkpoints, samples"""
    if TYPE_CHECKING:
        model: STDiT3Config
    else:  # written as a ModelSpec; `_parts_fit_together` adds the widths of the encoders
        model: Annotated[
            ModelSpec,
            BeforeValidator(_preset, json_schema_input_type=Literal["XL/2", "3B/2"] | ModelSpec),
        ]
        """the model's settings, or the name of a published size: XL/2 or 3B/2"""
    video_encoder: VideoSpec
    """what turns frames into latents"""
    text_encoder: TextSpec
    """what turns captions into features"""
    encoded: EncodedSpec = EncodedSpec()
    """what latents and text features are rounded to, and kept in when they are encoded ahead"""
    stages: tuple[Stage, ...] = Field(min_length=1)
    """what is trained, in turn"""
    ema_decay: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """decay of the moving average of the weights, from which samples are drawn"""
    power_ema: Widths | None = None
    """widths of two more averages, such as [0.05, 0.1], of which `convert export --ema` makes any other width
    afterwards: standard deviations of their profiles over the number of updates; null: none"""
    precision: Literal["float32", "bfloat16", "float8"] = "float32"
    """of the model's arithmetic; losses, averages and the optimizer stay in float32. float8, with fast blocks
    on an H100 or later: as bfloat16, the inputs of the largest matmuls (qkv, fc1, fc2, forward and backward)
    rounded to float8, each row with its own scale"""
    blocks: Literal["eager", "fast"] = "eager"
    """how a block is computed: eager (plain torch) or fast (Triton kernels, on a GPU)"""
    parallel: ParallelSpec = ParallelSpec()
    """how the ranks share the model; it changes no more than the order of float additions"""
    loader: LoaderSpec = LoaderSpec()
    """how clips are read and decoded; it changes no number of the run"""
    sample: SampleSpec | None = None
    """clips to make during the run; null makes none"""
    validation: ValidationSpec | None = None
    """the loss on clips that are not trained; null measures none"""
    guard: GuardSpec = GuardSpec()
    """checks of loss, gradients and weights, a policy for each; without a finding no number changes"""
    trackers: TrackersSpec = TrackersSpec()
    """where the numbers are shown besides metrics.jsonl"""
    environment: dict[str, str] = Field(default_factory=dict)
    """variables of NCCL, torch and Gloo for every rank, of the set on docs/preflight.md; the user's own
    environment goes before them. With recompute_blocks: fit PYTORCH_ALLOC_CONF is expandable_segments:True,
    if nothing else is said"""
    preflight: PreflightSpec = PreflightSpec()
    """what is checked before the first step, and when a node is bad; it changes no number of the run"""
    watch: WatchSpec = WatchSpec()
    """what monitors check during the run: hung, lost and slow ranks, the rate, clocks, the hardware"""

    @field_validator("environment")
    @classmethod
    def _is_of_the_documented_set(cls, wanted: dict[str, str]) -> dict[str, str]:
        offered = [name for name, known in environment_names.KNOWN.items() if known.is_offered]
        for name in wanted:
            if name not in offered:
                near = difflib.get_close_matches(name, offered, n=1)
                ways = f"did you mean {near[0]}?" if near else "set it outside, or see docs/preflight.md"
                raise ValueError(f"environment.{name} is none of the variables that a recipe sets; {ways}")
        return wanted

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        """What only the whole can know: names, and that encoders, model and sample sizes belong together."""
        names = [stage.name for stage in self.stages]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two stages are called {name}; give each its own name")
        self._check_fewer_tokens_and_steps()
        if self.parallel.recompute_blocks == "fit":  # a GPU filled to 92 % has no room for holes
            without_holes = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
            if not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & set(self.environment):
                object.__setattr__(self, "environment", self.environment | without_holes)
        video, text = video_encoder(self.video_encoder), text_encoder(self.text_encoder)
        model = STDiT3Config(
            **{name: getattr(self.model, name) for name in ModelSpec.model_fields},
            in_channels=video.latent_channels,
            caption_channels=text.caption_channels,
            model_max_length=text.model_max_length,
        )
        object.__setattr__(self, "model", model)
        if model.skip_y_embedder and not model.freeze_y_embedder:
            raise ValueError(
                "model.skip_y_embedder takes captions as its projection made them before training; set "
                "model.freeze_y_embedder=true, or the projection would continue to train"
            )
        if self.precision == "float8" and self.blocks != "fast":
            raise ValueError(
                f"precision is float8 with blocks={self.blocks}; set blocks=fast, or precision=bfloat16"
            )
        if self.sample:
            _, _, rows, columns = video.latent_shape(
                self.sample.num_frames, self.sample.height, self.sample.width
            )
            if not rows or not columns or self.sample.height % 2 or self.sample.width % 2:
                raise ValueError(
                    f"sample is {self.sample.height} x {self.sample.width}; height and width must be even, "
                    "as mp4 asks, and no smaller than the video encoder's blocks"
                )
        return self

    @property
    def encoding(self) -> Encoding:
        """The encoders, their dtypes and the model."""
        return Encoding(video=self.video_encoder, text=self.text_encoder, kept=self.encoded, model=self.model)

    def flow_of(self, stage: int) -> FlowSpec:
        """Return the flow of stage number `stage`; behind the last stage that of the last."""
        return self.stages[min(stage, len(self.stages) - 1)].flow

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the activations."""
        return torch.float32 if self.precision == "float32" else torch.bfloat16

    def _check_fewer_tokens_and_steps(self) -> None:
        """Raise ValueError for routed pairs that the model lacks, and for Muon in some stages only."""
        for stage in self.stages:
            if stage.routing and stage.routing.pairs[1] >= self.model.depth:
                raise ValueError(
                    f"stage {stage.name}: routing.pairs ends at {stage.routing.pairs[1]}, and the last "
                    f"pair of model.depth {self.model.depth} is {self.model.depth - 1}; give a smaller one"
                )
            if (stage.optim.muon is None) != (self.stages[0].optim.muon is None):
                raise ValueError(
                    f"optim.muon is set in one of the stages {self.stages[0].name} and {stage.name} and not "
                    "in the other; the optimizer's state is the run's: set it in all stages or in none"
                )


def load(path: Path, settings: Sequence[str] = ()) -> TrainRecipe:
    """Return the recipe file at `path` with `--set` overrides. Raises RecipeError."""
    return strict.load(path, TrainRecipe, settings=settings)


def from_saved(saved: Mapping[str, Any]) -> TrainRecipe:
    """Return the recipe that a run or a checkpoint holds as JSON, its former keys upgraded.

    Raises ValidationError, a ValueError, for what no recipe of now can have.
    """
    return TrainRecipe.model_validate_json(json.dumps(removed_keys.upgrade(saved, TrainRecipe)))


def to_json(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as plain JSON values, every default written out."""
    plain: dict[str, Any] = json.loads(recipe.model_dump_json())
    return plain


def digest(recipe: Recipe | Mapping[str, Any]) -> str:
    """Return the SHA-256 of the recipe with all its defaults, as hex; a mapping is the recipe's JSON."""
    plain = to_json(recipe) if isinstance(recipe, Recipe) else recipe
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
