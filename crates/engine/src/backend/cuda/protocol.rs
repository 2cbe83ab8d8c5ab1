//! The host's side of the words that it shares with a running step (docs/device-protocol.md).
//!
//! Everything that the host reads or writes while kernels may do the same is in here; all other shared words are handed
//! over by queueing work or collected after its end (`PinnedBuffer::hand_over`, `PinnedBuffer::collect`).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cuda::CudaError;
use cuda::launch::{BROKEN_TOKEN, FAILED, GIVEN_UP, PREFETCH};

use crate::EngineError;
use crate::residency::Request;

/// Milliseconds that the device waits for a record: far beyond any read that ends well.
pub(super) const PATIENCE_MS: u32 = 60_000;

/// Takes the next word of the request ring, which has a power of two of words; 0 when there is none. `taken` counts.
pub(super) fn take_request(ring: &[AtomicU64], taken: &mut usize) -> u64 {
    // docs/device-protocol.md, "ring": acquires what `tell_host` released.
    let word = ring[*taken & (ring.len() - 1)].swap(0, Ordering::AcqRel);
    *taken += usize::from(word != 0);
    word
}

/// What a word of the request ring says: the key plus one, with [`PREFETCH`] for what is prefetched; `None` for one
/// that was not written.
pub(super) fn request(word: u64) -> Option<Request> {
    let prefetched = word & PREFETCH != 0;
    (word != 0).then(|| Request { key: ((word & !PREFETCH) - 1) as u32, prefetched })
}

/// Tells the device where a record is; `None` when it cannot be had.
pub(super) fn answer(answers: &[AtomicU64], key: u32, address: Option<u64>) {
    // docs/device-protocol.md, "answers": releases the record's bytes to `await_record`.
    answers[key as usize].store(address.unwrap_or(FAILED), Ordering::Release);
}

/// After a step: nothing is answered any more.
pub(super) fn forget_answers(answers: &[AtomicU64], keys: &[u32]) {
    // docs/device-protocol.md, "answers": handed over with the next step.
    keys.iter().for_each(|&key| answers[key as usize].store(0, Ordering::Relaxed));
}

/// Ends the waiting of a running step for records that will not come.
pub(super) fn give_up(status: &[AtomicU32]) {
    // docs/device-protocol.md, "status": says nothing but itself.
    status[GIVEN_UP].store(1, Ordering::Relaxed);
}

/// Layers of the running step that have read all that they read over the bus.
pub(super) fn ended_layers(ended: &[AtomicU32]) -> u32 {
    // docs/device-protocol.md, "ended": a hint, which orders nothing.
    ended[0].load(Ordering::Relaxed)
}

/// What became of work that has ended; the host made `served` of it: the token whose router logits are not numbers,
/// if there is one.
///
/// # Errors
/// What the host met, else that the device waited for a record until its time was over.
pub(super) fn outcome<T>(
    served: Result<T, EngineError>,
    status: &[AtomicU32],
) -> Result<Option<usize>, EngineError> {
    // docs/device-protocol.md, "status": both words are taken whatever happened, or they would speak of the next step.
    let given_up = status[GIVEN_UP].swap(0, Ordering::Relaxed) != 0;
    let broken = status[BROKEN_TOKEN].swap(0, Ordering::Relaxed);
    served?;
    if given_up {
        return Err(CudaError::NoAnswer.into());
    }
    Ok((broken != 0).then(|| broken as usize - 1))
}

#[cfg(test)]
mod tests {
    use cuda::launch::STATUS_WORDS;

    use super::*;

    fn status(given_up: u32, broken: u32) -> [AtomicU32; STATUS_WORDS] {
        let words = [0; STATUS_WORDS].map(AtomicU32::new);
        words[GIVEN_UP].store(given_up, Ordering::Relaxed);
        words[BROKEN_TOKEN].store(broken, Ordering::Relaxed);
        words
    }

    #[test]
    fn what_a_failed_step_has_said_is_not_said_of_the_next() {
        let words = status(1, 3);
        let failed = Err::<(), _>(EngineError::Request("a read failed".to_owned()));
        assert!(matches!(outcome(failed, &words), Err(EngineError::Request(_))));
        assert!(matches!(outcome(Ok(()), &words), Ok(None)), "nothing is left of it");
    }

    #[test]
    fn a_timeout_comes_before_logits_that_it_has_spoilt() {
        let waited = outcome(Ok(()), &status(1, 3));
        assert!(matches!(waited, Err(EngineError::Cuda(CudaError::NoAnswer))), "{waited:?}");
        assert_eq!(outcome(Ok(()), &status(0, 3)).ok(), Some(Some(2)));
    }

    #[test]
    fn requests_are_taken_once_in_the_order_of_their_words_round_the_ring() {
        let ring: [AtomicU64; 4] = Default::default();
        let mut taken = 3;
        assert_eq!(take_request(&ring, &mut taken), 0);
        ring[0].store(8, Ordering::Relaxed);
        assert_eq!((take_request(&ring, &mut taken), taken), (0, 3), "the one before is not there");
        ring[3].store(7, Ordering::Relaxed);
        let all = [(); 3].map(|()| take_request(&ring, &mut taken));
        assert_eq!((all, taken), ([7, 8, 0], 5));
    }
}
