"""Trains the byte-level BPE tokenizer on generated text and writes tokenizer.json and tokenizer_config.json.

Same pre-tokenizer expression as Qwen3.5 (each digit is a token of its own), same special tokens; the thinking and
tool markers are added tokens that are not `special`, so that they stay visible in decoded text.

  python3 tokenizer.py FOLDER      (FOLDER holds chat_template.jinja)
"""
import json
import os
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from data import document_text
from words import Source

VOCABULARY = 4096
SEED = 20261121
DOCUMENTS = 40000
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VISIBLE = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
SPECIAL_IDS = {text: VOCABULARY - len(SPECIAL + VISIBLE) + i for i, text in enumerate(SPECIAL)}


def corpus():
    source = Source(SEED)
    for _ in range(DOCUMENTS):
        text = document_text(source)[1]
        for marker in SPECIAL + VISIBLE:
            text = text.replace(marker, "\n")
        yield text


def build():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY - len(SPECIAL + VISIBLE), min_frequency=6,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    assert tokenizer.get_vocab_size() == VOCABULARY - len(SPECIAL + VISIBLE), tokenizer.get_vocab_size()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in VISIBLE])
    assert all(tokenizer.token_to_id(text) == id for text, id in SPECIAL_IDS.items())
    return tokenizer


def main(folder):
    tokenizer = build()
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "chat_template.jinja")) as file:
        template = file.read().rstrip("\n")
    added = {str(tokenizer.token_to_id(text)): {
        "content": text, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
        "special": text in SPECIAL} for text in SPECIAL + VISIBLE}
    content = {"tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": False, "added_tokens_decoder": added,
               "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None,
               "clean_up_tokenization_spaces": False, "model_max_length": 4096, "chat_template": template}
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as file:
        json.dump(content, file, indent=2, ensure_ascii=False)
        file.write("\n")
    source, tokens, documents = Source(SEED + 1), 0, 2000
    for _ in range(documents):
        tokens += len(tokenizer.encode(document_text(source)[1], add_special_tokens=False).ids)
    print(f"vocabulary {tokenizer.get_vocab_size()}, {tokens / documents:.1f} tokens a document")


if __name__ == "__main__":
    main(sys.argv[1])
