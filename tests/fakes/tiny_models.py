"""Model folders with small random weights, made with `transformers` configurations, and a tokenizer of whole words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    BartConfig,
    BartForConditionalGeneration,
    BlipConfig,
    BlipForConditionalGeneration,
    BlipImageProcessor,
    BlipProcessor,
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    NllbTokenizer,
    PegasusConfig,
    PegasusForConditionalGeneration,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

WORDS = "a an the man is eating food place warm good bad film it was not rain sun in of and what where who".split()
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
_SEQ2SEQ_SIZES = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
}  # fmt: skip
_DISTILBERT_SIZES = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}


def word_tokenizer(folder: Path, *, max_tokens: int = 64) -> PreTrainedTokenizerFast:
    """Write a tokenizer of WORDS into `folder`, with BERT's special tokens, and return it."""
    vocabulary = {word: number for number, word in enumerate([*_SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=max_tokens, model_input_names=inputs, **names
    )
    fast.save_pretrained(folder)
    return fast


def tiny_describer(folder: Path, model_type: str) -> Path:
    """Write a BLIP or LLaVA of random weights into `folder` and return the folder."""
    torch.manual_seed(0)
    tokenizer = word_tokenizer(folder)
    vision = {**_SIZES, "image_size": 32, "patch_size": 8}
    side = {"height": 32, "width": 32}
    if model_type == "blip":
        tokens = {"bos_token_id": 2, "eos_token_id": 3, "sep_token_id": 3, "pad_token_id": 0}
        text = {
            **_SIZES,
            "vocab_size": len(tokenizer),
            "max_position_embeddings": 64,
            "encoder_hidden_size": 32,
            **tokens,
        }
        blip = BlipForConditionalGeneration(
            BlipConfig(text_config=text, vision_config=vision, image_text_hidden_size=32)
        )
        model: Any = blip
        processor: Any = BlipProcessor(BlipImageProcessor(size=side), tokenizer)
    else:
        tokenizer.add_tokens("<image>", special_tokens=True)
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
        text = {**_SIZES, "vocab_size": len(tokenizer), "max_position_embeddings": 128}
        llava = LlavaConfig(
            vision_config=CLIPVisionConfig(**vision), text_config=LlamaConfig(**text, eos_token_id=3, pad_token_id=0),
            image_token_index=len(tokenizer) - 1, image_seq_length=16,
        )  # fmt: skip
        model = LlavaForConditionalGeneration(llava)
        processor = LlavaProcessor(
            CLIPImageProcessor(size=side, crop_size=side), tokenizer, patch_size=8,
            vision_feature_select_strategy="default", num_additional_image_tokens=1,
        )  # fmt: skip
    for parameter in model.parameters():  # the default initialization repeats one token
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def tiny_classifier(folder: Path, model_type: str, labels: tuple[str, ...], **options: Any) -> Path:
    """Write a sequence classifier of random weights into `folder` and return the folder."""
    word_tokenizer(folder)
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        model_type,
        vocab_size=len(_SPECIAL) + len(WORDS),
        max_position_embeddings=80,
        pad_token_id=0,
        id2label=dict(enumerate(labels)),
        label2id={label: number for number, label in enumerate(labels)},
        **(_DISTILBERT_SIZES if model_type == "distilbert" else _SIZES),
        **options,
    )
    model = AutoModelForSequenceClassification.from_config(config)
    for parameter in model.parameters():  # the default initialization gives nearly equal scores
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(folder)
    return folder


def sentencepiece_model(folder: Path, text: str = " ".join(WORDS)) -> tuple[bytes, list[str]]:
    """Return a SentencePiece model of the words of `text`, and its pieces."""
    import sentencepiece

    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join([text] * 20))
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(folder / "words"), vocab_size=80, hard_vocab_limit=False, minloglevel=2
    )
    content = (folder / "words.model").read_bytes()
    for name in ("corpus.txt", "words.model", "words.vocab"):
        (folder / name).unlink()
    processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    pieces = [processor.id_to_piece(number) for number in range(processor.get_piece_size())]
    return content, [piece for piece in pieces if piece not in ("<unk>", "<s>", "</s>")]


