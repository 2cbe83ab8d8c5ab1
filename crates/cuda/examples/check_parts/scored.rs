//! Routers with a bias of the choice alone, against plain code: groups, ties, and what is guessed of the next layer: a
//! part of the example `check`.

use cuda::launch::{self, Ended, Guess, Routing, Score, Scored};
use cuda::{DeviceBuffer, PinnedBuffer, Span};

use super::Bench;

/// A router: its scores, experts, `k`, groups and those that stay.
#[derive(Clone, Copy, Debug)]
struct Case {
    score: Score,
    experts: usize,
    k: usize,
    groups: usize,
    kept: usize,
    normalise: bool,
    biased: bool,
    /// Logits are few different numbers, so that many scores are equal.
    ties: bool,
}

impl Case {
    /// The scores of a token's experts.
    fn scores(&self, logits: &[f32]) -> Vec<f32> {
        let sum: f32 = logits.iter().map(|logit| logit.exp()).sum();
        let score = |&logit: &f32| match self.score {
            Score::Softmax { .. } => logit.exp() / sum,
            Score::Sigmoid => 1.0 / (1.0 + (-logit).exp()),
            Score::SqrtSoftplus if logit > 20.0 => logit.sqrt(),
            Score::SqrtSoftplus => logit.exp().ln_1p().sqrt(),
        };
        logits.iter().map(score).collect()
    }

    /// What weights are divided by, whose scores have this sum.
    fn divisor(&self, sum: f32) -> f32 {
        match self.score {
            _ if !self.normalise => 1.0,
            Score::Softmax { least_sum } => sum.max(least_sum),
            _ => sum + 1e-20,
        }
    }

    /// The first of the candidates with the greatest value.
    fn best(candidates: impl Iterator<Item = usize>, value: impl Fn(usize) -> f32) -> usize {
        candidates.reduce(|best, next| if value(next) > value(best) { next } else { best }).unwrap()
    }

    /// The experts of a token, best first.
    fn choose(&self, scores: &[f32], bias: &[f32]) -> Vec<usize> {
        let size = self.experts / self.groups;
        let value = |expert: usize| scores[expert] + bias[expert];
        let sum = |group: usize| {
            let mut values: Vec<f32> = (group * size..(group + 1) * size).map(value).collect();
            values.sort_by(|a, b| b.total_cmp(a));
            values.iter().take(2).sum::<f32>()
        };
        let (mut stay, mut chosen) = (Vec::new(), Vec::new());
        while stay.len() < self.kept {
            stay.push(Self::best((0..self.groups).filter(|group| !stay.contains(group)), sum));
        }
        while chosen.len() < self.k {
            let open = (0..self.experts)
                .filter(|expert| stay.contains(&(expert / size)) && !chosen.contains(expert));
            chosen.push(Self::best(open, value));
        }
        chosen
    }
}

impl Bench {
    /// Routers of DeepSeek-V3, Kimi-K2, GLM-4.5, MiniMax-M2, DeepSeek-V4 and ERNIE 4.5, and odd ones.
    pub(super) fn scored_routing(&self) {
        let usual = Case {
            score: Score::Sigmoid,
            experts: 256,
            k: 8,
            groups: 1,
            kept: 1,
            normalise: true,
            biased: true,
            ties: false,
        };
        for case in [
            Case { groups: 8, kept: 4, ..usual },
            Case { experts: 384, ..usual },
            Case { experts: 160, ..usual },
            usual,
            Case { score: Score::SqrtSoftplus, k: 6, ..usual },
            Case { score: Score::Softmax { least_sum: 1e-12 }, experts: 64, k: 6, ..usual },
            Case { score: Score::Softmax { least_sum: 0.9 }, experts: 90, k: 5, ..usual },
            Case { groups: 64, kept: 13, normalise: false, ..usual },
            Case { experts: 60, groups: 60, kept: 20, k: 4, biased: false, ..usual },
            Case { experts: 1000, groups: 40, kept: 7, k: 32, ..usual },
            Case { experts: 7, k: 7, ..usual },
            Case { ties: true, biased: false, groups: 8, kept: 3, ..usual },
            Case { ties: true, biased: false, experts: 384, ..usual },
        ] {
            for tokens in [1, 5] {
                self.scored_once(case, tokens);
            }
        }
    }

