"""A language model goes on with a text, however long."""

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
    """Go on with a text; whenever the model's window is full, with the newer half of it.

    Args:
        model: A language model.
        tokenizer: Its tokenizer.
        text: The beginning.
        new_tokens: How many tokens to add.
        samples: How many texts to write.
        **sampling: What generate() takes: do_sample, temperature, top_k, top_p.

    Returns:
        The texts, their beginning included.

    Raises:
        ValueError: There is no beginning, or it has a character that the model does not know.
    """
    ids = torch.tensor([encode_beginning(tokenizer, text)] * samples, device=model.device)
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
            # Nothing in a text is a special token, so nothing was learnt of them.
            suppress_tokens=sorted(tokenizer.all_special_ids),
            **sampling,
        )
        ids = torch.cat((ids[:, :start], longer), dim=1)
    return tokenizer.batch_decode(ids, clean_up_tokenization_spaces=False)


def encode_beginning(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Ids of a text that a language model is to go on with.

    Args:
        tokenizer: The model's tokenizer.
        text: The text.

    Returns:
        Its ids.

    Raises:
        ValueError: There is no text, or it has a character that the model does not know.
    """
    text = replace_surrogates(text)
    if not text:
        raise ValueError("A language model needs a text to go on with, got an empty one.")
    ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    if tokenizer.unk_token_id in ids:
        unknown = text[ids.index(tokenizer.unk_token_id)]
        raise ValueError(
            f"The text to go on with has {unknown!r}, which the model's training text had not."
        )
    return ids
