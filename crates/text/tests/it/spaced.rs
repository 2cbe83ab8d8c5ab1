//! Tokenizers with `▁` for spaces and tokens of bytes, as Gemma's: the ids are the library's, decoding is exact, and
//! files that mean something else are refused.

use proptest::prelude::*;
use serde_json::{Value, json};
use text::Tokenizer;

/// Characters that are tokens. Of those with several bytes some begin alike, and the text has others that do.
const CHARACTERS: &str = "▁abdehtén中ü😀😁\n<>0";
/// Pieces in the order of their merges.
const MERGES: [(&str, &str); 17] = [
    ("▁", "t"),
    ("h", "e"),
    ("▁t", "he"),
    ("▁", "▁"),
    ("▁▁", "▁▁"),
    ("\n", "\n"),
    ("é", "é"),
    ("中", "中"),
    ("a", "b"),
    ("ab", "ab"),
    ("ab", "a"),
    ("n", "d"),
    ("▁", "ab"),
    ("😀", "😀"),
    ("e", "n"),
    ("▁", "中"),
    ("<", "0"),
];

fn file() -> Value {
    let mut tokens: Vec<String> = ["<pad>", "<eos>", "<bos>", "<unk>"].map(str::to_owned).into();
    tokens.extend((0..=255).map(|byte: u8| format!("<0x{byte:02X}>")));
    tokens.extend(CHARACTERS.chars().map(String::from));
    for (left, right) in MERGES {
        let joined = format!("{left}{right}");
        if !tokens.contains(&joined) {
            tokens.push(joined);
        }
    }
    let vocab: Value =
        tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
    let special = |id: usize| {
        json!({"id": id, "content": tokens[id], "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    json!({
        "version": "1.0",
        "added_tokens": (0..4).map(special).collect::<Vec<_>>(),
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer":
            {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "ignore_merges": false, "vocab": vocab,
            "merges": MERGES.iter().map(|(a, b)| json!([a, b])).collect::<Vec<_>>()},
    })
}

fn ours(file: &Value) -> Tokenizer {
    Tokenizer::from_bytes(file.to_string().as_bytes()).unwrap()
}

proptest! {
    #[test]
    fn ids_are_those_of_the_library(
        parts in prop::collection::vec(prop::sample::select(vec![
            " ", "  ", " the", "then", "abab", "aba", "é", "éé", "è", "中", "丁", "中中", "丰", "😀", "😂", "😀😀", "\n\n",
            "x", "<0xE4>", "<0", "▁", "▁▁t", "ü", "ÿ", "\u{0}", "\u{7f}", "zd", "nd",
        ]), 0..40),
    ) {
        let text = parts.concat();
        let file = file();
        let library = tokenizers::Tokenizer::from_bytes(file.to_string()).unwrap();
        let expected = library.encode(text.as_str(), false).unwrap();
        let tokenizer = ours(&file);
        let found = tokenizer.encode(&text).unwrap();
        prop_assert_eq!(&found, expected.get_ids(), "{:?}", &text);
        prop_assert_eq!(tokenizer.decode(&found), text.replace('▁', " "));
    }
}

/// Longer than what is merged at once.
#[test]
fn a_long_text_has_the_ids_of_the_library() {
    let file = file();
    let text = " the 中丁 abab\n\n\u{1f602} é".repeat(2000) + &"ab".repeat(20_000);
    let library = tokenizers::Tokenizer::from_bytes(file.to_string()).unwrap();
    let expected = library.encode(text.as_str(), false).unwrap();
    assert_eq!(ours(&file).encode(&text).unwrap(), expected.get_ids());
}

#[test]
fn control_tokens_stay_the_templates() {
    let tokenizer = ours(&file());
    assert!(tokenizer.encode("<eos>").unwrap().iter().all(|&id| !tokenizer.is_control(id)));
    assert_eq!(tokenizer.token_id("<eos>"), Some(1));
    assert_eq!(tokenizer.token_bytes(4 + 0xe4), [0xe4]);
}

#[test]
fn files_that_mean_something_else_are_refused() {
    for (pointer, value, field) in [
        ("/model/byte_fallback", json!(false), "byte_fallback"),
        ("/pre_tokenizer/behavior", json!("Isolated"), "pre_tokenizer"),
        ("/pre_tokenizer/pattern", json!({"Regex": " "}), "pre_tokenizer"),
        ("/decoder/decoders/0/content", json!("_"), "decoder"),
        ("/decoder/decoders/2/type", json!("Strip"), "decoder"),
        ("/normalizer/content", json!("_"), "normalizer"),
    ] {
        let mut file = file();
        *file.pointer_mut(pointer).unwrap() = value;
        let error = Tokenizer::from_bytes(file.to_string().as_bytes()).unwrap_err().to_string();
        assert!(error.contains(field), "{pointer}: {error}");
    }
    let mut file = file();
    file["model"]["vocab"].as_object_mut().unwrap().remove("<0xE4>");
    let error = Tokenizer::from_bytes(file.to_string().as_bytes()).unwrap_err().to_string();
    assert!(error.contains("byte 0xe4 has no token"), "{error}");
}
