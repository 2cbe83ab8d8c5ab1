//! Encoding in pieces gives the ids of the whole text, stops at its limit, and never refuses a text that fits.
//!
//! The reference is the tokenizer library on the whole text at once, over text of every kind that Unicode has.

use proptest::prelude::*;
use serde_json::Value;
use std::sync::LazyLock;
use text::{
    EncodeLimit, Language, Message, RenderOptions, Role, TemplateHost, TextError, Tokenizer,
};
use tokenizers::Tokenizer as Library;

/// A tokenizer as both read it; the library without the control tokens, which text of users never is.
struct Both {
    ours: Tokenizer,
    library: Library,
}

impl Both {
    fn new(path: &str, change: impl FnOnce(&mut Value)) -> Self {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let bytes = std::fs::read(root.join(path)).unwrap();
        let mut file: Value = serde_json::from_slice(&bytes).unwrap();
        change(&mut file);
        let ours = Tokenizer::from_bytes(file.to_string().as_bytes()).unwrap();
        let blank = |token: &Value| {
            token["content"].as_str().is_some_and(|text| text.chars().all(char::is_whitespace))
        };
        file["added_tokens"].as_array_mut().unwrap().retain(blank);
        let library = Library::from_bytes(file.to_string().as_bytes()).unwrap();
        Self { ours, library }
    }

    fn assert_equal(&self, text: &str) {
        let whole = self.library.encode_fast(text, false).unwrap();
        assert_eq!(self.ours.encode(text).unwrap(), whole.get_ids(), "{text:?}");
    }
}

/// The demo model's, which is Qwen's in small; one with white-space tokens and whole words; GPT-2's steps.
static TOKENIZERS: LazyLock<[Both; 3]> = LazyLock::new(|| {
    let blanks = |file: &mut Value| {
        file["model"]["ignore_merges"] = true.into();
        let added = file["added_tokens"].as_array_mut().unwrap();
        added.clear();
        for (text, id, normalized) in
            [("   ", 4087, false), ("\n\n\n", 4088, true), ("\t", 4089, true)]
        {
            added.push(serde_json::json!({ "id": id, "content": text, "special": false,
                "normalized": normalized, "single_word": false, "lstrip": false, "rstrip": false }));
        }
    };
    let old = |file: &mut Value| {
        file["normalizer"] = Value::Null;
        file["pre_tokenizer"] = serde_json::json!({ "type": "ByteLevel", "add_prefix_space": false,
            "trim_offsets": true, "use_regex": true });
    };
    [
        Both::new("models/demo/tokenizer.json", |_| {}),
        Both::new("models/demo/tokenizer.json", blanks),
        Both::new("models/demo/tokenizer.json", old),
    ]
});

