//! Routing against plain code: choice, weights, addresses, requests, and what is guessed of the next layer: a part of
//! the example `check`.

use cuda::launch::{self, COPYING, Ended, FROM_COPY, Guess, PREFETCH, Routing};
use cuda::{DeviceBuffer, PinnedBuffer, Span};

use super::Bench;

/// Words of the request ring.
const RING: usize = 512;

/// Where a record is in a table of the check.
const IN_HOST: u64 = 1 << 40;

impl Bench {
    /// The experts by falling score, the lowest of equal ones first.
    fn ranked(scores: &[f32]) -> Vec<u32> {
        let mut order: Vec<u32> = (0..scores.len() as u32).collect();
        order.sort_by(|&a, &b| scores[b as usize].total_cmp(&scores[a as usize]).then(a.cmp(&b)));
        order
    }

    /// Routing of one to three tokens over as many experts as each kernel serves; then by other scores.
    pub(super) fn routing(&self) {
        for (experts, k, tokens) in
            [(256, 8, 1), (256, 8, 3), (60, 4, 2), (512, 10, 1), (1000, 32, 2)]
        {
            for all_there in [false, true] {
                self.route_once(experts, k, tokens, all_there);
            }
        }
        self.scored_routing();
    }

    fn route_once(&self, experts: usize, k: usize, tokens: usize, all_there: bool) {
        let slots = DeviceBuffer::new(&self.device, 1 << 16).unwrap();
        let device_slots: Span<u8> = slots.span(0, 1 << 16);
        // A third each in device memory, in host memory and nowhere; some in host memory have a copy, or will have.
        let place = |expert: usize| match expert % 3 {
            _ if all_there => device_slots.address() + (expert as u64 % 256) * 256,
            0 => device_slots.address() + (expert as u64 % 256) * 256,
            1 => IN_HOST + expert as u64 * 4096,
            _ => 0,
        };
        let copy = |expert: usize| match expert % 9 {
            _ if all_there => 0,
            1 => 2 * IN_HOST + 4096,
            4 => (2 * IN_HOST + 8192) | COPYING,
            _ => 0,
        };
        let scores = |count: usize| (0..count).map(|_| self.unit()).collect::<Vec<f32>>();
        let (logits, guessed) = (scores(tokens * experts), scores(tokens * experts));
        let scales = scores(experts);
        let table: Vec<u64> = (0..experts).map(place).collect();
        let copies: Vec<u64> = (0..experts).map(copy).collect();
        let (bus, disk) = (k / 2, k / 4);
        let [status, depths, ended] = [launch::STATUS_WORDS, launch::DEPTH_WORDS, 1]
            .map(|count| PinnedBuffer::<u32>::new(&self.device, count).unwrap());
        let ring = PinnedBuffer::new(&self.device, RING).unwrap();
        depths.hand_over(launch::DEPTH_BUS, [bus as u32]);
        depths.hand_over(launch::DEPTH_DISK, [disk as u32]);
        let pairs = tokens * k;
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
            copies: Some(self.long_words(&copies)),
            expert_scales: Some(self.floats(&scales)),
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
            normalise: true,
            scored: None,
            ask: true,
        };
        launch::route(&self.stream, tokens, &routing).unwrap();
        let (mut good, mut requests) = (true, Vec::new());
        let [chosen, uses] = [routing.chosen, routing.uses].map(|span| self.read_words(span));
        let weights = self.read(routing.weights);
        let addresses = self.read_words(routing.addresses);
        let guesses = self.read_words(routing.guess.unwrap().guesses);
        for token in 0..tokens {
            let row = &logits[token * experts..(token + 1) * experts];
            let mut best = Self::ranked(row)[..k].to_vec();
            best.sort_unstable();
            let total: f32 = best.iter().map(|&id| row[id as usize].exp()).sum();
            for (at, &id) in (token * k..).zip(&best) {
                let (named, copied) = (table[id as usize], copies[id as usize]);
                let address = if copied != 0 { copied } else { named };
                let flag = if copied != 0 { FROM_COPY } else { 0 };
                good &= chosen[at] == id && uses[at] == id | flag && addresses[at] == address;
                let weight = row[id as usize].exp() / total * scales[id as usize];
                good &= (weights[at] - weight).abs() < 1e-5;
                requests.extend((address == 0).then(|| 5001 + u64::from(id)));
            }
            let row = &guessed[token * experts..(token + 1) * experts];
            let best = &Self::ranked(row)[..k];
            good &= guesses[token * k..(token + 1) * k] == *best;
            for (rank, &id) in best.iter().enumerate() {
                let depth = match table[id as usize] {
                    0 => disk,
                    _ if id % 3 == 1 && !all_there => bus,
                    _ => 0,
                };
                let key = 5001 + experts as u64 + u64::from(id);
                requests.extend((rank < depth).then_some(PREFETCH | key));
            }
        }
        let posted: Vec<u64> = ring.collect(0..RING).take_while(|&word| word != 0).collect();
        let mut sorted = posted.clone();
        sorted.sort_unstable();
        requests.sort_unstable();
        good &= sorted == requests;
        // Only one token knows alone that nothing is left to be read over the bus.
        good &= (ended.collect(0..1).next() == Some(7)) == (all_there && tokens == 1);
        println!(
            "routing, {experts} experts, k {k}, {tokens} tokens, all in device memory {all_there}: {} requests {}",
            posted.len(),
            if good { "" } else { "FAILED" }
        );
        self.failed.set(self.failed.get() || !good);
    }
}
