"""T5 v1.1 text encoder (DeepFloyd/t5-v1_1-xxl: 24 layers, width 4096).

The encoder truncates captions to `model_max_length` tokens, end token included, and encodes captions of
similar length together, padded to the longest: padding is masked, so it changes no feature, and its own
features are 0. transformers and the weights are loaded at first use; sizes are known without either.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from trainer.model.encoders.clean_caption import clean
from trainer.model.encoders.precision import DTYPES, Dtype, own_precision
from trainer.model.encoders.weights import WEIGHT_FILES, locate, need, read_json
from vidcurate.errors import CheckpointError, InputError, VidcurateError
from vidcurate.recipe.recipe import Recipe

KEY = "text_encoder.source"
TOKENIZERS = ("spiece.model", "tokenizer.json")
FILES = (*WEIGHT_FILES, *TOKENIZERS, "pytorch_model*", "tokenizer_config.json", "special_tokens_map.json")
# A whole T5 holds them as well; the encoder does without.
DECODER = ("decoder.", "lm_head.")


class T5Spec(Recipe):
    """`t5`: the encoder of T5 v1.1, one feature per token (docs/encoders.md)."""

    kind: Literal["t5"] = "t5"
    """the encoder: t5"""
    source: str = "DeepFloyd/t5-v1_1-xxl"
    """folder with the encoder and its tokenizer, or a name on the Hugging Face hub"""
    caption_channels: int = Field(default=4096, ge=1, le=65_536)
    """width of a feature, which must be that of the weights"""
    model_max_length: int = Field(default=300, ge=2, le=65_536)
    """most tokens of a caption"""
    dtype: Dtype = "bfloat16"
    """of weights, arithmetic and features"""
    clean: bool = False
    """clean captions as the published inference does: lower case, no addresses, mark-up or codes"""
    micro_batch_size: ClassVar[int] = 8
    """captions that are encoded at once; bounds the memory"""


class T5:
    """The TextEncoder of a T5Spec, on `device`. It loads tokenizer and weights on first use."""

    def __init__(self, spec: T5Spec, device: torch.device) -> None:
        self.spec, self.device = spec, device
        self._loaded: tuple[Any, Any] | None = None

    @property
    def caption_channels(self) -> int:
        """4096 of T5-XXL."""
        return self.spec.caption_channels

    @property
    def model_max_length(self) -> int:
        """Most tokens of a caption, the end token among them."""
        return self.spec.model_max_length

    @property
    def device_bytes(self) -> int:
        """Bytes of its weights, once they are loaded."""
        return sum(weight.nbytes for weight in self._loaded[1].parameters()) if self._loaded else 0

    def predicted_bytes(self) -> int | None:
        """Bytes that its weights will take; None where its source cannot be read here."""
        return predicted_bytes(self.spec)

    def loaded(self) -> tuple[Any, Any]:
        """Return tokenizer and model, loaded if they were not yet."""
        if self._loaded is None:
            self._loaded = load(self.spec, self.device)
        return self._loaded

    def encode(self, captions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return features [B, 1, L, C] in the spec's dtype and bool mask [B, L], both on the device.

        L is `model_max_length`. Every caption has at least its end token.
        """
        tokenizer, model = self.loaded()
        texts = [clean(caption) for caption in captions] if self.spec.clean else list(captions)
        length = self.spec.model_max_length
        tokens = [tokenizer(text, max_length=length, truncation=True)["input_ids"] for text in texts]
        shape = (len(texts), 1, length, self.spec.caption_channels)
        features = torch.zeros(shape, dtype=DTYPES[self.spec.dtype], device=self.device)
        mask = torch.zeros(len(texts), length, dtype=torch.bool, device=self.device)
        order = sorted(range(len(texts)), key=lambda row: len(tokens[row]))
        for first in range(0, len(order), self.spec.micro_batch_size):
            rows = order[first : first + self.spec.micro_batch_size]
            longest = max(len(tokens[row]) for row in rows)
            ids = torch.tensor([tokens[row] + [0] * (longest - len(tokens[row])) for row in rows])
            real = torch.tensor([[place < len(tokens[row]) for place in range(longest)] for row in rows])
            ids, real = ids.to(self.device), real.to(self.device)
            with own_precision(self.device):
                states = model(input_ids=ids, attention_mask=real.long()).last_hidden_state
            index = torch.tensor(rows, device=self.device)
            features[index, 0, :longest] = states.masked_fill(~real[:, :, None], 0).to(features.dtype)
            mask[index, :longest] = real
        return features, mask


