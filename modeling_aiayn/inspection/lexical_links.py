"""Links between ids of training pairs, read from a model's cross-attention."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm

from ..losses import IGNORED_LABEL
from ..translation import Translator
from ..translation.pools import BATCH_SIZE, MAX_TOKENS_PER_BATCH, batches_by_length
from ..translation.shortlist import LinkCounts
from .attention_weights import showing_weights


@torch.inference_mode()
def count_links(
    translator: Translator,
    sources: Sequence[str],
    targets: Sequence[str],
    batch_size: int = BATCH_SIZE,
    max_tokens_per_batch: int = MAX_TOKENS_PER_BATCH,
) -> LinkCounts:
    """Let the model read pairs, and count which target ids attend to which source ids.

    The attention is the mean over all layers and heads.
    """
    model = translator.model
    config = model.config
    counts = LinkCounts(config.vocab_size, config.decoder_vocab_size or config.vocab_size)
    ids = [translator.encode(text) for text in sources]
    target_ids = [translator.encode_target(text) for text in targets]
    lengths = [max(len(a), len(b)) for a, b in zip(ids, target_ids, strict=True)]
    with showing_weights(model):
        for batch in tqdm(batches_by_length(lengths, batch_size, max_tokens_per_batch)):
            inputs, mask = _padded([ids[index] for index in batch], model.device)
            labels, is_real = _padded([target_ids[index] for index in batch], model.device)
            output = model(
                inputs,
                attention_mask=mask,
                labels=labels.masked_fill(is_real == 0, IGNORED_LABEL),
                output_attentions=True,
            )
            weights = torch.stack([each.float().mean(1) for each in output.cross_attentions])
            attention = weights.mean(0) * mask[:, None] * is_real[..., None]  # [N, T, S]
            counts.add(inputs.cpu(), labels.cpu(), attention.cpu())
    return counts


def _padded(sequences: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids and their mask, [N, S] both."""
    rows = [torch.tensor(sequence) for sequence in sequences]
    mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    return pad_sequence(rows, batch_first=True).to(device), mask.to(device)
