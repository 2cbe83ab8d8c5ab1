//! Goal: a sequence that goes on from a snapshot, a pass that was put aside for another, and sequences decoded
//! together give the logits of a sequence computed alone in one go, to the bit. Method: golden checkpoints of both
//! families, every way of cutting a text against the whole; what is freed is spoilt (debug builds). By default each
//! case has one type of keys and values, another than its neighbours, and some of the cuts.

use crate::long::{is_long, part, part_from};
use crate::{processor, sequences};

use std::path::Path;

use engine::backend::cpu::KvType;
use engine::backend::{PAGE_TOKENS, Run, Snapshot, Uncancelled};
use engine::engine::Engine;
use engine::model::config::ModelConfig;

use processor::{engine_of, file_of};
use sequences::{alone, bits, feed, resumed, text};

const CASES: [&str; 12] = [
    "qwen35-calm-mlx-mixed",
    "qwen3-calm-hf",
    "gptoss-calm-mxfp4",
    "deepseek-calm-hf",
    "dsv4-calm-hf",
    "flash-next-calm-hf",
    "gemma4-calm-hf",
    "dsv32-calm-hf",
    "glm5-calm-hf",
    "kimi-linear-calm-hf",
    "glm-next-calm-hf",
    "ling-calm-hf",
];
const CONTEXT: usize = 640;
/// What DeepSeek-V4's cache is rounded to; the case rotates 16 values of a row.
const ROUNDED: KvType = KvType::Fp8 { rotated: 16 };

/// With keys and values of the default type.
fn engine(case: &str) -> Engine {
    engine_of(case, KvType::F16, CONTEXT)
}

/// All cases with all types of keys and values, or by default each with one.
fn kinds() -> impl Iterator<Item = (&'static str, KvType)> {
    let types = KvType::ALL;
    let shown = move |case: usize, kind: usize| is_long() || case % types.len() == kind;
    let of = move |(number, case): (usize, &'static str)| {
        let types = types.into_iter().enumerate();
        types.filter(move |(kind, _)| shown(number, *kind)).map(move |(_, kind)| (case, kind))
    };
    CASES.into_iter().enumerate().flat_map(of).chain([(CASES[4], ROUNDED)])
}

#[test]
fn a_deep_text_has_the_same_bits_however_it_is_cut() {
    let whole = text(3, 4096 + 30);
    let kinds = [
        ("qwen3-calm-hf", KvType::F16),
        (CASES[2], KvType::F16),
        (CASES[3], KvType::F16),
        (CASES[4], ROUNDED),
        (CASES[5], KvType::F16),
        (CASES[6], KvType::Q8),
    ];
    let more = [
        ("qwen3-calm-hf", KvType::Q8),
        (CASES[4], KvType::F32),
        (CASES[4], KvType::Q8),
        (CASES[6], KvType::F16),
    ];
    // By default every other one, with all types of rows that are among them.
    for (case, kv_type) in part_from(1, kinds, 2).chain(more.into_iter().filter(|_| is_long())) {
        let mut engine = engine_of(case, kv_type, whole.len() + 1);
        let expected = alone(&mut engine, &whole);
        let sequence = engine.create_sequence().unwrap();
        feed(&mut engine, sequence, &whole[..1000]);
        feed(&mut engine, sequence, &whole[1000..3001]);
        let snapshot = engine.backend().snapshot(sequence, None).unwrap();
        engine.drop_sequence(sequence);
        let found = resumed(&mut engine, &snapshot, &whole[3001..]);
        assert!(found == expected, "{case} {kv_type}: a snapshot at 3001");
        let sequence = engine.create_sequence().unwrap();
        engine.backend().restore(sequence, &snapshot).unwrap();
        feed(&mut engine, sequence, &whole[3001..4100]);
        let mut last = Vec::new();
        for token in &whole[4100..] {
            last = feed(&mut engine, sequence, std::slice::from_ref(token));
        }
        assert!(last == expected, "{case} {kv_type}: token by token at the end");
    }
}

