//! Tokens with their log-probabilities, in four lists of equal length: the form of this protocol.

use serde_json::{Map, Value, json};

use crate::work::TokenLogprob;

/// What stands before an answer when it is to be repeated.
#[derive(Clone, Debug, Default)]
pub(super) struct Echo {
    /// The prompt.
    pub(super) text: String,
    /// The text of its first token, which nothing comes before: it has no probability.
    pub(super) first: Vec<u8>,
}

/// Tokens in order. Offsets are in characters of the text.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    tokens: Vec<Value>,
    logprobs: Vec<Value>,
    top: Vec<Value>,
    offsets: Vec<usize>,
    /// Where the next begins.
    offset: usize,
}

impl Tokens {
    /// The tokens of a prompt, whose probabilities are there from the second on.
    pub(super) fn prompt(&mut self, echo: &Echo, rest: &[TokenLogprob]) {
        self.place(&String::from_utf8_lossy(&echo.first), &echo.first);
        self.logprobs.push(Value::Null);
        self.top.push(Value::Null);
        self.answer(rest);
    }

    /// Tokens that have probabilities.
    pub(super) fn answer(&mut self, tokens: &[TokenLogprob]) {
        for token in tokens {
            self.place(&token.token, &token.bytes);
            self.logprobs.push(json!(token.logprob));
            // The token itself is always among them, however unlikely it was.
            let mut top = Map::new();
            for other in &token.top {
                top.entry(&*other.token).or_insert_with(|| json!(other.logprob));
            }
            top.entry(&*token.token).or_insert_with(|| json!(token.logprob));
            self.top.push(top.into());
        }
    }

    fn place(&mut self, text: &str, bytes: &[u8]) {
        self.tokens.push(text.into());
        self.offsets.push(self.offset);
        // Bytes that go on with a character begin none.
        self.offset += bytes.iter().filter(|&&byte| byte & 0xc0 != 0x80).count();
    }

    /// All since the last call; `top` is how many alternatives were asked for.
    pub(super) fn json(&mut self, top: u8) -> Value {
        let alternatives = std::mem::take(&mut self.top);
        json!({
            "tokens": std::mem::take(&mut self.tokens),
            "token_logprobs": std::mem::take(&mut self.logprobs),
            "top_logprobs": if top == 0 { Value::Null } else { alternatives.into() },
            "text_offset": std::mem::take(&mut self.offsets),
        })
    }

    /// The next text begins anew.
    pub(super) fn restart(&mut self) {
        self.offset = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_count_characters_although_a_token_ends_inside_one() {
        let token = |bytes: &[u8]| TokenLogprob {
            id: 1,
            token: String::from_utf8_lossy(bytes).into_owned(),
            bytes: bytes.to_vec(),
            logprob: -1.0,
            top: Vec::new(),
        };
        let mut tokens = Tokens::default();
        let echo = Echo { text: "aé".to_owned(), first: b"a".to_vec() };
        tokens.prompt(&echo, &[token(b"\xc3"), token(b"\xa9b")]);
        tokens.answer(&[token(b"c")]);
        let value = tokens.json(1);
        assert_eq!(value["text_offset"], json!([0, 1, 2, 3]));
        assert_eq!(value["token_logprobs"], json!([null, -1.0, -1.0, -1.0]));
        assert_eq!(value["top_logprobs"][3], json!({ "c": -1.0 }));
    }
}
