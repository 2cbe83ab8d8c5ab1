//! How many conversations a plan has room for, where nothing says it.

use super::CONTEXT_PART;

/// At most this many, with this context each where none is asked for.
const SEQUENCES_MAX: u64 = 4;
const AGENT_CONTEXT: usize = 16_384;

/// How many conversations at once: the most, up to four, that leave each the context asked for within a fifth of
/// the budget, or else a context of agents' first prompts within the automatic part. `tokens` are those whose keys and
/// values the whole budget would hold. One long conversation is worth more than several that do not fit.
pub(super) fn automatic_sequences(tokens: u64, context: Option<usize>, longest: usize) -> usize {
    let (tokens, each) = match context {
        Some(context) => (tokens / 5, context),
        None => (tokens / CONTEXT_PART, AGENT_CONTEXT.min(longest)),
    };
    (tokens / (each as u64).max(1)).clamp(1, SEQUENCES_MAX) as usize
}

#[cfg(test)]
mod tests {
    use super::automatic_sequences;

    #[test]
    fn long_contexts_go_before_many_of_them() {
        // 35B-A3B: 40 KiB per token, so 16 GiB hold 419,430.
        assert_eq!(automatic_sequences(419_430, None, 262_144), 2);
        assert_eq!(automatic_sequences(419_430, Some(32_768), 262_144), 2);
        assert_eq!(automatic_sequences(419_430, Some(2048), 262_144), 4);
        // 6 GiB, and 64.
        assert_eq!(automatic_sequences(157_286, None, 262_144), 1);
        assert_eq!(automatic_sequences(1_677_721, None, 262_144), 4);
        // A model made for short contexts, and one larger than everything.
        assert_eq!(automatic_sequences(200_000, None, 4096), 4);
        assert_eq!(automatic_sequences(100, Some(1 << 24), 1 << 24), 1);
    }
}
