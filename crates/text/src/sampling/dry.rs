//! DRY, "don't repeat yourself": tokens that would extend a repetition become less likely, the longer it is the more.
//!
//! The formula is that of its author (text-generation-webui, pull request 5677), with the names of llama.cpp. Where the
//! last n tokens have occurred before, the token that followed there loses `multiplier * base^(n - allowed_length)`, if
//! n is at least `allowed_length`; of several occurrences the longest counts. A repetition does not go across a token
//! in which a sequence breaker ends, and such a token is not made less likely.
//!
//! A token costs one pass over the window: the Z-algorithm gives the length of all repetitions together.

use std::fmt;

use super::SamplingError;
use crate::TokenTexts;

/// Sequence breakers of a request.
pub const SEQUENCE_BREAKERS_MAX: usize = 32;
/// Bytes of a sequence breaker.
pub const SEQUENCE_BREAKER_BYTES_MAX: usize = 64;
/// Tokens of a repetition that are counted: a longer one is as bad as one of this length.
pub const REPEATED_TOKENS_MAX: usize = 1024;
/// The most that a logit loses: more would only leave the range of its type.
const PENALTY_MAX: f32 = 1e30;

/// How repetitions are made less likely.
#[derive(Debug, Clone, PartialEq)]
pub struct DryOptions {
    /// What the shortest repetition costs; 0 is off. Finite, at least 0.
    pub multiplier: f32,
    /// What each further token multiplies it by. Finite, at least 1.
    pub base: f32,
    /// Tokens of the shortest repetition that costs something: from 1 to [`REPEATED_TOKENS_MAX`].
    pub allowed_length: usize,
    /// Looks at this many of the last tokens, prompt included; `None` looks at all.
    pub window: Option<usize>,
    /// Texts that a repetition does not go across.
    pub breakers: Vec<String>,
}

impl Default for DryOptions {
    /// Off; the other values are those that its author recommends.
    fn default() -> Self {
        Self {
            multiplier: 0.0,
            base: 1.75,
            allowed_length: 2,
            window: None,
            breakers: ["\n", ":", "\"", "*"].map(str::to_owned).to_vec(),
        }
    }
}

impl DryOptions {
    /// Whether it changes anything.
    pub fn is_on(&self) -> bool {
        self.multiplier != 0.0 && self.window != Some(0)
    }

    pub(super) fn validate(&self) -> Result<(), SamplingError> {
        let wrong = |name, value: &dyn fmt::Display, allowed| {
            Err(SamplingError::parameter(name, value, allowed))
        };
        if !(self.multiplier.is_finite() && self.multiplier >= 0.0) {
            return wrong("dry_multiplier", &self.multiplier, "a finite number, 0 or above");
        }
        // Clients send the rest along although it is off, as they have it.
        if !self.is_on() {
            return Ok(());
        }
        if !(self.base.is_finite() && self.base >= 1.0) {
            return wrong("dry_base", &self.base, "a finite number, 1 or above");
        }
        if !(1..=REPEATED_TOKENS_MAX).contains(&self.allowed_length) {
            return wrong("dry_allowed_length", &self.allowed_length, "between 1 and 1024");
        }
        if self.breakers.len() > SEQUENCE_BREAKERS_MAX {
            let count = format!("a list of {}", self.breakers.len());
            return wrong("dry_sequence_breakers", &count, "at most 32 texts");
        }
        let fits = |text: &&String| !(1..=SEQUENCE_BREAKER_BYTES_MAX).contains(&text.len());
        match self.breakers.iter().find(fits) {
            Some(text) => {
                let bytes = format!("a text of {} bytes", text.len());
                wrong("dry_sequence_breakers", &bytes, "texts of 1 to 64 bytes")
            }
            None => Ok(()),
        }
    }
}

/// Finds what would extend a repetition; memory is kept between tokens.
#[derive(Debug, Clone)]
pub(super) struct Dry {
    options: DryOptions,
    texts: TokenTexts,
    /// `[tokens]`: how many tokens from there backwards are those of the end.
    lengths: Vec<u32>,
    /// `[vocabulary]`: the longest repetition that a token would extend; zero between calls.
    longest: Vec<u32>,
    extending: Vec<u32>,
    /// The text before a token, as far as a breaker may reach.
    tail: Vec<u8>,
}

impl Dry {
    pub(super) fn new(options: DryOptions, texts: TokenTexts, vocabulary: usize) -> Self {
        let longest = vec![0; vocabulary];
        let (lengths, extending, tail) = Default::default();
        Self { options, texts, lengths, longest, extending, tail }
    }

