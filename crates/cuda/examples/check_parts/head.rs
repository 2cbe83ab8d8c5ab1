//! What a draft head has of its own, against plain code: pairs of a token and the trunk's output before it, experts
//! that are left out, and the way from one draft to the next: a part of the example `check`.

use cuda::PinnedBuffer;
use cuda::launch::{self, FAILED, OutputRing, Pairs, PairsOf, TakeDraft};

use super::Bench;

/// Positions that a ring has.
const ROWS: usize = 32;
const EPSILON: f32 = 1e-6;

/// RMS norm; zeros stay.
fn norm(x: &[f32], weight: &[f32]) -> Vec<f32> {
    let mean = x.iter().map(|v| v * v).sum::<f32>() / x.len() as f32;
    let scale = 1.0 / (mean + EPSILON).sqrt();
    x.iter().zip(weight).map(|(v, w)| v * scale * w).collect()
}

impl Bench {
    pub(super) fn head(&self) {
        for hidden in [64, 200, 2048] {
            self.pairs_of_steps(hidden);
            self.pairs_of_a_prompt(hidden);
            self.pairs_of_drafts(hidden);
        }
        self.left_out();
        self.drafts();
    }

    fn values(&self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.unit()).collect()
    }

    /// Runs of two sequences: one in the middle, across the end of its ring, and one from its start.
    fn pairs_of_steps(&self, hidden: usize) {
        let (positions, sequences) = ([30, 31, 32, 33, 0, 1], [2, 2, 2, 2, 0, 0]);
        let starts = [0, 0, 0, 0, 4, 4];
        let tokens = positions.len();
        let width = hidden + 1;
        let held = self.values(3 * ROWS * width);
        let [embedded, outputs] = [0, 1].map(|_| self.values(tokens * hidden));
        let norms = [0, 1].map(|_| self.values(hidden));
        let ring =
            OutputRing { values: self.floats(&held), stride: ROWS * width, rows: ROWS, width };
        let pairs = self.poison(2 * tokens * hidden);
        let rows = Pairs {
            embedded: self.floats(&embedded),
            of: PairsOf::Step(self.floats(&outputs), self.words(&starts)),
            ring,
            norms: [self.floats(&norms[0]), self.floats(&norms[1])],
            epsilon: EPSILON,
            pairs,
        };
        launch::pair_rows(&self.stream, &self.places(&positions, &sequences), &rows).unwrap();
        let (mut expected, mut kept) = (Vec::new(), held.clone());
        for token in 0..tokens {
            let row = |values: &[f32], at: usize| values[at * hidden..][..hidden].to_vec();
            expected.extend(norm(&row(&embedded, token), &norms[0]));
            let place = |position: u32| {
                (sequences[token] as usize * ROWS + position as usize % ROWS) * width
            };
            let before = match positions[token] {
                0 => vec![0.0; hidden],
                _ if starts[token] < token as u32 => row(&outputs, token - 1),
                position => held[place(position - 1)..][..hidden].to_vec(),
            };
            expected.extend(norm(&before, &norms[1]));
            let to = place(positions[token]);
            kept[to..to + hidden].copy_from_slice(&row(&outputs, token));
        }
        self.compare(&format!("pairs of a step, {hidden}"), pairs, self.floats(&expected));
        self.compare(&format!("ring of outputs, {hidden}"), ring.values, self.floats(&kept));
    }

    /// A run of more tokens than the ring has rows; the ring stays.
    fn pairs_of_a_prompt(&self, hidden: usize) {
        let (tokens, first) = (2 * ROWS + 3, 5);
        let held = self.values(ROWS * hidden);
        let [embedded, outputs] = [0, 1].map(|_| self.values(tokens * hidden));
        let norms = [0, 1].map(|_| self.values(hidden));
        let ring = OutputRing {
            values: self.floats(&held),
            stride: ROWS * hidden,
            rows: ROWS,
            width: hidden,
        };
        let pairs = self.poison(2 * tokens * hidden);
        let rows = Pairs {
            embedded: self.floats(&embedded),
            of: PairsOf::Prompt(self.floats(&outputs)),
            ring,
            norms: [self.floats(&norms[0]), self.floats(&norms[1])],
            epsilon: EPSILON,
            pairs,
        };
        let positions: Vec<u32> = (first..first + tokens as u32).collect();
        let places = self.places(&positions, &vec![0; tokens]);
        launch::pair_rows(&self.stream, &places, &rows).unwrap();
        let mut expected = Vec::new();
        for token in 0..tokens {
            expected.extend(norm(&embedded[token * hidden..][..hidden], &norms[0]));
            let before = match token {
                0 => &held[(first as usize - 1) * hidden..][..hidden],
                _ => &outputs[(token - 1) * hidden..][..hidden],
            };
            expected.extend(norm(before, &norms[1]));
        }
        self.compare(&format!("pairs of a prompt, {hidden}"), pairs, self.floats(&expected));
        self.compare(&format!("its ring, {hidden}"), ring.values, self.floats(&held));
    }

    /// The first draft has the ring's output, the next one the head's own.
    fn pairs_of_drafts(&self, hidden: usize) {
        let held = self.values(ROWS * hidden);
        let [embedded, own] = [0, 1].map(|_| self.values(hidden));
        let norms = [0, 1].map(|_| self.values(hidden));
        let ring = OutputRing {
            values: self.floats(&held),
            stride: ROWS * hidden,
            rows: ROWS,
            width: hidden,
        };
        for drafted in [0, 1] {
            let pairs = self.poison(2 * hidden);
            let rows = Pairs {
                embedded: self.floats(&embedded),
                of: PairsOf::Draft(self.floats(&own), self.words(&[drafted])),
                ring,
                norms: [self.floats(&norms[0]), self.floats(&norms[1])],
                epsilon: EPSILON,
                pairs,
            };
            launch::pair_rows(&self.stream, &self.places(&[40], &[0]), &rows).unwrap();
            let before = if drafted == 0 { &held[39 % ROWS * hidden..][..hidden] } else { &own };
            let expected = [norm(&embedded, &norms[0]), norm(before, &norms[1])].concat();
            let case = format!("pair of a draft behind {drafted}, {hidden}");
            self.compare(&case, pairs, self.floats(&expected));
        }
    }

    fn expect_equal(&self, case: &str, good: bool) {
        println!("{case}{}", if good { "" } else { " FAILED" });
        self.failed.set(self.failed.get() || !good);
    }

    fn left_out(&self) {
        for k in [1, 6, 32] {
            for share in [0, 1, 2] {
                let there = |rank: usize| share == 2 || share == 1 && rank % 3 == 1;
                let ids: Vec<u32> = (0..k as u32).map(|rank| 3 * rank + 5).collect();
                let addresses: Vec<u64> =
                    (0..k).map(|rank| if there(rank) { 4096 + rank as u64 } else { 0 }).collect();
                let factors = self.values(k);
                let first = (0..k).find(|&rank| there(rank));
                let (chosen, weights) = (self.words(&ids), self.floats(&factors));
                let words = self.long_words(&addresses);
                launch::leave_out_absent(&self.stream, chosen, weights, words).unwrap();
                let found = (self.read_words(chosen), self.read(weights), self.read_words(words));
                let of = |rank: usize| match (there(rank), first) {
                    (true, _) => (ids[rank], factors[rank], addresses[rank]),
                    (false, Some(first)) => (ids[first], 0.0, addresses[first]),
                    (false, None) => (ids[rank], 0.0, FAILED),
                };
                let good =
                    (0..k).all(|rank| (found.0[rank], found.1[rank], found.2[rank]) == of(rank));
                self.expect_equal(&format!("experts left out, {share} of 2 of {k} there"), good);
            }
        }
    }

    fn drafts(&self) {
        let (k, most) = (5, 4);
        let words = self.words(&[7, 90, 0, 89]);
        let uses = self.words(&[1, 2, 3, 4, 5]);
        let tokens = PinnedBuffer::<u32>::new(&self.device, most).unwrap();
        let used = PinnedBuffer::<u32>::new(&self.device, most * k).unwrap();
        let mut last = 0;
        for token in [11, u32::MAX, 13] {
            let draft = TakeDraft {
                token: self.words(&[token]),
                uses,
                input: words.part(0, 1),
                position: words.part(1, 1),
                row: words.part(3, 1),
                drafted: words.part(2, 1),
                tokens: tokens.all(),
                used: used.all(),
            };
            launch::take_draft(&self.stream, &draft).unwrap();
            self.stream.wait().unwrap();
            last = if token == u32::MAX { 0 } else { token };
            let found = self.read_words(words);
            self.expect_equal(&format!("a draft of {token}"), found[0] == last);
        }
        let found: Vec<u32> = tokens.collect(0..3).collect();
        let experts: Vec<u32> = used.collect(0..3 * k).collect();
        let good = found == [11, u32::MAX, 13]
            && experts == [1, 2, 3, 4, 5].repeat(3)
            && self.read_words(words) == [last, 93, 3, 92];
        self.expect_equal("drafts behind each other", good);
    }
}
