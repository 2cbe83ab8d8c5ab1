//! What dividing a text by a file's expression costs, counted before it is done.
//!
//! The engines of the library are linear for one match, but words are found one after another: an expression such as
//! `a+b|a` looks at all that is left of a run of `a` for each of its letters, and its author is a stranger. So the
//! expression is run here as an automaton that finds nothing and counts bytes: from each place where a word is looked
//! for, up to where no branch can match any more. That bounds what an engine reads, whatever it tries first.
//!
//! That is more than an engine reads which stops at the first branch that matches: gpt-oss's expression has a last
//! branch that could read on where an earlier one has a short word. So the expressions of the known families are
//! recognised and not counted, which would take 3 to 7 % of encoding: the tests show that, branch by branch, they read
//! each byte a few times in every text.

use super::TextError;
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson;
use regex_automata::util::pool::Pool;
use regex_automata::{Anchored, Input, MatchKind};

/// Bytes that may be read for each byte of a text, and for any text.
const READS_PER_BYTE: usize = 32;
const READS_SPARE: usize = 64 << 10;
/// Memory of the states that were met, for all expressions of a tokenizer; the largest known one takes half a megabyte.
const CACHE_BYTES: usize = 8 << 20;
/// Memory of the automata of all expressions of a tokenizer; the largest known one takes a megabyte.
const AUTOMATA_BYTES: usize = 8 << 20;
/// So often they are forgotten before an expression is suspected to have a new one for every few bytes.
const CACHE_CLEARS: usize = 4;
/// Bytes that a state must serve on the average from then on.
const BYTES_PER_STATE: usize = 16;

type MakeCache = Box<dyn Fn() -> Cache + Send + Sync>;

/// The automaton of an expression.
pub(super) struct Effort {
    automaton: DFA,
    caches: Pool<Cache, MakeCache>,
}

impl Effort {
    /// The automaton of a regular expression, one of `count` of a tokenizer: they share what may be taken of memory.
    pub(super) fn new(expression: &str, count: usize) -> Result<Self, String> {
        let count = count.max(1);
        let config = DFA::config()
            .match_kind(MatchKind::All)
            .cache_capacity(CACHE_BYTES / count)
            .minimum_cache_clear_count(Some(CACHE_CLEARS))
            .minimum_bytes_per_state(Some(BYTES_PER_STATE));
        let program = thompson::Config::new().nfa_size_limit(Some(AUTOMATA_BYTES / count));
        let automaton = DFA::builder().configure(config).thompson(program).build(expression);
        let automaton = automaton.map_err(|error| error.to_string())?;
        let template = automaton.clone();
        let make: MakeCache = Box::new(move || template.create_cache());
        Ok(Self { automaton, caches: Pool::new(make) })
    }

    /// Counts the reading of a text as its words are found.
    pub(super) fn count<'e, 't>(&'e self, text: &'t str) -> Count<'e, 't> {
        let most = text.len().saturating_mul(READS_PER_BYTE).saturating_add(READS_SPARE);
        Count { effort: self, text, from: 0, reads: 0, most }
    }
}

/// How far the reading of a text is.
pub(super) struct Count<'e, 't> {
    effort: &'e Effort,
    text: &'t str,
    /// Where the next word is looked for.
    from: usize,
    reads: usize,
    most: usize,
}

impl Count<'_, '_> {
    /// Counts what finding the next word reads: at each place up to the first at which something matches.
    ///
    /// # Errors
    /// More than a text of this length is worth.
    pub(super) fn before_next(&mut self) -> Result<(), TextError> {
        let mut cache = self.effort.caches.get();
        while self.from <= self.text.len() && !self.read_at_place(&mut cache)? {
            self.step();
        }
        Ok(())
    }

    /// Tells that the word ended at `end`, and whether it was empty.
    pub(super) fn found(&mut self, end: usize, empty: bool) {
        self.from = end;
        if empty {
            self.step();
        }
    }

    fn step(&mut self) {
        let next = self.text.get(self.from..).and_then(|rest| rest.chars().next());
        self.from += next.map_or(1, char::len_utf8);
    }

    /// Reads on from the place until no branch can match; true when one has.
    fn read_at_place(&mut self, cache: &mut Cache) -> Result<bool, TextError> {
        let automaton = &self.effort.automaton;
        let input = Input::new(self.text).range(self.from..).anchored(Anchored::Yes);
        let start = automaton.start_state_forward(cache, &input);
        let mut state = start.map_err(|_| self.too_much())?;
        let mut matched = false;
        for &byte in &self.text.as_bytes()[self.from..] {
            self.reads += 1;
            if self.reads > self.most {
                return Err(self.too_much());
            }
            state = automaton.next_state(cache, state, byte).map_err(|_| self.too_much())?;
            matched |= state.is_match();
            if state.is_dead() {
                return Ok(matched);
            }
            if state.is_quit() {
                return Err(self.too_much());
            }
        }
        let end = automaton.next_eoi_state(cache, state).map_err(|_| self.too_much())?;
        Ok(matched || end.is_match())
    }