#[test]
fn branches_of_a_snapshot_are_those_computed_from_the_start() {
    let cuts = [1, 63, 64, PAGE_TOKENS - 1, PAGE_TOKENS, PAGE_TOKENS + 1, PAGE_TOKENS + 50];
    for (number, (case, kv_type)) in kinds().enumerate() {
        let mut engine = engine_of(case, kv_type, CONTEXT);
        let trunk = text(1, PAGE_TOKENS + 77);
        for cut in part_from(number, cuts, 2) {
            let sequence = engine.create_sequence().unwrap();
            feed(&mut engine, sequence, &trunk[..cut]);
            let snapshot = engine.backend().snapshot(sequence, None).unwrap();
            // The sequence it was taken from goes on, and must not disturb it.
            feed(&mut engine, sequence, &text(9, 70));
            engine.drop_sequence(sequence);
            for branch in 0..3 {
                let rest = text(20 + branch, 5 + 60 * branch as usize);
                let whole = [&trunk[..cut], &rest[..]].concat();
                let expected = alone(&mut engine, &whole);
                let found = resumed(&mut engine, &snapshot, &rest);
                assert!(found == expected, "{case} {kv_type}: cut {cut}, branch {branch}");
            }
        }
    }
}

/// What a state of fixed size holds of a text goes on from any length, in memory and from disk, and from no other;
/// gives the bytes of the states.
fn go_on_from_state(case: &str, kv_type: KvType) -> Vec<u64> {
    let whole = text(11, 2049 + 9);
    let mut engine = engine_of(case, kv_type, whole.len() + 1);
    let mut sizes = Vec::new();
    let cuts = [1, 3, 4, 5, 15, 16, 17, 127, 128, 129, 255, 256, 257, 511, 512, 513, 2047, 2049];
    for cut in part(cuts, 3) {
        let expected = alone(&mut engine, &whole[..cut + 9]);
        let sequence = engine.create_sequence().unwrap();
        feed(&mut engine, sequence, &whole[..cut]);
        let snapshot = engine.backend().snapshot(sequence, None).unwrap();
        engine.drop_sequence(sequence);
        let found = resumed(&mut engine, &snapshot, &whole[cut..cut + 9]);
        assert!(found == expected, "{case}: cut {cut}");
        assert!(snapshot.truncated(cut - 1).is_none(), "a ring has no way back");
        let file = file_of(&snapshot);
        sizes.push(snapshot.state_bytes());
        drop(snapshot);
        let read = engine.backend().read_snapshot(cut, &mut file.as_slice()).unwrap();
        let found = resumed(&mut engine, &read, &whole[cut..cut + 9]);
        assert!(found == expected, "{case}: {cut} from disk");
    }
    sizes
}

/// About the ends of compressed rows, of the window, of pages, and past the rows that the indexer leaves out.
#[test]
fn a_rounded_cache_goes_on_from_any_length_in_memory_and_from_disk() {
    let sizes = go_on_from_state(CASES[4], ROUNDED);
    // The window does not grow: 4 rings of 16 rows of 49 bytes; 2 layers that keep 8 tokens of rows and keys, one that
    // keeps 8 of rows, values and gates each.
    let tails = 2 * 8 * (2 * 32 + 2 * 16) * 2 + 8 * 32 * 2;
    assert!(sizes.iter().all(|&size| size == 4 * (4 * 16 * 49 / 4 + tails)), "{sizes:?}");
}

/// Layers with a window keep one block of keys and values, whatever the length; pages are those of the other layers.
#[test]
fn a_window_of_keys_and_values_goes_on_from_any_length_in_memory_and_from_disk() {
    for case in [CASES[2], CASES[6]] {
        goes_on_with_a_window(case);
    }
}