/// Text of many scripts and none: words, runs, marks out of order, parts of syllables, control tokens spelled out.
fn text() -> impl Strategy<Value = String> {
    let chosen = prop_oneof![
        Just("the "),
        Just("ing"),
        Just("'LL"),
        Just("don't"),
        Just("\r\n"),
        Just("\n\n\n\n"),
        Just("    "),
        Just("\t"),
        Just("<|im_end|>"),
        Just("<think>"),
        Just("1234567890"),
        Just("..."),
        Just("天地玄黃"),
        Just("Привет"),
        Just("e\u{301}"),
        Just("\u{1100}\u{1161}\u{11a8}"),
        Just("\u{1fbe}\u{308}\u{301}"),
        Just("\u{212a}"),
        Just("q\u{323}\u{307}"),
        Just("\u{301}\u{327}"),
        Just("👩‍👩‍👧"),
        Just("\u{a0}\u{2003}"),
        Just("\u{0}"),
        Just("ﬁ"),
        Just("हिन्दी"),
        Just("{\"a\": [1,2]}"),
    ];
    let piece = prop_oneof![
        4 => chosen.prop_map(str::to_owned),
        2 => any::<char>().prop_map(String::from),
        2 => "\\PC{0,12}",
        1 => ("[ a-e\\n]", 1usize..400).prop_map(|(unit, count)| unit.repeat(count)),
        1 => "[ab]{1,300}",
    ];
    proptest::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn pieces_are_the_whole(text in text()) {
        TOKENIZERS.iter().for_each(|both| both.assert_equal(&text));
    }

    #[test]
    fn what_fits_is_never_refused(text in text()) {
        for both in TOKENIZERS.iter() {
            let tokens = both.ours.encode(&text).unwrap().len();
            let most = both.ours.text_bytes_max(tokens);
            prop_assert!(text.len() <= most, "{} bytes, {tokens} tokens", text.len());
        }
    }

    #[test]
    fn encoding_stops_at_its_limit(text in text(), limit in 0usize..40) {
        let tokenizer = &TOKENIZERS[0].ours;
        let ids = tokenizer.encode(&text).unwrap();
        let within = |counted| {
            tokenizer.encode_within(&text, EncodeLimit { tokens: limit, counted, gone: &|| false })
        };
        match within(usize::MAX) {
            Ok(found) => prop_assert!(found == ids && ids.len() <= limit),
            Err(TextError::TooManyTokens { tokens, all }) => {
                prop_assert!(all && tokens == ids.len() && tokens > limit);
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
        if let Err(TextError::TooManyTokens { tokens, .. }) = within(0) {
            prop_assert!(tokens > limit && tokens <= ids.len());
        } else {
            prop_assert!(ids.len() <= limit);
        }
    }
}

#[test]
fn long_runs_are_the_whole() {
    for unit in ["a", "ab", "aab", " ", "\n", "-", "=-", "天", "abcdefgh", "0", "\u{1f600}"] {
        let text = unit.repeat((200 << 10) / unit.len());
        TOKENIZERS[..2].iter().for_each(|both| both.assert_equal(&text));
        TOKENIZERS[..2].iter().for_each(|both| both.assert_equal(&format!("x{text}y")));
    }
}

#[test]
fn marks_in_a_row_are_the_whole_up_to_their_limit() {
    let tokenizer = &TOKENIZERS[0];
    tokenizer.assert_equal(&format!("q{}", "\u{301}\u{327}".repeat(1 << 14)));
    let refused = tokenizer.ours.encode(&"\u{301}".repeat((1 << 16) + 1)).unwrap_err();
    assert!(refused.is_client_mistake() && refused.to_string().contains("65536"), "{refused}");
}

#[test]
fn a_text_is_given_up_when_nobody_wants_it() {
    let tokenizer = &TOKENIZERS[0].ours;
    let limit = EncodeLimit { gone: &|| true, ..EncodeLimit::NONE };
    let result = tokenizer.encode_within(&"word ".repeat(100_000), limit);
    assert!(matches!(result, Err(TextError::Gone)), "{result:?}");
}

#[test]
fn eight_mebibytes_of_one_letter_end_at_the_limit() {
    let tokenizer = &TOKENIZERS[0].ours;
    let run = "a".repeat(8 << 20);
    let limit = EncodeLimit { tokens: 4096, counted: 8192, gone: &|| false };
    let result = tokenizer.encode_within(&run, limit);
    let Err(TextError::TooManyTokens { tokens, all: false }) = result else { panic!("{result:?}") };
    // The piece that passed the limit is the last that was encoded.
    assert!((8193..32 << 10).contains(&tokens), "{tokens}");
}

#[test]
fn rendering_ends_where_the_context_would() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
    let language =
        Language::load(&store::format::open(&folder).unwrap(), 4096, &TemplateHost::here())
            .unwrap();
    let template = language.template.as_ref().unwrap();
    assert!(language.prints_contents);
    let render = |messages: &[Message], tokens| {
        let limit = EncodeLimit { tokens, counted: tokens, gone: &|| false };
        let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
        language.render_within(template, messages, &[], &options, &mut |_| None, limit)
    };
    let most = language.text_limit(100).bytes;
    let long = [Message::new(Role::User, "a".repeat(most + 1))];
    let refused = render(&long, 100).unwrap_err();
    assert!(
        matches!(refused, TextError::TooMuchText { bytes, all: true, .. } if bytes == most + 1)
    );
    // Thinking of an earlier turn and white space are left out by the template, so they do not count.
    let mut thought = Message::new(Role::Assistant, "Yes.");
    thought.reasoning = Some("hm ".repeat(most));
    let blank = Message::new(Role::User, format!("Why?{}", " ".repeat(2 * most)));
    let fits = render(&[Message::new(Role::User, "So?"), thought, blank], 100).unwrap();
    assert!(fits.tokens.len() < 100);
    // What only the template can tell is refused while it prints.
    let mut called = Message::new(Role::Assistant, "");
    let arguments = serde_json::json!({ "text": "a".repeat(2 * most) });
    called.tool_calls.push(text::ToolCall {
        id: None,
        name: "say".to_owned(),
        arguments: arguments.as_object().unwrap().clone(),
    });
    let refused = render(&[Message::new(Role::User, "So?"), called], 100).unwrap_err();
    assert!(matches!(refused, TextError::TooMuchText { all: false, .. }), "{refused}");
}