def tiny_marian(folder: Path, *, targets: tuple[str, ...] = ()) -> Path:
    """Write a Marian model from English to French, or to several `targets`, into `folder` and return the folder."""
    content, pieces = sentencepiece_model(folder)
    vocabulary = ["</s>", "<unk>", *pieces, *(f">>{target}<<" for target in targets), "<pad>"]
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(content)
    (folder / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(vocabulary)}))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"source_lang": "en", "target_lang": "fr", "tokenizer_class": "MarianTokenizer"})
    )
    pad = len(vocabulary) - 1
    config = MarianConfig(
        vocab_size=len(vocabulary), pad_token_id=pad, decoder_start_token_id=pad, eos_token_id=0, forced_eos_token_id=0,
        max_position_embeddings=128, **_SEQ2SEQ_SIZES,
    )  # fmt: skip
    return _save_random(MarianMTModel(config), folder, num_beams=2)


def tiny_m2m100(folder: Path) -> Path:
    """Write an M2M100 model of all 100 languages into `folder` and return the folder."""
    content, pieces = sentencepiece_model(folder)
    (folder / "sentencepiece.bpe.model").write_bytes(content)
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *pieces]
    (folder / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(vocabulary)}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "M2M100Tokenizer"}))
    config = M2M100Config(vocab_size=len(vocabulary) + 108, max_position_embeddings=128, **_SEQ2SEQ_SIZES)
    return _save_random(M2M100ForConditionalGeneration(config), folder, num_beams=2)


def tiny_nllb(folder: Path) -> Path:
    """Write an NLLB model of English, French and German into `folder` and return the folder."""
    languages = ["eng_Latn", "fra_Latn", "deu_Latn"]
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *dict.fromkeys("▁" + WORDS[0] + "".join(WORDS))]
    tokenizer = NllbTokenizer(
        vocab={piece: number for number, piece in enumerate(vocabulary)}, merges=[], additional_special_tokens=languages
    )
    tokenizer.save_pretrained(folder)
    config = M2M100Config(vocab_size=len(tokenizer), max_position_embeddings=128, **_SEQ2SEQ_SIZES)
    return _save_random(M2M100ForConditionalGeneration(config), folder, num_beams=1)


def tiny_summarizer(folder: Path, model_type: str = "bart") -> Path:
    """Write a BART, T5 or Pegasus model into `folder` and return the folder."""
    word_tokenizer(folder, max_tokens=128)
    vocab_size = len(_SPECIAL) + len(WORDS)
    ids = {"pad_token_id": 0, "eos_token_id": 3, "bos_token_id": 2, "decoder_start_token_id": 2}
    config: Any
    if model_type == "t5":
        params = {"summarization": {"prefix": "the ", "num_beams": 3, "max_length": 24, "min_length": 6}}
        config = T5Config(
            vocab_size=vocab_size, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, pad_token_id=0,
            eos_token_id=3, decoder_start_token_id=0, n_positions=128, task_specific_params=params,
        )  # fmt: skip
        return _save_random(T5ForConditionalGeneration(config), folder)
    types = {
        "bart": (BartConfig, BartForConditionalGeneration),
        "pegasus": (PegasusConfig, PegasusForConditionalGeneration),
    }
    config_type, model = types[model_type]
    config = config_type(vocab_size=vocab_size, max_position_embeddings=128, **ids, **_SEQ2SEQ_SIZES)
    return _save_random(model(config), folder, num_beams=2, max_length=32, min_length=8)


def _save_random(model: Any, folder: Path, **generation: Any) -> Path:
    """Give the model random weights that make outputs depend on the input, and save it."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.4)
    for name, value in generation.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    return folder