fn goes_on_with_a_window(case: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(case);
    let checkpoint = store::format::open(&folder.join("model")).unwrap();
    let config = ModelConfig::read(&checkpoint.config).unwrap();
    let windows = config.layers.iter().filter(|layer| layer.window.is_some()).count();
    assert!(windows > 0 && windows < config.layers.len(), "layers of both kinds");
    for kv_type in KvType::ALL {
        let row = |layer: usize| {
            let attention = config.attention_of(layer);
            attention.key_value_heads * kv_type.bytes_of_head(attention.head_dim)
        };
        let rows = |with_window: bool| {
            let layers = config.layers.iter().enumerate();
            let layers = layers.filter(|(_, layer)| layer.window.is_some() == with_window);
            layers.map(|(layer, _)| row(layer)).sum::<usize>()
        };
        let sizes = go_on_from_state(case, kv_type);
        let block = (PAGE_TOKENS * 2 * rows(true)) as u64;
        assert!(sizes.iter().all(|&size| size == block), "{case} {kv_type}: {sizes:?}");
        let mut engine = engine_of(case, kv_type, CONTEXT);
        let sequence = engine.create_sequence().unwrap();
        feed(&mut engine, sequence, &text(1, 10));
        let snapshot = engine.backend().snapshot(sequence, None).unwrap();
        assert_eq!(snapshot.page_bytes(), (PAGE_TOKENS * 2 * rows(false)) as u64);
    }
}

/// A file names what it holds by the tokens before its point, and may be another client's to read: it is a function of
/// these tokens alone, whatever the buffers held before.
#[test]
fn files_hold_nothing_but_their_own_tokens() {
    for (case, kv_type) in kinds() {
        for length in [15, PAGE_TOKENS + 33] {
            let own = text(12, length + 40);
            let taken = |engine: &mut Engine, length: usize| {
                let sequence = engine.create_sequence().unwrap();
                feed(engine, sequence, &own[..length]);
                let snapshot = engine.backend().snapshot(sequence, None).unwrap();
                engine.drop_sequence(sequence);
                snapshot
            };
            let mut clean = engine_of(case, kv_type, CONTEXT);
            let expected = file_of(&taken(&mut clean, length));
            let what = format!("{case} {kv_type}: {length} tokens");
            let mut used = engine_of(case, kv_type, CONTEXT);
            // The pages and states that are given out next have held others' tokens.
            let others = [0, 1].map(|seed| {
                let sequence = used.create_sequence().unwrap();
                feed(&mut used, sequence, &text(50 + seed, PAGE_TOKENS + 60));
                sequence
            });
            let kept = [0, 1].map(|at: usize| used.backend().snapshot(others[at], None).unwrap());
            others.into_iter().for_each(|sequence| used.drop_sequence(sequence));
            drop(kept);
            let snapshot = taken(&mut used, length);
            assert!(file_of(&snapshot) == expected, "{what}: behind others");
            let mut from = expected.as_slice();
            let read = used.backend().read_snapshot(length, &mut from).unwrap();
            assert!(file_of(&read) == expected, "{what}: read");
            // A point inside a batch, whose later tokens are in the same page.
            let sequence = used.create_sequence().unwrap();
            let first = length.saturating_sub(60).max(1);
            feed(&mut used, sequence, &own[..first]);
            let runs = [&own[first..length], &own[length..length + 4]];
            let runs = runs.map(|tokens| Run { sequence, tokens });
            let mut pass = used.start(&runs, &[0]).unwrap();
            while !used.advance(&mut pass, &Uncancelled).unwrap() {}
            let (_, mark) = used.backend().take_marks().swap_remove(0);
            used.drop_sequence(sequence);
            assert!(file_of(&mark) == expected, "{what}: marked");
            // A point before the end of what was kept, and a file of an earlier build, which did not clear.
            let longer = taken(&mut used, length + 20);
            if let Some(point) = longer.truncated(length) {
                assert!(file_of(&point) == expected, "{what}: before the end");
                let mut from = file_of(&longer);
                from.truncate(expected.len());
                let read = used.backend().read_snapshot(length, &mut from.as_slice()).unwrap();
                assert!(file_of(&read) == expected, "{what}: from a file with more");
            }
        }
    }
}

