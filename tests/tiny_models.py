"""Random-weight twins of the models that score clips, small, as files of the real ones' form: a CLIP of two
layers with its tokenizer, LAION's aesthetic head, a ViT classifier."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
WIDTH = 48  # of the CLIP's embeddings


def make_clip(folder: Path) -> Path:
    """Write a CLIP of openai's architecture, small, with a byte-level BPE tokenizer as CLIP's."""
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    config = transformers.CLIPConfig(
        text_config={
            **small, "vocab_size": 520, "max_position_embeddings": 77, "eos_token_id": 1, "bos_token_id": 0,
            "pad_token_id": 1,
        },
        vision_config={**small, "image_size": 56, "patch_size": 14},
        projection_dim=WIDTH,
    )  # fmt: skip
    transformers.CLIPModel(config).save_pretrained(folder)
    tokenizers = pytest.importorskip("tokenizers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = ["<|startoftext|>", "<|endoftext|>", *alphabet, *(letter + "</w>" for letter in alphabet)]
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            {word: n for n, word in enumerate(words)}, [], end_of_word_suffix="</w>",
            unk_token="<|endoftext|>",
        )
    )  # fmt: skip
    made.normalizer = tokenizers.normalizers.Lowercase()
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|startoftext|> $A <|endoftext|>",
        special_tokens=[("<|startoftext|>", 0), ("<|endoftext|>", 1)],
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<|startoftext|>",
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
    ).save_pretrained(folder)
    return folder


def head_of(sizes: tuple[int, ...], seed: int = 0) -> dict[str, Any]:
    """Return an aesthetic head as LAION's files name it: layers 0, 2, 4, 6 and 7."""
    torch.manual_seed(seed)
    numbers = (0, 2, 4, 6, 7)
    return {
        f"layers.{number}.{part}": torch.randn(shape) / 8
        for number, (size, out) in zip(numbers, itertools.pairwise(sizes), strict=True)
        for part, shape in (("weight", (out, size)), ("bias", (out,)))
    }


def make_classifier(folder: Path) -> Path:
    """Write a ViT that knows a watermark from none."""
    torch.manual_seed(1)
    config = transformers.ViTConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=32,
        patch_size=16, id2label={0: "no watermark", 1: "watermark"},
        label2id={"no watermark": 0, "watermark": 1},
    )  # fmt: skip
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    wanted = {"size": {"height": 32, "width": 32}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(wanted))
    return folder