    fn too_much(&self) -> TextError {
        let problem = format!(
            "the tokenizer's expression reads more than {READS_PER_BYTE} bytes for each of them"
        );
        TextError::Encode { bytes: self.text.len(), problem }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
mod tests {
    use super::*;

    /// Bytes read for the words that `expression` finds, and the longest text of the ones that were not refused.
    fn reads(expression: &str, text: &str) -> Result<usize, usize> {
        let effort = Effort::new(expression, 1).unwrap();
        let engine = regex::Regex::new(expression).unwrap();
        let mut count = effort.count(text);
        let mut words = engine.find_iter(text);
        loop {
            if count.before_next().is_err() {
                return Err(count.reads);
            }
            let Some(word) = words.next() else { return Ok(count.reads) };
            count.found(word.end(), word.is_empty());
        }
    }

    fn texts() -> Vec<String> {
        let pieces = [
            "a",
            "A",
            " ",
            "\n",
            "\r\n",
            "\t",
            "1",
            "'",
            "!",
            "/",
            "\u{5929}",
            "\u{e9}",
            "\u{301}",
            "\u{1f600}",
            "  a",
            " 'll",
            "a\n",
            "\n  ",
            " \n",
            "aA",
            "Aa",
            "!\n",
            "x  \n  ",
            "a1 ",
            "\u{a0}",
            "'S ",
            "\u{37b}\u{301}",
        ];
        let pairs =
            pieces.iter().flat_map(|one| pieces.iter().map(move |two| format!("{one}{two}")));
        let runs = pieces.iter().flat_map(|one| {
            let end = |two: &&str| format!("{}{two}", one.repeat(200));
            pieces.iter().map(end).collect::<Vec<_>>()
        });
        let units = pairs.chain(runs);
        units.map(|unit| unit.repeat((3_000 / unit.len()).max(2))).collect()
    }

    /// The branches of an expression, outermost first.
    fn branches(expression: &str) -> Vec<String> {
        let (mut branches, mut depth, mut escaped) = (vec![String::new()], 0, false);
        for letter in expression.chars() {
            match letter {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '(' | '[' => depth += 1,
                ')' | ']' => depth -= 1,
                '|' if depth == 0 => {
                    branches.push(String::new());
                    continue;
                }
                _ => {}
            }
            branches.last_mut().unwrap().push(letter);
        }
        branches
    }

    /// Bytes read for the words of `text` by an engine that tries branch after branch at a place, each up to where it
    /// cannot go on.
    fn reads_by_branches(automata: &mut [(DFA, Cache)], text: &str) -> usize {
        let (mut from, mut reads) = (0, 0);
        while from < text.len() {
            let mut end = None;
            for (automaton, cache) in &mut *automata {
                let input = Input::new(text).range(from..).anchored(Anchored::Yes);
                let mut state = automaton.start_state_forward(cache, &input).unwrap();
                for (at, &byte) in text.as_bytes().iter().enumerate().skip(from) {
                    reads += 1;
                    state = automaton.next_state(cache, state, byte).unwrap();
                    if state.is_match() {
                        end = Some(at);
                    }
                    if state.is_dead() {
                        break;
                    }
                }
                if !state.is_dead() && automaton.next_eoi_state(cache, state).unwrap().is_match() {
                    end = Some(text.len());
                }
                if end.is_some() {
                    break;
                }
            }
            let next = text[from..].chars().next().map_or(1, char::len_utf8);
            from = end.filter(|&end| end > from).unwrap_or(from + next);
        }
        reads
    }

    /// With the branch that is not regular read as the next one. These are not counted, because of this test.
    #[test]
    fn the_known_expressions_read_every_text_a_few_times() {
        let mut worst = (0.0_f64, String::new());
        for expression in crate::steps::known() {
            let expression = crate::steps::regular(expression);
            let automaton = |branch: &String| {
                let automaton = DFA::new(branch).unwrap();
                let cache = automaton.create_cache();
                (automaton, cache)
            };
            let mut automata: Vec<_> = branches(&expression).iter().map(automaton).collect();
            for text in texts() {
                let found = reads_by_branches(&mut automata, &text) as f64 / text.len() as f64;
                if found > worst.0 {
                    let begin: String = text.chars().take(8).collect();
                    worst = (found, format!("{expression} for {begin:?}"));
                }
            }
        }
        assert!(worst.0 < READS_PER_BYTE as f64 / 2.0, "{worst:?}");
    }

    #[test]
    fn branches_are_those_outside_of_groups_and_classes() {
        assert_eq!(branches(r"(?i:a|b)|[^|]\||c"), [r"(?i:a|b)", r"[^|]\|", "c"]);
    }

    #[test]
    fn expressions_that_read_on_for_every_word_are_refused_after_bounded_work() {
        for (expression, piece) in [
            (r"a+b|a", "a"),
            (r"(?:a|aa)+b|.", "a"),
            (r"a*?b|a", "a"),
            (r".*x", "a"),
            (r"[a-z ]+!|[a-z]+| ", "ab "),
            (r"\s*x|\s", " "),
            (r"(?:[ab]*a[ab]{0,12}c)|.", "ab"),
            (r"\p{L}+\p{N}|\p{L}", "\u{5929}"),
        ] {
            for length in [100_000, 1_000_000] {
                let text = piece.repeat(length / piece.len());
                let read = reads(expression, &text).expect_err(expression);
                let most = text.len() * READS_PER_BYTE + READS_SPARE;
                assert!(read <= most + 1, "{expression}: {read} bytes of {}", text.len());
            }
        }
    }

    /// Expressions for which the automaton has a new state at nearly every byte.
    #[test]
    fn expressions_of_too_many_states_are_refused() {
        let mut random = 1_u64;
        let text: String = std::iter::repeat_with(|| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if random >> 63 == 0 { 'a' } else { 'b' }
        })
        .take(300_000)
        .collect();
        assert!(reads(r"(?:[ab]*a[ab]{500})+|.", &text).is_err());
    }

    #[test]
    fn words_may_be_empty_and_places_without_a_word() {
        assert_eq!(reads(r"x*", "aaa"), Ok(5));
        assert!(reads(r"\d+", "a1b22c333\u{5929}").is_ok());
        assert!(Effort::new(r"\b\w+\b", 1).is_err(), "a border of words is not automatic");
    }
}