    /// Tokens that would extend a repetition at the end of `history`, and what they lose.
    pub(super) fn penalties(&mut self, history: &[u32]) -> Vec<(u32, f32)> {
        let window = self.options.window.unwrap_or(history.len());
        let history = &history[history.len().saturating_sub(window)..];
        let allowed = self.options.allowed_length;
        self.measure(history);
        // Place 0 is the end itself.
        let found = self.lengths.iter().skip(1).copied().max().unwrap_or(0) as usize;
        let reach = if found < allowed { 0 } else { self.unbroken(history, found) };
        if reach < allowed {
            return Vec::new();
        }
        let mut extending = std::mem::take(&mut self.extending);
        for back in 1..history.len() {
            let length = self.lengths[back].min(reach as u32);
            let next = history.len() - back;
            let token = history[next];
            // An id without a logit cannot be drawn; padding rows and images have such ids.
            let Some(&known) = self.longest.get(token as usize) else { continue };
            if (length as usize) < allowed || length <= known || self.breaks(history, next) {
                continue;
            }
            if known == 0 {
                extending.push(token);
            }
            self.longest[token as usize] = length;
        }
        let penalty = |token: &u32| {
            let length = std::mem::take(&mut self.longest[*token as usize]) as usize;
            let more = power(self.options.base, length - allowed);
            (*token, (self.options.multiplier * more).min(PENALTY_MAX))
        };
        let penalties = extending.iter().map(penalty).collect();
        extending.clear();
        self.extending = extending;
        penalties
    }

    /// Sets `lengths[back]` to the number of tokens, at most [`REPEATED_TOKENS_MAX`], by which the tokens that end
    /// `back` before the end are those of the end: the Z-algorithm, backwards.
    fn measure(&mut self, history: &[u32]) {
        let count = history.len();
        let at = |back: usize| history[count - 1 - back];
        self.lengths.clear();
        self.lengths.resize(count, 0);
        // Places from `start` to `end` are known to be those of the end.
        let (mut start, mut end) = (0, 0);
        for back in 1..count {
            let mut length = match back < end {
                true => (self.lengths[back - start] as usize).min(end - back),
                false => 0,
            };
            while length < REPEATED_TOKENS_MAX
                && back + length < count
                && at(length) == at(back + length)
            {
                length += 1;
            }
            self.lengths[back] = length as u32;
            if back + length > end {
                (start, end) = (back, back + length);
            }
        }
    }

    /// How many of the last tokens no breaker ends in; those before `most` are not looked at.
    fn unbroken(&mut self, history: &[u32], most: usize) -> usize {
        let places = (history.len().saturating_sub(most)..history.len()).rev();
        let mut count = 0;
        for place in places {
            if self.breaks(history, place) {
                break;
            }
            count += 1;
        }
        count
    }

    /// Whether a breaker ends in a token.
    fn breaks(&mut self, history: &[u32], place: usize) -> bool {
        let Some(longest) = self.options.breakers.iter().map(String::len).max() else {
            return false;
        };
        // What a breaker that ends here may have before.
        let mut first = place;
        let mut bytes = 0;
        while first > 0 && bytes + 1 < longest {
            first -= 1;
            bytes += self.texts.bytes(history[first]).len();
            if place - first >= longest {
                break;
            }
        }
        self.tail.clear();
        for &token in &history[first..place] {
            self.tail.extend_from_slice(self.texts.bytes(token));
        }
        let before = self.tail.len();
        self.tail.extend_from_slice(self.texts.bytes(history[place]));
        self.options.breakers.iter().any(|breaker| {
            // Where a breaker may begin that ends behind `before`.
            let begin = (before + 1).saturating_sub(breaker.len());
            self.tail[begin..].windows(breaker.len()).any(|piece| piece == breaker.as_bytes())
        })
    }
}

