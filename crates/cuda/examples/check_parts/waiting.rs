//! What becomes of experts' kernels whose record is not there: a part of the example `check`.

use std::sync::atomic::Ordering;
use std::time::Instant;

use cuda::launch::{self, ExpertStep, StepInput};

use super::{Bench, Shared};

impl Bench {
    /// What becomes of blocks that wait for a record: it comes, its copy
    /// arrives, no answer comes for as long as they wait, or the host
    /// says that none will.
    pub(super) fn waiting(&self, pinned: &Shared) {
        let (hidden, inner, k) = (512, 256, 2);
        let (shapes, addresses) = self.records(k, hidden, inner, 4, 64);
        let (x, norm) = (self.random(hidden), self.random(hidden));
        let input = StepInput::Norm { x, weight: norm, epsilon: 1e-6 };
        let status = pinned.status.words();
        let answer = &pinned.answers.words()[1];
        let copy = &pinned.copies.words()[1];
        for fused in [false, true] {
            let run = |named: u64, patience: u32, act: &dyn Fn()| {
                answer.store(0, Ordering::Release);
                copy.store(addresses[1] | launch::COPYING, Ordering::Release);
                status[launch::GIVEN_UP].store(0, Ordering::Release);
                status[launch::PATIENCE].store(patience, Ordering::Release);
                let out = self.floats(&vec![0.0; hidden]);
                let step = ExpertStep {
                    x,
                    chosen: self.words(&[0, 1]),
                    weights: self.floats(&[0.5, 0.5]),
                    addresses: self.long_words(&[addresses[0], named]),
                    answers: pinned.answers.span(0, k),
                    status: pinned.status.all(),
                    inner: self.random(k * inner),
                    out,
                    copies: Some(pinned.copies.span(0, k)),
                    ended: None,
                    first_key: 0,
                    k,
                };
                let started = Instant::now();
                if fused {
                    launch::step_experts(&self.stream, 1, &input, &step, &shapes, None, None)
                        .unwrap();
                } else {
                    launch::experts(&self.stream, 1, &step, &shapes, None).unwrap();
                }
                act();
                self.stream.wait().unwrap();
                let given_up = status[launch::GIVEN_UP].load(Ordering::Acquire) != 0;
                (self.read(out), given_up, started.elapsed().as_secs_f64())
            };
            let pause = || std::thread::sleep(std::time::Duration::from_millis(20));
            let known = run(addresses[1], 60_000, &|| ());
            let answered = run(0, 60_000, &|| {
                pause();
                answer.store(addresses[1], Ordering::Release);
            });
            let copied = run(addresses[1] | launch::COPYING, 60_000, &|| {
                pause();
                copy.store(addresses[1], Ordering::Release);
            });
            let tired = run(0, 100, &|| ());
            let told = run(0, 60_000, &|| {
                pause();
                status[launch::GIVEN_UP].store(1, Ordering::Release);
            });
            let good = known.0 == answered.0
                && known.0 == copied.0
                && !answered.1
                && !copied.1
                && tired.1
                && (0.1..5.0).contains(&tired.2)
                && told.1
                && told.2 < 5.0;
            println!(
                "waiting, fused {fused}: answered after {:.3} s, given up after {:.3} s, told after {:.3} s {}",
                answered.2,
                tired.2,
                told.2,
                if good { "" } else { "FAILED" }
            );
            self.failed.set(self.failed.get() || !good);
        }
        status[launch::GIVEN_UP].store(0, Ordering::Release);
    }
}
