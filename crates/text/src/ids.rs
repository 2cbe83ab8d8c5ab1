//! Token ids while a text is encoded: kept up to a limit, counted beyond it, given up when they are no longer wanted.

use super::TextError;

/// Tokens between two looks at whether the ids are still wanted.
const LOOK_TOKENS: usize = 1024;

/// How far encoding goes.
#[derive(Clone, Copy)]
pub struct EncodeLimit<'a> {
    /// Most tokens of use.
    pub tokens: usize,
    /// Beyond these, tokens are counted up to here without being kept, so that a refusal can say how many there are.
    pub counted: usize,
    /// Whether the ids are no longer wanted.
    pub gone: &'a dyn Fn() -> bool,
}

impl EncodeLimit<'_> {
    /// No limit.
    pub const NONE: EncodeLimit<'static> =
        EncodeLimit { tokens: usize::MAX, counted: usize::MAX, gone: &|| false };
}

/// Ids so far.
pub(super) struct Ids<'a> {
    ids: Vec<u32>,
    count: usize,
    looked: usize,
    limit: EncodeLimit<'a>,
}

impl<'a> Ids<'a> {
    pub(super) fn new(limit: EncodeLimit<'a>) -> Self {
        Self { ids: Vec::new(), count: 0, looked: 0, limit }
    }

    #[cfg(test)]
    pub(super) fn unbounded() -> Self {
        Self::new(EncodeLimit::NONE)
    }

    /// Ids that were pushed, those included that are not kept.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn push(&mut self, ids: &[u32]) -> Result<(), TextError> {
        self.count += ids.len();
        if self.count <= self.limit.tokens {
            self.ids.extend_from_slice(ids);
        } else {
            self.ids = Vec::new();
        }
        if self.count - self.looked >= LOOK_TOKENS {
            self.looked = self.count;
            if (self.limit.gone)() {
                return Err(TextError::Gone);
            }
        }
        if self.count > self.limit.counted.max(self.limit.tokens) {
            return Err(TextError::TooManyTokens { tokens: self.count, all: false });
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Result<Vec<u32>, TextError> {
        if self.count > self.limit.tokens {
            return Err(TextError::TooManyTokens { tokens: self.count, all: true });
        }
        Ok(self.ids)
    }
}
