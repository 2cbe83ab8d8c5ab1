//! Goal: in budget mode the process reads from disk exactly the records that it missed. Method: the kernel's
//! own count of the bytes that this process has read (`rchar` of /proc/self/io) around a run of visits.
//!
//! A binary of its own with one test: any other thread's reads would be counted too.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![cfg(target_os = "linux")]

#[path = "it/cache_support/mod.rs"]
mod cache_support;

use std::sync::Arc;

use cache_support::{Layout, checkpoint, ids, is_right, native_record_bytes};
use store::LayerId;
use store::cache::{ExpertStore, Phase, SlotBudget, StorageMode, StoreOptions};
use store::io::{DirectIo, IoEngine};

/// Bytes that this process has asked the kernel for until now, not counting this question.
fn bytes_asked_for(questions: &mut u64) -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap();
    let before = *questions;
    *questions += text.len() as u64;
    let line = text.lines().find(|line| line.starts_with("rchar: ")).unwrap();
    line["rchar: ".len()..].parse::<u64>().unwrap() - before
}

#[test]
fn the_kernel_counts_misses_times_record_size() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(folder.path(), 3, 16, Layout::Native);
    let mut questions = 0;
    for direct in [DirectIo::Auto, DirectIo::Never] {
        let options = StoreOptions {
            slots: SlotBudget::Slots(20),
            io: IoEngine::Pread,
            direct,
            ..StoreOptions::new(StorageMode::Budget, 4)
        };
        let store = ExpertStore::open(Arc::clone(&checkpoint), options).unwrap();
        let start = bytes_asked_for(&mut questions);
        for step in 0..200u16 {
            let experts = ids(&[step % 5, 5 + step % 3, 9 + step % 7]);
            let visit = store.visit(LayerId(step % 3), &experts, Phase::Decode).unwrap();
            for (member, &expert) in experts.iter().enumerate() {
                let bytes = visit.wait(member).unwrap();
                assert!(is_right(&checkpoint, LayerId(step % 3), expert, &bytes));
            }
        }
        let read = bytes_asked_for(&mut questions) - start;
        let counters = store.counters();
        assert!(counters.decode.hits > 100 && counters.decode.misses > 50, "{counters:?}");
        assert_eq!(counters.bytes_read, counters.decode.misses * native_record_bytes());
        assert_eq!(read, counters.bytes_read, "{direct:?}");
    }
}
