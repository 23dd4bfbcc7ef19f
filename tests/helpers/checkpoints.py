"""Small checkpoints with random weights in the hub's layout: architectures and tokenizers of families in use."""

from __future__ import annotations

import string
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

# What is cut off before merging: Qwen keeps every digit apart, Llama 3 up to three together.
QWEN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
TEXTS = [f"What is {a} + {b}? Compute {a * b} - {a}.{b}" for a in range(40) for b in range(7)]
CHAT = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


def byte_level(pattern: str, specials: list[str]) -> Tokenizer:
    """A byte-level BPE tokenizer that cuts texts by `pattern` first."""
    backend = Tokenizer(models.BPE())
    cut = pre_tokenizers.Split(Regex(pattern), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(False, use_regex=False)])
    backend.decoder = decoders.ByteLevel()
    return _train(backend, specials, pre_tokenizers.ByteLevel.alphabet())


def _train(backend: Tokenizer, specials: list[str], alphabet: list[str]) -> Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=360, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(TEXTS, trainer)
    return backend


def qwen2(folder: Path) -> None:
    """Qwen2: no token before a text, one of its own to pad, a chat's tokens and template, tied embeddings."""
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Qwen2Tokenizer(
        tokenizer_object=byte_level(QWEN, specials), eos_token="<|im_end|>", additional_special_tokens=specials[1:]
    )
    tokenizer.chat_template = CHAT
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 384}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = Qwen2Config(**size, **heads, max_position_embeddings=256, tie_word_embeddings=True)
    _save(folder, tokenizer, Qwen2ForCausalLM, config)


def llama(folder: Path, vocab_size: int | None = None) -> None:
    """Llama 3: a token before every text, none to pad, an output layer of its own."""
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    begin, end = "<|begin_of_text|>", "<|end_of_text|>"
    backend = byte_level(LLAMA, [begin, end, "<|eot_id|>"])
    backend.post_processor = processors.TemplateProcessing(f"{begin} $A", None, [(begin, 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=begin, eos_token=end)
    size = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "vocab_size": vocab_size or len(tokenizer),
    }
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(**size, **heads, max_position_embeddings=256, bos_token_id=0, eos_token_id=1)
    _save(folder, tokenizer, LlamaForCausalLM, config)


def llama2(folder: Path) -> None:
    """Llama 2: sentencepiece's space markers put on by a normaliser, no cutting before merging."""
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    backend.pre_tokenizer = pre_tokenizers.Metaspace()  # for training alone, or whole sentences would merge
    _train(backend, ["<unk>", "<s>", "</s>"], ["▁", *string.printable])
    backend.pre_tokenizer = None
    backend.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": len(tokenizer)}
    config = LlamaConfig(**size, num_attention_heads=4, max_position_embeddings=256, bos_token_id=1, eos_token_id=2)
    _save(folder, tokenizer, LlamaForCausalLM, config)


def t5(folder: Path) -> None:
    """FLAN-T5: gated feed-forward layers, an output layer of its own, an end token after every text."""
    from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

    backend = byte_level(LLAMA, ["<pad>", "</s>"])
    backend.post_processor = processors.TemplateProcessing("$A </s>", None, [("</s>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="</s>")
    size = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2}
    config = T5Config(
        **size,
        vocab_size=448,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    _save(folder, tokenizer, T5ForConditionalGeneration, config)


def bart(folder: Path) -> None:
    """BART: a token before and after every text, and a decoder that starts with the end token."""
    from transformers import BartConfig, BartForConditionalGeneration, PreTrainedTokenizerFast

    backend = byte_level(LLAMA, ["<s>", "<pad>", "</s>"])
    backend.post_processor = processors.TemplateProcessing("<s> $A </s>", None, [("<s>", 0), ("</s>", 2)])
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    size = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = BartConfig(**size, **heads, vocab_size=len(tokenizer), dropout=0.0, decoder_start_token_id=2)
    _save(folder, tokenizer, BartForConditionalGeneration, config)


def bert(folder: Path) -> None:
    """BERT: a model that has not learnt to write."""
    from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

    backend = byte_level(LLAMA, ["[PAD]", "[SEP]"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", eos_token="[SEP]")
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    _save(folder, tokenizer, BertForMaskedLM, BertConfig(**size, vocab_size=len(tokenizer)))


MAKE = {function.__name__: function for function in (qwen2, llama, llama2, t5, bart, bert)}


def _save(folder: Path, tokenizer, model_class, config) -> None:
    torch.manual_seed(0)
    model_class(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
