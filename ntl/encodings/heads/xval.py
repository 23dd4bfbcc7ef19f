"""Models for xVal's numbers: embeddings are multiplied by values, and a head predicts numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, T5Config, T5EncoderModel, T5ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

from ntl.encodings.heads.number import DrawsNumberHead, NumberHead, NumberLayer, NumberOutput

POSITIONS = 1024  # learnt positions of a stack, unless the configuration says otherwise (`xval_positions`)


class XValT5(DrawsNumberHead, T5ForConditionalGeneration):
    """T5 with a value for each token, learnt positions beside its relative ones, and a number head on the decoder.

    T5 normalises what its layers see, and an embedding alone would lose its length there, which is the value: beside a
    position added to it, it does not. Positions beyond the last learnt one share it.

    The number head has two layers with a GELU between them, as published; its width is `d_ff` (published: 1,024 for
    every size), and it reads the decoder's states before T5 scales them for tied output embeddings (published: after).
    """

    def __init__(self, config: T5Config) -> None:
        super().__init__(config)
        positions = getattr(config, "xval_positions", POSITIONS)
        self.encoder_positions = nn.Embedding(positions, config.d_model)
        self.decoder_positions = nn.Embedding(positions, config.d_model)
        self.number_head = _two_layers(config)
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


class XValT5Encoder(DrawsNumberHead, T5EncoderModel):
    """T5's encoder with a value for each token, learnt positions, and at each position a token and a number.

    The scores of tokens are products with the input embedding; the number head is linear.
    """

    def __init__(self, config: T5Config) -> None:
        super().__init__(config)
        self.encoder_positions = nn.Embedding(getattr(config, "xval_positions", POSITIONS), config.d_model)
        self.number_head = NumberHead(NumberLayer(config.d_model, 1))
        self.post_init()

    def forward(self, input_ids: Tensor, values: Tensor, attention_mask: Tensor) -> NumberOutput:
        """Predict the token and the number at each position (B, S), the scores by the input embedding's matrix."""
        embedded = _embed(self.shared(input_ids), values, self.encoder_positions)
        hidden = self.encoder(inputs_embeds=embedded, attention_mask=attention_mask).last_hidden_state
        logits = hidden * self.config.d_model**-0.5 @ self.shared.weight.T
        return NumberOutput(logits=logits, values=self.number_head(hidden))


class XValEncoder(PreTrainedModel):
    """The encoder of xVal's authors: pre-LayerNorm, learnt positions, and two heads of two layers with a GELU.

    `config` gives the sizes: d_model, num_layers, num_heads, d_ff, dropout_rate; of t5_base they are the published ones
    (12 layers, width 768). Weights are drawn as PyTorch draws its own modules. Differences from the published code:
    padding is masked (published: attended to, so that an answer depends on its batch), layers are drawn independently
    (published: copies of one), and positions beyond the last learnt one share it (published: an error).
    """

    config_class = T5Config
    base_model_prefix = "transformer"
    _no_split_modules = ["TransformerEncoderLayer"]

    def __init__(self, config: T5Config) -> None:
        super().__init__(config)
        width, inner = config.d_model, config.d_ff
        self.tokens = nn.Embedding(config.vocab_size, width)
        self.positions = nn.Embedding(getattr(config, "xval_positions", POSITIONS), width)
        layer = nn.TransformerEncoderLayer(
            width,
            config.num_heads,
            inner,
            config.dropout_rate,
            activation=nn.GELU(),
            batch_first=True,
            norm_first=True,
        )
        self.encoder = nn.TransformerEncoder(layer, config.num_layers, enable_nested_tensor=False)
        self.token_head = nn.Sequential(
            nn.Linear(width, inner, bias=False), nn.GELU(), nn.Linear(inner, config.vocab_size, bias=False)
        )
        self.number_head = _two_layers(config)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.MultiheadAttention):
            module._reset_parameters()
        elif hasattr(module, "reset_parameters"):
            module.reset_parameters()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.tokens

    def forward(self, input_ids: Tensor, values: Tensor, attention_mask: Tensor) -> NumberOutput:
        """Predict the token and the number at each position (B, S)."""
        embedded = _embed(self.tokens(input_ids), values, self.positions)
        hidden = self.encoder(embedded, src_key_padding_mask=attention_mask == 0)
        return NumberOutput(logits=self.token_head(hidden), values=self.number_head(hidden))


def _two_layers(config: T5Config) -> NumberHead:
    return NumberHead(NumberLayer(config.d_model, config.d_ff), nn.GELU(), NumberLayer(config.d_ff, 1))


def _embed(embedded: Tensor, values: Tensor, positions: nn.Embedding) -> Tensor:
    place = torch.arange(embedded.shape[1], device=embedded.device).clamp_max(positions.num_embeddings - 1)
    return embedded * values[..., None].to(embedded) + positions(place)
