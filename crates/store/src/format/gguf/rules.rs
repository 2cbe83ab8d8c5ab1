//! The rules that divide text into words before merging, by the names that GGUF files have for them.
//!
//! Another rule than the model's own makes other tokens and no error, so only rules that are known for certain are
//! here, and a file with any other name is refused. Each is the pre-tokenizer of the family's own tokenizer.json.

/// A rule that divides text into words before merging.
pub(super) struct Rule {
    /// As in `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    /// Expressions: each divides what the one before it left.
    pub(super) patterns: &'static [&'static str],
    /// Whether characters are composed first.
    pub(super) composes: bool,
    /// Whether a word that is a token is taken whole.
    pub(super) ignores_merges: bool,
}

/// The words of cl100k: letters, up to three digits, punctuation.
const CL100K: &[&str] = &[concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)];
/// The words of o200k: an upper-case beginning and a lower-case rest, with a contraction.
const O200K: &[&str] = &[concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)];

/// Every rule that is known for certain.
const RULES: [Rule; 8] = [
    Rule {
        names: &["qwen2", "deepseek-r1-qwen"],
        patterns: &[concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
            r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )],
        composes: true,
        ignores_merges: false,
    },
    Rule {
        names: &["qwen35"],
        patterns: &[concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|",
            r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )],
        composes: true,
        ignores_merges: false,
    },
    Rule {
        names: &["llama-bpe", "llama3", "llama-v3", "glm4", "glm5"],
        patterns: CL100K,
        composes: false,
        ignores_merges: true,
    },
    Rule { names: &["chatglm-bpe"], patterns: CL100K, composes: false, ignores_merges: false },
    Rule { names: &["gpt-4o"], patterns: O200K, composes: false, ignores_merges: true },
    Rule { names: &["minimax-m2"], patterns: O200K, composes: false, ignores_merges: false },
    Rule {
        names: &["deepseek-v3", "joyai-llm"],
        patterns: &[
            r"\p{N}{1,3}",
            r"[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+",
            concat!(
                r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"##,
                r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            ),
        ],
        composes: false,
        ignores_merges: false,
    },
    Rule {
        names: &["kimi-k2"],
        patterns: &[concat!(
            r"[\p{Han}]+|",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
            r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
            r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
            r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )],
        composes: false,
        ignores_merges: true,
    },
];

/// What a refusal of a name says.
pub(super) const KNOWN: &str = "known are qwen2, qwen35, llama-bpe, gpt-4o, deepseek-v3, joyai-llm, glm4, chatglm-bpe, \
     kimi-k2 and minimax-m2; with another rule the model would read other words than it was trained on";

/// The expressions of all rules: those of the known families' tokenizers.
pub fn word_expressions() -> impl Iterator<Item = &'static str> {
    RULES.iter().flat_map(|rule| rule.patterns.iter().copied())
}

/// The rule of a name.
pub(super) fn find(name: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.names.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_lists_a_name_of_every_rule() {
        for rule in &RULES {
            assert!(rule.names.iter().any(|name| KNOWN.contains(name)), "{:?}", rule.names);
        }
        assert!(find("default").is_none());
    }
}