/// Length and FNV-1a hash of files of 289 tokens, by case and type of keys and values: what builds of file format 4
/// wrote, and so what all later ones read.
const FILES: [(&str, KvType, usize, u64); 21] = [
    (CASES[0], KvType::F32, 146_816, 0xf045_c4d5_4208_212c),
    (CASES[0], KvType::F16, 81_280, 0x1372_4a9e_c128_5aec),
    (CASES[0], KvType::Bf16, 81_280, 0x4018_bb74_db46_bfb6),
    (CASES[0], KvType::Q8, 50_560, 0x5eef_fae7_7e66_c99e),
    (CASES[1], KvType::F32, 786_432, 0xf395_c4e3_f0fd_c181),
    (CASES[1], KvType::F16, 393_216, 0x1208_0130_4fa2_0aff),
    (CASES[1], KvType::Bf16, 393_216, 0xea52_2455_1dcc_eb58),
    (CASES[1], KvType::Q8, 208_896, 0x8f49_3c3e_2d1c_a6e0),
    (CASES[2], KvType::F32, 786_432, 0x405c_f515_6fd6_d634),
    (CASES[2], KvType::F16, 393_216, 0x6646_0076_f336_1cf2),
    (CASES[2], KvType::Bf16, 393_216, 0x7f18_14e8_6dce_d630),
    (CASES[2], KvType::Q8, 208_896, 0x878b_6f9a_1a52_97cc),
    (CASES[3], KvType::F32, 393_216, 0x0afa_9b7d_0554_7283),
    (CASES[3], KvType::F16, 196_608, 0xf486_fbf5_9ee7_fbe1),
    (CASES[3], KvType::Bf16, 196_608, 0x5188_adf3_a966_3e87),
    (CASES[3], KvType::Q8, 104_448, 0x3b6a_9a6c_7b0e_9f28),
    (CASES[4], KvType::F32, 79_872, 0xf084_2616_c5b1_1f98),
    (CASES[4], KvType::F16, 47_104, 0x8fb3_4781_d0d9_ee4f),
    (CASES[4], KvType::Bf16, 47_104, 0xae3d_d622_3347_b692),
    (CASES[4], KvType::Q8, 35_584, 0x4044_cf42_4dd5_37e6),
    (CASES[4], ROUNDED, 35_456, 0x361e_c209_0da2_4e1f),
];

#[test]
fn files_have_the_form_of_earlier_builds() {
    for (case, kv_type, bytes, hash) in FILES {
        let mut engine = engine_of(case, kv_type, CONTEXT);
        let sequence = engine.create_sequence().unwrap();
        feed(&mut engine, sequence, &text(12, PAGE_TOKENS + 33));
        let file = file_of(&engine.backend().snapshot(sequence, None).unwrap());
        let found = file.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        assert_eq!((file.len(), found), (bytes, hash), "{case} {kv_type}");
    }
}

#[test]
fn a_cache_that_a_model_was_not_trained_with_is_refused() {
    let refused = std::panic::catch_unwind(|| engine_of(CASES[1], ROUNDED, CONTEXT));
    assert!(refused.is_err(), "8-bit rows of heads");
}