/// A power by multiplications alone, which every platform rounds alike.
fn power(base: f32, mut exponent: usize) -> f32 {
    let (mut square, mut product) = (base, 1.0f32);
    while exponent > 0 {
        if exponent % 2 == 1 {
            product *= square;
        }
        square *= square;
        exponent /= 2;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::super::Xoshiro256;
    use super::*;
    use std::collections::BTreeMap;

    /// Tokens of one letter each, `a` is 0; behind them `bc`, a line break and `x:`.
    fn texts() -> TokenTexts {
        let letters = (b'a'..=b'z').map(|letter| vec![letter]);
        let more = ["bc", "\n", "x:"].map(|text| text.as_bytes().to_vec());
        TokenTexts::of(&letters.chain(more).collect::<Vec<_>>())
    }

    fn tokens(text: &str) -> Vec<u32> {
        let token = |letter: char| match letter {
            '\n' => 27,
            ':' => 28,
            letter => u32::from(letter) - u32::from('a'),
        };
        text.chars().map(token).collect()
    }

    fn penalties(options: &DryOptions, text: &str) -> Vec<(u32, f32)> {
        Dry::new(options.clone(), texts(), 29).penalties(&tokens(text))
    }

    fn options() -> DryOptions {
        DryOptions { multiplier: 0.8, ..DryOptions::default() }
    }

    #[test]
    fn what_would_extend_a_repetition_loses_by_its_length() {
        // Nothing repeats, one token repeats, two do, four do.
        assert_eq!(penalties(&options(), "abcd"), []);
        assert_eq!(penalties(&options(), "abcdb"), []);
        assert_eq!(penalties(&options(), "abcdab"), [(2, 0.8)]);
        assert_eq!(penalties(&options(), "abcdeabcd"), [(4, 0.8 * 3.0625)]);
        // Two continuations; the longest repetition of each counts.
        let found = penalties(&options(), "xabcyabdxab");
        assert_eq!(found, [(3, 0.8), (2, 0.8 * 1.75)]);
        let exact = DryOptions { allowed_length: 3, ..options() };
        assert_eq!(penalties(&exact, "xabcyabdxab"), [(2, 0.8)]);
        let short = DryOptions { window: Some(6), ..options() };
        assert_eq!(penalties(&short, "xabcyabdxab"), [(3, 0.8)]);
        // A repetition that overlaps itself.
        assert_eq!(penalties(&options(), "aaaa"), [(0, 0.8 * 1.75)]);
    }

    #[test]
    fn breakers_end_a_repetition_and_are_not_made_less_likely() {
        // Behind the break are two tokens, one, none.
        assert_eq!(penalties(&options(), "z\nabcz\nab"), [(2, 0.8)]);
        assert_eq!(penalties(&options(), "za\nbcza\nb"), []);
        assert_eq!(penalties(&options(), "zab\nczab\n"), []);
        // What follows the repetition is a break: a list may go on.
        assert_eq!(penalties(&options(), "ab\ncab"), []);
        // Within a token, and across tokens.
        assert_eq!(penalties(&options(), "a:bca:b"), []);
        let across = DryOptions { breakers: vec!["qr".to_owned()], ..options() };
        assert_eq!(penalties(&across, "qrabcqrab"), [(2, 0.8)]);
        assert_eq!(penalties(&across, "aqrbcaqrb"), []);
        let none = DryOptions { breakers: Vec::new(), ..options() };
        assert_eq!(penalties(&none, "z\nabcz\nab"), [(2, 0.8 * 3.0625)]);
    }

    /// From the definition: every earlier place, token by token.
    fn slowly(options: &DryOptions, history: &[u32]) -> BTreeMap<u32, f32> {
        let broken = |token: u32| options.breakers.iter().any(|_| token >= 27);
        let mut lengths: BTreeMap<u32, usize> = BTreeMap::new();
        for next in 1..history.len() {
            let same = |n: &usize| {
                let (here, there) = (history.len() - n, next.checked_sub(*n));
                there.is_some_and(|there| history[there] == history[here] && !broken(history[here]))
            };
            let length = (1..=next).take_while(same).count();
            if length >= options.allowed_length && !broken(history[next]) {
                let known = lengths.entry(history[next]).or_default();
                *known = length.max(*known);
            }
        }
        let penalty = |(token, length): (u32, usize)| {
            (token, options.multiplier * power(options.base, length - options.allowed_length))
        };
        lengths.into_iter().map(penalty).collect()
    }

    #[test]
    fn one_pass_finds_what_comparing_every_place_finds() {
        let mut found = 0;
        for case in 0..600 {
            let mut random = Xoshiro256::new(case);
            let letters = 2 + random.below(3);
            let history: Vec<u32> = (0..random.below(60))
                .map(|_| match random.below(12) {
                    0 => 27,
                    _ => random.below(letters) as u32,
                })
                .collect();
            let options = DryOptions { allowed_length: 1 + random.below(3) as usize, ..options() };
            let mut dry = Dry::new(options.clone(), texts(), 29);
            for end in 0..=history.len() {
                let expected = slowly(&options, &history[..end]);
                let penalties: BTreeMap<u32, f32> =
                    dry.penalties(&history[..end]).into_iter().collect();
                found += penalties.len();
                assert_eq!(penalties, expected, "case {case}, {:?}", &history[..end]);
            }
        }
        assert!(found > 10_000, "{found} penalties were compared");
    }

    #[test]
    fn a_long_loop_costs_no_more_than_a_number_holds() {
        let history = vec![3; 100_000];
        let mut dry = Dry::new(options(), texts(), 29);
        assert_eq!(dry.penalties(&history), [(3, PENALTY_MAX)]);
        let flat = DryOptions { base: 1.0, ..options() };
        assert_eq!(Dry::new(flat, texts(), 29).penalties(&history), [(3, 0.8)]);
        assert_eq!(power(1.5, 5), 7.59375);
    }

    #[test]
    fn options_out_of_range_are_named_where_it_is_on() {
        let refused = |options: DryOptions| match options.validate() {
            Err(SamplingError::Parameter { name, .. }) => name,
            other => panic!("{other:?}"),
        };
        assert!(options().validate().is_ok());
        for multiplier in [-1.0, f32::NAN, f32::INFINITY] {
            assert_eq!(refused(DryOptions { multiplier, ..options() }), "dry_multiplier");
        }
        for base in [0.5, f32::NAN] {
            assert_eq!(refused(DryOptions { base, ..options() }), "dry_base");
        }
        for allowed_length in [0, 1025] {
            let options = DryOptions { allowed_length, ..options() };
            assert_eq!(refused(options.clone()), "dry_allowed_length");
            assert!(DryOptions { multiplier: 0.0, ..options }.validate().is_ok());
        }
        for breakers in [vec![String::new()], vec!["x".repeat(65)], vec!["x".to_owned(); 33]] {
            assert_eq!(refused(DryOptions { breakers, ..options() }), "dry_sequence_breakers");
        }
    }
}
