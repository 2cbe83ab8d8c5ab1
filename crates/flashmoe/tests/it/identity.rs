//! Where the bytes were does not change the answer: logits and greedy tokens are equal to the bit over
//! storage modes, I/O engines, budgets down to the floor, prefill chunks, threads, loading and caches. By default each
//! case has some of the settings, others than its neighbours.

use crate::long::part_from;
use crate::support;

use support::Scored;

const CASES: [&str; 15] = [
    "qwen35-calm-mlx-mixed",
    "qwen35-hf",
    "qwen3-calm-hf",
    "qwen3next-calm-hf",
    "flash-next-calm-hf",
    "gptoss-calm-mxfp4",
    "dsv4-calm-hf",
    "gemma4-calm-hf",
    "deepseek-calm-hf",
    "dsv32-calm-hf",
    "glm5-calm-hf",
    "glm-flash-calm-mlxlm-4bit",
    "kimi-linear-calm-hf",
    "glm-next-calm-hf",
    "ling-calm-hf",
];

#[test]
fn no_setting_that_only_moves_bytes_changes_a_bit() {
    for (number, case) in CASES.into_iter().enumerate() {
        for kv_type in part_from(number, ["f32", "q8"], 2) {
            let kind = ["--kv-type", kv_type];
            let one = ["--storage", "resident", "--threads", "1"];
            let reference = Scored::compute(case, &[&kind[..], &one].concat());
            for options in [
                &["--prefill-chunk", "1", "--threads", "3"][..],
                &["--prefill-chunk", "37", "--kv", "ahead"],
            ] {
                let out = Scored::compute(case, &[&kind[..], options].concat());
                assert!(out == reference, "{case} {kv_type} {options:?}: the bits differ");
            }
        }
        // With the default type: f16, and for DeepSeek-V4 the rounding of its training.
        let reference = Scored::compute(case, &["--storage", "resident", "--threads", "1"]);
        let settings = [
            &["--storage", "budget"][..],
            &["--storage", "budget", "--io", "uring"],
            &["--storage", "budget", "--io", "pread", "--queue-depth", "1"],
            &["--storage", "budget", "--slots", "floor"],
            &["--storage", "budget", "--slots", "floor", "--policy", "lru", "--prefill-chunk", "1"],
            &["--storage", "budget", "--policy", "lfu", "--prefill-chunk", "7"],
            &["--storage", "page-cache"],
            &["--storage", "buffered"],
            &["--storage", "mmap"],
            &["--storage", "mmap", "--residency-advice"],
            &["--load", "mmap", "--kv", "ahead"],
            &["--prefill-chunk", "64", "--threads", "3"],
            &["--prefill-chunk", "37", "--threads", "2"],
            &["--threads", "2"],
        ];
        for options in part_from(number, settings, 4) {
            let out = Scored::compute(case, options);
            assert!(out == reference, "{case} {options:?}: the bits differ");
        }
    }
}