#[test]
fn marks_inside_a_batch_are_snapshots() {
    for case in CASES {
        let mut engine = engine(case);
        let tokens = text(3, 60);
        let rest = text(4, 9);
        let sequence = engine.create_sequence().unwrap();
        feed(&mut engine, sequence, &text(2, 30));
        let runs = [&tokens[..17], &tokens[17..18], &tokens[18..]];
        let runs = runs.map(|tokens| Run { sequence, tokens });
        let mut pass = engine.start(&runs, &[0, 1]).unwrap();
        while !engine.advance(&mut pass, &Uncancelled).unwrap() {}
        let marks = engine.backend().take_marks();
        let marks: Vec<_> = marks.into_iter().map(|(_, mark)| mark).collect();
        assert_eq!(marks.iter().map(Snapshot::length).collect::<Vec<_>>(), [47, 48]);
        let whole = [text(2, 30), tokens.clone()].concat();
        assert!(bits(&mut engine, 59) == alone(&mut engine, &whole), "{case}: the marked batch");
        for mark in &marks {
            let expected = alone(&mut engine, &[&whole[..mark.length()], &rest[..]].concat());
            let found = resumed(&mut engine, mark, &rest);
            assert!(found == expected, "{case}: mark at {}", mark.length());
        }
    }
}

#[test]
fn passes_put_aside_for_others_end_as_if_alone() {
    for case in CASES {
        let mut engine = engine(case);
        let texts = [text(5, 64), text(6, 31), text(7, 40)];
        let expected = [0, 1, 2].map(|index| {
            let more = [&texts[index][..], &[3, 1, 4]].concat();
            alone(&mut engine, &more)
        });
        let sequences = [0, 1, 2].map(|_| engine.create_sequence().unwrap());
        feed(&mut engine, sequences[2], &texts[2]);
        let mut passes = Vec::new();
        for index in 0..2 {
            let run = Run { sequence: sequences[index], tokens: &texts[index] };
            let mut pass = engine.start(&[run], &[]).unwrap();
            assert!(
                !engine.advance(&mut pass, &Uncancelled).unwrap() && engine.put_aside(&mut pass)
            );
            passes.push(pass);
        }
        // A step of the third between every two layers of the others.
        let mut open = [true, true];
        for token in [3, 1, 4] {
            let run = Run { sequence: sequences[2], tokens: &[token] };
            engine.forward(&[run], &Uncancelled).unwrap();
            for index in 0..2 {
                if open[index] {
                    open[index] = !engine.advance(&mut passes[index], &Uncancelled).unwrap();
                    assert!(engine.put_aside(&mut passes[index]));
                }
            }
        }
        for index in 0..2 {
            while open[index] {
                open[index] = !engine.advance(&mut passes[index], &Uncancelled).unwrap();
            }
        }
        // All three end together: one batch, one row each.
        for token in [3, 1, 4] {
            let tokens = &[token];
            let runs = [0, 1].map(|index| Run { sequence: sequences[index], tokens });
            engine.forward(&runs, &Uncancelled).unwrap();
        }
        assert!(bits(&mut engine, 0) == expected[0], "{case}: the first");
        assert!(bits(&mut engine, 1) == expected[1], "{case}: the second");
        let snapshot = engine.backend().snapshot(sequences[2], None).unwrap();
        let run = Run { sequence: sequences[2], tokens: &[9] };
        engine.forward(&[run], &Uncancelled).unwrap();
        let third = bits(&mut engine, 0);
        engine.drop_sequence(sequences[0]);
        assert!(resumed(&mut engine, &snapshot, &[9]) == third, "{case}: the third, once more");
        let whole = [&texts[2][..], &[3, 1, 4, 9]].concat();
        assert!(alone(&mut engine, &whole) == third, "{case}: the third");
    }
}

#[test]
fn a_full_cache_is_refused_and_freed_memory_serves_again() {
    let mut engine = engine(CASES[0]);
    let sequence = engine.create_sequence().unwrap();
    feed(&mut engine, sequence, &text(8, 100));
    let mut kept = Vec::new();
    while engine.backend().room().states > 0 {
        kept.push(engine.backend().snapshot(sequence, None).unwrap());
    }
    assert_eq!(kept.len(), 6);
    assert!(engine.backend().snapshot(sequence, None).is_err(), "a seventh of six");
    kept.pop();
    assert!(engine.backend().snapshot(sequence, None).is_ok(), "one was given back");
}
