//! Experts that choose themselves against routing by a kernel of its own: the bits of the choice and of the mixture.

use cuda::PinnedBuffer;
use cuda::launch::{self, ExpertStep, Routing, StepInput, StepShared};

use super::{Bench, Shared};

impl Bench {
    pub(super) fn routed_experts(&self, pinned: &Shared) {
        for (hidden, inner, shared, bits, group, k, tokens, experts) in [
            (2048, 512, 512, 4, 64, 8, 1, 40),
            (2048, 512, 512, 4, 64, 8, 8, 40),
            (4096, 1024, 1024, 4, 64, 10, 8, 23),
            (512, 256, 128, 4, 32, 3, 2, 300),
            (256, 640, 384, 4, 128, 4, 1, 512),
            (384, 256, 256, 4, 64, 5, 5, 256),
            (256, 128, 256, 8, 32, 32, 7, 257),
            (512, 256, 0, 3, 64, 3, 4, 33),
            (1024, 2048, 0, 8, 128, 2, 6, 8),
        ] {
            let (shapes, addresses) = self.records(experts, hidden, inner, bits, group);
            let (x, norm) = (self.random(tokens * hidden), self.random(hidden));
            let (logits, scales) = (self.random(tokens * experts), self.random(experts));
            let (table, start) = (self.long_words(&addresses), self.random(tokens * hidden));
            let width = shared.max(128);
            let down = self.matrix(hidden, width, bits, 64);
            let (factor, values) = (self.random(tokens), self.random(tokens * width));
            let ring = PinnedBuffer::<u64>::new(&self.device, 64).unwrap();
            let pairs = tokens * k;
            let found = [false, true].map(|within| {
                let routing = Routing {
                    logits,
                    replaced: None,
                    table,
                    chosen: self.words(&vec![0; pairs]),
                    weights: self.poison(pairs),
                    addresses: self.long_words(&vec![7; pairs]),
                    uses: self.words(&vec![0; pairs]),
                    ring: ring.all(),
                    posted: self.words(&[0]),
                    status: pinned.status.all(),
                    copies: None,
                    expert_scales: Some(scales),
                    guess: None,
                    first_key: 0,
                    k,
                    normalise: tokens % 2 == 0,
                    scored: None,
                    ask: true,
                };
                let step = ExpertStep {
                    x,
                    chosen: routing.chosen,
                    weights: routing.weights,
                    addresses: routing.addresses,
                    answers: pinned.answers.span(0, experts.min(pinned.answers.len())),
                    status: pinned.status.all(),
                    inner: self.poison(pairs * inner),
                    out: self.twin(start),
                    copies: None,
                    ended: None,
                    first_key: 0,
                    k,
                };
                assert!(launch::step_serves_routing(&self.device, &shapes, &routing));
                let second = StepShared { down, factor, inner: values };
                let second = (shared > 0).then_some(&second);
                let input = StepInput::Norm { x, weight: norm, epsilon: 1e-6 };
                if !within {
                    launch::route(&self.stream, tokens, &routing).unwrap();
                }
                let routing_within = within.then_some(&routing);
                let stream = &self.stream;
                launch::step_experts(
                    stream,
                    tokens,
                    &input,
                    &step,
                    &shapes,
                    second,
                    routing_within,
                )
                .unwrap();
                (routing, step)
            });
            let case = format!(
                "{tokens} tokens, {k} of {experts} experts of {bits} bits by {group}, [{inner}, {hidden}]"
            );
            let [(apart, alone), (within, own)] = &found;
            self.equal_bits(&format!("weights of {case}"), within.weights, apart.weights);
            self.equal_bits(&format!("inner values of {case}"), own.inner, alone.inner);
            self.equal_bits(&format!("mixture of {case}"), own.out, alone.out);
            let words = [within.chosen, within.uses].map(|span| self.read_words(span));
            let expected = [apart.chosen, apart.uses].map(|span| self.read_words(span));
            let addresses = [within.addresses, apart.addresses].map(|span| self.read_words(span));
            let good = words == expected && addresses[0] == addresses[1];
            println!("choice of {case}: {}", if good { "the same" } else { "FAILED" });
            self.failed.set(self.failed.get() || !good);
        }
    }
}