def predicted_bytes(spec: T5Spec) -> int | None:
    """Return the bytes of the encoder in the spec's dtype, by its config.json; None where that is not here.

    In float16 transformers keeps the last product of each layer's MLP in float32.
    """
    try:
        folder = locate(spec.source, key=KEY, patterns=FILES, offline=True)
        config = read_json(folder / "config.json")
        width, hidden, layers = (int(config[name]) for name in ("d_model", "d_ff", "num_layers"))
        heads, attention = int(config["num_heads"]), int(config["num_heads"]) * int(config["d_kv"])
        biases = heads * int(config["relative_attention_num_buckets"])
        words = int(config["vocab_size"]) * width
    except (VidcurateError, OSError, KeyError, TypeError, ValueError):
        return None
    ways_in = 2 if str(config.get("feed_forward_proj", "relu")).startswith("gated") else 1
    last = layers * hidden * width
    rest = words + biases + width + layers * (4 * width * attention + ways_in * width * hidden + 2 * width)
    size = DTYPES[spec.dtype].itemsize
    return rest * size + last * (4 if spec.dtype == "float16" else size)


def _check(report: dict[str, Any], where: str) -> None:
    """Raise CheckpointError, naming a key, unless the encoder's weights were all there and nothing else."""
    missing = sorted(report["missing_keys"])
    unknown = sorted(name for name in report["unexpected_keys"] if not name.startswith(DECODER))
    if missing or unknown:
        parts = [f"{missing[0]} is missing"] if missing else []
        parts += [f"{unknown[0]} is not a key of the encoder"] if unknown else []
        raise CheckpointError(
            f"{where}: {' and '.join(parts)}; in all {len(missing)} missing, {len(unknown)} unknown. "
            "Weights of a T5 v1.1 encoder, by transformers' names, are needed."
        )
    for name, there, needed in sorted(report["mismatched_keys"]):
        raise CheckpointError(f"{where}: {name} is {list(there)}; this encoder needs {list(needed)}.")


def load(spec: T5Spec, device: torch.device) -> tuple[Any, Any]:
    """Return the tokenizer and the encoder with its weights on `device`, in the spec's dtype.

    Raises InputError for a folder that lacks a part or has another width, CheckpointError for a file that
    cannot be read or a key that is missing, unknown or of another shape, StorageError where the hub does not
    give it.
    """
    transformers = need("transformers", KEY)
    from safetensors import SafetensorError

    folder = locate(spec.source, key=KEY, patterns=FILES)
    # Without these, transformers would take a T5 of its own choice and a tokenizer that knows no word.
    for what, names in (("configuration", ("config.json",)), ("tokenizer", TOKENIZERS)):
        if not any((folder / name).is_file() for name in names):
            raise InputError(f"{KEY}: {folder} holds no {what}; {' or '.join(names)} is needed there.")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model, report = transformers.T5EncoderModel.from_pretrained(
            folder, dtype=DTYPES[spec.dtype], output_loading_info=True, ignore_mismatched_sizes=True
        )
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(
            f"{KEY}: {folder} cannot be loaded as a T5 encoder with its tokenizer "
            f"({' '.join(str(error).split())[:300]})."
        ) from error
    if not tokenizer("")["input_ids"]:
        raise InputError(f"{KEY}: the tokenizer in {folder} puts no end token; that of T5 is needed.")
    _check(report, str(folder))
    if model.config.d_model != spec.caption_channels:
        raise InputError(
            f"text_encoder.caption_channels is {spec.caption_channels} and {folder} has features of width "
            f"{model.config.d_model}; set text_encoder.caption_channels={model.config.d_model}."
        )
    return tokenizer, model.eval().requires_grad_(False).to(device)
