"""A LLaVA of random weights with a tokenizer of 60 words, made without a download, that answers questions."""

import io
from typing import Any

import av
import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration
from transformers.tokenization_utils_tokenizers import TokenizersBackend

from tests.chat_server import Question, completion

SIDE, PATCH = 32, 16
WORDS = [
    f"{first}{second}" for first in ("red", "big", "old", "wet", "far", "new") for second in "abcdefghij"
]
END, UNKNOWN, IMAGE = 0, 1, 2
LONGEST = 5  # words of an answer that is not cut


class TinyVLM:
    """A model in the place of vLLM: `answer` generates greedily from prompt and pictures."""

    def __init__(self) -> None:
        vocabulary = {word: place for place, word in enumerate(["</s>", "<unk>", "<image>", *WORDS])}
        words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
        words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        self.tokenizer = TokenizersBackend(tokenizer_object=words, eos_token="</s>", unk_token="<unk>")
        sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
        config = LlavaConfig(
            vision_config=CLIPVisionConfig(**sizes, image_size=SIDE, patch_size=PATCH, num_hidden_layers=2),
            text_config=LlamaConfig(
                **sizes, num_hidden_layers=2, num_key_value_heads=2, vocab_size=len(vocabulary),
                bos_token_id=None, eos_token_id=END, pad_token_id=END,
            ),
            image_token_index=IMAGE,
        )  # fmt: skip
        torch.manual_seed(0)
        self.model = LlavaForConditionalGeneration(config).eval()
        self.seen: list[tuple[int, ...]] = []

    def pixels(self, frames: tuple[bytes, ...]) -> torch.Tensor:
        """Return the JPEGs, decoded and scaled: float32 (frames, 3, SIDE, SIDE)."""
        images = []
        for frame in frames:
            with av.open(io.BytesIO(frame), format="jpeg_pipe") as container:
                picture = next(container.decode(video=0))
            self.seen.append((picture.height, picture.width))
            images.append(picture.reformat(width=SIDE, height=SIDE, format="rgb24").to_ndarray())
        return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 127.5 - 1

    def answer(self, question: Question) -> dict[str, Any]:
        """Return the body of an answer: greedy words, LONGEST or max_tokens of them."""
        num_patches = (SIDE // PATCH) ** 2
        words = self.tokenizer(question.prompt)["input_ids"]
        tokens = torch.tensor([words + [IMAGE] * num_patches * len(question.frames)])
        with torch.inference_mode():
            out = self.model.generate(
                input_ids=tokens,
                attention_mask=torch.ones_like(tokens),
                pixel_values=self.pixels(question.frames),
                max_new_tokens=min(LONGEST, question.body["max_tokens"]),
                do_sample=False,
            )[0, tokens.shape[1] :]
        text = self.tokenizer.decode(out, skip_special_tokens=True)
        finish = "length" if len(out) == question.body["max_tokens"] and out[-1] != END else "stop"
        usage = {"prompt_tokens": tokens.shape[1], "completion_tokens": len(out)}
        return completion(text, finish=finish, usage=usage)
