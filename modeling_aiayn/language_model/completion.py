"""Complete a text with a language model."""

from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from ..modeling_aiayn import AiaynForCausalLM
from ..tokenization import replace_surrogates


@torch.inference_mode()
def complete(
    model: AiaynForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    new_tokens: int,
    samples: int = 1,
    **sampling: Any,
) -> list[str]:
    """Generate continuations of a text, also beyond the model's context window.

    Whenever the window is full, its older half is dropped. The returned texts begin with the text.
    sampling are arguments of generate(): do_sample, temperature, top_k, top_p.
    """
    ids = torch.tensor([encode_prompt(tokenizer, text)] * samples, device=model.device)
    window = model.config.max_position_embeddings
    start, end = 0, ids.size(1) + new_tokens
    while ids.size(1) < end:
        if ids.size(1) - start >= window:
            start = ids.size(1) - max(1, window // 2)
        seen = ids[:, start:]
        longer = model.generate(
            seen,
            attention_mask=torch.ones_like(seen),
            max_new_tokens=min(end - ids.size(1), max(1, window - seen.size(1))),
            # Special tokens never occur in the training text, so their scores are untrained.
            suppress_tokens=sorted(tokenizer.all_special_ids),
            **sampling,
        )
        ids = torch.cat((ids[:, :start], longer), dim=1)
    return tokenizer.batch_decode(ids, clean_up_tokenization_spaces=False)


def encode_prompt(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Encode the beginning of a text; a ValueError if it is empty or has an unknown character."""
    text = replace_surrogates(text)
    if not text:
        raise ValueError("The text to complete must have at least one character, got none.")
    options = {"add_special_tokens": False, "split_special_tokens": True}
    ids: list[int] = tokenizer(text, **options).input_ids
    if tokenizer.unk_token_id in ids:
        unknown = text[ids.index(tokenizer.unk_token_id)]
        raise ValueError(
            f"The text to complete has {unknown!r}, which does not occur in the model's training "
            "text. Replace it."
        )
    return ids