    fn scored_once(&self, case: Case, tokens: usize) {
        let (experts, k, pairs) = (case.experts, case.k, tokens * case.k);
        let slots = DeviceBuffer::new(&self.device, 1 << 16).unwrap();
        let device_slots: Span<u8> = slots.span(0, 1 << 16);
        let table: Vec<u64> = (0..experts)
            .map(|expert| device_slots.address() + (expert as u64 % 256) * 256)
            .collect();
        let number = |ties: bool| {
            let value = 4.0 * self.unit();
            if ties { (2.0 * value).round() / 2.0 } else { value }
        };
        let logits: Vec<f32> = (0..tokens * experts).map(|_| number(case.ties)).collect();
        let guessed: Vec<f32> = (0..tokens * experts).map(|_| number(case.ties)).collect();
        let bias = |_| if case.biased { 0.2 * self.unit() } else { 0.0 };
        let biases: [Vec<f32>; 2] = [0, 1].map(|_| (0..experts).map(bias).collect());
        let [status, depths, ended] = [launch::STATUS_WORDS, launch::DEPTH_WORDS, 1]
            .map(|count| PinnedBuffer::<u32>::new(&self.device, count).unwrap());
        let ring = PinnedBuffer::new(&self.device, 512).unwrap();
        let factors: Vec<f32> = (0..experts).map(|_| 2.0 + self.unit()).collect();
        let scale = 2.5;
        let routing = Routing {
            logits: self.floats(&logits),
            replaced: None,
            table: self.long_words(&table),
            chosen: self.words(&vec![0; pairs]),
            weights: self.poison(pairs),
            addresses: self.long_words(&vec![7; pairs]),
            uses: self.words(&vec![0; pairs]),
            ring: ring.all(),
            posted: self.words(&[0]),
            status: status.all(),
            copies: None,
            expert_scales: Some(self.floats(&factors)),
            ahead: None,
            guess: Some(Guess {
                logits: self.floats(&guessed),
                table: self.long_words(&table),
                guesses: self.words(&vec![0; pairs]),
                depths: depths.all(),
                device_slots,
                ended: Ended { blocks: self.words(&[0]), word: ended.all(), layer: 6 },
            }),
            first_key: 5000,
            k,
            normalise: case.normalise,
            scored: Some(Scored {
                given: None,
                score: case.score,
                bias: case.biased.then(|| self.floats(&biases[0])),
                next_bias: case.biased.then(|| self.floats(&biases[1])),
                groups: case.groups,
                kept: case.kept,
                scale,
            }),
            ask: true,
        };
        launch::route(&self.stream, tokens, &routing).unwrap();
        let [chosen, uses] = [routing.chosen, routing.uses].map(|span| self.read_words(span));
        let weights = self.read(routing.weights);
        let addresses = self.read_words(routing.addresses);
        let guesses = self.read_words(routing.guess.unwrap().guesses);
        let (mut wrong, mut largest) = (None, 0.0f32);
        for token in 0..tokens {
            let row = &logits[token * experts..(token + 1) * experts];
            let scores = case.scores(row);
            let best = case.choose(&scores, &biases[0]);
            let divisor = case.divisor(best.iter().map(|&id| scores[id]).sum());
            let mut sorted = best.clone();
            sorted.sort_unstable();
            for (at, &id) in (token * k..).zip(&sorted) {
                let same = chosen[at] == id as u32 && uses[at] == id as u32;
                if !same || addresses[at] != table[id] {
                    wrong.get_or_insert((token, at - token * k, chosen[at], id));
                }
                let expected = scores[id] / divisor * scale * factors[id];
                largest = largest.max((weights[at] - expected).abs() / expected.abs());
            }
            let row = &guessed[token * experts..(token + 1) * experts];
            for (at, &id) in (token * k..).zip(&case.choose(&case.scores(row), &biases[1])) {
                if guesses[at] != id as u32 {
                    wrong.get_or_insert((token, 1000 + at - token * k, guesses[at], id));
                }
            }
        }
        let broken = status.collect(launch::BROKEN_TOKEN..launch::BROKEN_TOKEN + 1).next();
        let good = wrong.is_none() && largest < 1e-5 && broken == Some(0);
        println!(
            "scored routing, {case:?}, {tokens} tokens: first wrong (token, rank, found, expected) {wrong:?}, weights \
             within {largest:.1e} {}",
            if good { "" } else { "FAILED" }
        );
        self.failed.set(self.failed.get() || !good);
    }
}
