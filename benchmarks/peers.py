"""The peers that training is measured against, in our sizes."""

import torch
from torch import Tensor, nn
from transformers import MarianConfig, MarianMTModel

from modeling_aiayn import AiaynConfig
from modeling_aiayn.losses import IGNORED_LABEL


class TorchTransformer(nn.Module):
    """nn.Transformer with what it lacks: embeddings, positions, output projection and loss."""

    def __init__(self, config: AiaynConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.d_model, config.pad_token_id)
        self.positions = nn.Embedding(512, config.d_model)
        self.transformer = nn.Transformer(
            config.d_model,
            config.encoder_attention_heads,
            config.encoder_layers,
            config.decoder_layers,
            config.encoder_ffn_dim,
            config.dropout,
            batch_first=True,
        )
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        nn.init.normal_(self.embed.weight, std=config.d_model**-0.5)
        self.lm_head.weight = self.embed.weight

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        labels: Tensor,
        decoder_input_ids: Tensor,
    ) -> dict[str, Tensor]:
        """The loss of a batch.

        Args:
            input_ids: Source ids, [B, S].
            attention_mask: 1 for real source tokens, [B, S].
            labels: Target ids, [B, T]; -100 where there is none.
            decoder_input_ids: Target ids, start token first, [B, T].

        Returns:
            The loss, [], as "loss".
        """
        is_padding = attention_mask == 0
        length = labels.size(1)
        causal = nn.Transformer.generate_square_subsequent_mask(length, device=labels.device)
        hidden_states = self.transformer(
            self._embed(input_ids),
            self._embed(decoder_input_ids),
            tgt_mask=causal,
            src_key_padding_mask=is_padding,
            memory_key_padding_mask=is_padding,
            tgt_is_causal=True,
        )
        logits = self.lm_head(hidden_states).flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED_LABEL)
        return {"loss": loss}

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Labels, [B, T], shifted right."""
        shifted = nn.functional.pad(labels[:, :-1], (1, 0), value=self.config.bos_token_id)
        return shifted.masked_fill(shifted == IGNORED_LABEL, self.config.pad_token_id)

    def _embed(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.size(1), device=ids.device)
        embedded: Tensor = self.embed(ids) * self.config.d_model**0.5 + self.positions(positions)
        return embedded


def marian(config: AiaynConfig, implementation: str) -> MarianMTModel:
    """A MarianMTModel of our sizes; implementation is that of attention, "eager" or "sdpa"."""
    names = (
        *("vocab_size", "d_model", "encoder_layers", "decoder_layers", "dropout"),
        *("encoder_attention_heads", "decoder_attention_heads"),
        *("encoder_ffn_dim", "decoder_ffn_dim", "pad_token_id", "eos_token_id"),
    )
    return MarianMTModel(
        MarianConfig(
            **{name: getattr(config, name) for name in names},
            activation_function="relu",
            scale_embedding=True,
            decoder_start_token_id=config.decoder_start_token_id,
            attn_implementation=implementation,
        )
    )
