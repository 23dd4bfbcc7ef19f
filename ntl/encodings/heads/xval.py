"""T5, or its encoder alone, that reads and says numbers as xVal does: embeddings times values, and a number head."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import T5Config, T5EncoderModel, T5ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

from ntl.encodings.heads.number import DrawsNumberHead, NumberHead, NumberOutput

POSITIONS = 1024  # learnt positions of a stack, unless the configuration says otherwise (`xval_positions`)


class XValT5(DrawsNumberHead, T5ForConditionalGeneration):
    """T5 with a value for each token, learnt positions beside its relative ones, and a number head on the decoder.

    T5 normalises what its layers see, and an embedding alone would lose its length there, which is the value: beside a
    position added to it, it does not. Positions beyond the last learnt one share it.
    """

    def __init__(self, config: T5Config) -> None:
        super().__init__(config)
        positions = getattr(config, "xval_positions", POSITIONS)
        self.encoder_positions = nn.Embedding(positions, config.d_model)
        self.decoder_positions = nn.Embedding(positions, config.d_model)
        self.number_head = NumberHead(config.d_model)
        self.post_init()

    def encode(self, input_ids: Tensor, values: Tensor, attention_mask: Tensor) -> BaseModelOutput:
        """Return the encoder's states of tokens (B, S) with their values."""
        embedded = _embed(self.shared(input_ids), values, self.encoder_positions)
        return self.encoder(inputs_embeds=embedded, attention_mask=attention_mask)

    def forward(
        self,
        attention_mask: Tensor,
        decoder_input_ids: Tensor,
        decoder_values: Tensor,
        input_ids: Tensor | None = None,
        values: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
    ) -> NumberOutput:
        """Predict the token and the number after each decoder position.

        Args:
            input_ids, values, attention_mask: (B, S); the values multiply the embeddings, 1 leaves a token as it is.
            decoder_input_ids, decoder_values: (B, T), likewise.
            encoder_outputs: what `encode` returned, in place of input_ids and values.
        """
        encoded = self.encode(input_ids, values, attention_mask) if encoder_outputs is None else encoder_outputs
        hidden = self.decoder(
            inputs_embeds=_embed(self.shared(decoder_input_ids), decoder_values, self.decoder_positions),
            encoder_hidden_states=encoded.last_hidden_state,
            encoder_attention_mask=attention_mask,
            use_cache=False,
        ).last_hidden_state
        scaled = hidden * self.model_dim**-0.5 if self.config.scale_decoder_outputs else hidden
        return NumberOutput(logits=self.lm_head(scaled), values=self.number_head(hidden))


class XValEncoder(DrawsNumberHead, T5EncoderModel):
    """T5's encoder with a value for each token, learnt positions, and at each position a token and a number."""

    def __init__(self, config: T5Config) -> None:
        super().__init__(config)
        self.encoder_positions = nn.Embedding(getattr(config, "xval_positions", POSITIONS), config.d_model)
        self.number_head = NumberHead(config.d_model)
        self.post_init()

    def forward(self, input_ids: Tensor, values: Tensor, attention_mask: Tensor) -> NumberOutput:
        """Predict the token and the number at each position (B, S), the scores by the input embedding's matrix."""
        embedded = _embed(self.shared(input_ids), values, self.encoder_positions)
        hidden = self.encoder(inputs_embeds=embedded, attention_mask=attention_mask).last_hidden_state
        logits = hidden * self.config.d_model**-0.5 @ self.shared.weight.T
        return NumberOutput(logits=logits, values=self.number_head(hidden))


def _embed(embedded: Tensor, values: Tensor, positions: nn.Embedding) -> Tensor:
    place = torch.arange(embedded.shape[1], device=embedded.device).clamp_max(positions.num_embeddings - 1)
    return embedded * values[..., None].to(embedded) + positions(place)
