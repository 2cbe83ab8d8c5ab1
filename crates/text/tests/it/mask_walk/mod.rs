//! Random walks through the masks of a constraint: a model that knows nothing but what is allowed.

use text::Tokenizer;
use text::constraint::Constraint;
use text::sampling::Xoshiro256;

/// How an answer is drawn.
pub(crate) struct Walk<'a> {
    pub(crate) tokenizer: &'a Tokenizer,
    /// Tokens that end an answer.
    pub(crate) ends: &'a [u32],
    /// What ends free text, where text ends with a tag.
    pub(crate) close: Option<&'a str>,
    /// Ids from zero that are looked up in a mask.
    pub(crate) ids: usize,
    /// Tokens after which three of four choices prefer what closes strings, lists, objects and answers.
    pub(crate) patience: usize,
    /// Tokens of an answer that does not end.
    pub(crate) most: usize,
}

impl Walk<'_> {
    /// The tokens of an answer, and whether it came to its end.
    pub(crate) fn take(&self, constraint: &mut Constraint, seed: u64) -> (Vec<u32>, bool) {
        let mut random = Xoshiro256::new(seed);
        let close =
            self.close.map(|text| self.tokenizer.encode_marked(text, text::EncodeLimit::NONE));
        let close = close.map(Result::unwrap).unwrap_or_default();
        let mut tokens = Vec::new();
        while tokens.len() < self.most {
            let mask = constraint.allowed().unwrap();
            let allowed: Vec<u32> = (0..self.ids as u32).filter(|&id| mask.allows(id)).collect();
            assert!(
                !allowed.is_empty(),
                "seed {seed}: nothing is allowed after {:?}",
                self.tokenizer.decode(&tokens)
            );
            let hurry = tokens.len() > self.patience && !random.next_u64().is_multiple_of(4);
            let closing: Vec<u32> =
                allowed.iter().copied().filter(|&id| hurry && self.closes(id)).collect();
            let free = closing.len() != 1 && close.first().is_some_and(|id| allowed.contains(id));
            if hurry && free && tokens.last() != close.last() {
                // Free text ends with its tag alone.
                for &token in &close {
                    if !constraint.allowed().unwrap().allows(token) {
                        break;
                    }
                    constraint.accept(token).unwrap();
                    tokens.push(token);
                }
                continue;
            }
            let choice = if closing.is_empty() { &allowed } else { &closing };
            let token = choice[(random.next_u64() % choice.len() as u64) as usize];
            constraint.accept(token).unwrap();
            if self.ends.contains(&token) {
                return (tokens, true);
            }
            tokens.push(token);
        }
        (tokens, false)
    }

    fn closes(&self, id: u32) -> bool {
        self.ends.contains(&id)
            || self.tokenizer.is_control(id)
            || ["\"", "}", "]"].contains(&self.tokenizer.decode(&[id]).as_str())
    }
}
