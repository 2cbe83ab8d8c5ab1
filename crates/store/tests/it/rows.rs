//! Goal: a row of a table is the file's bytes or a typed error of the batch that asked for it, however it lies,
//! whatever the cache holds and whatever the disk does. Method: a table in two files at odd offsets, whose rows cross
//! blocks; random batches by every engine, and by the simulator that fails the k-th read for every k and reads at
//! random over seeds.

use std::fs;
use std::path::Path;

use kernels::format::{Encoding, FloatType};
use store::StoreError;
use store::cache::ReadCause;
use store::format::{CheckpointFile, Extent, FileId, RowPart, RowTable};
use store::io::{DirectIo, Fault, FaultPlan, FaultRates, IoEngine, Simulator};
use store::rows::{RowOptions, RowStore};
use store::split_mix::SplitMix64;

/// Values of a row, two bytes each: some rows cross a block.
const COLUMNS: usize = 23;
const ROW_BYTES: u64 = 2 * COLUMNS as u64;
/// Where the parts begin, and how many rows they have.
const PARTS: [(u64, u64); 2] = [(17, 700), (4099, 333)];
const ROWS: u64 = PARTS[0].1 + PARTS[1].1;
const EIO: i32 = 5;

fn byte_at(file: usize, offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9) >> 7) as u8 ^ (offset >> 8) as u8 ^ (file as u8 * 85)
}

/// The table and its files, of which nothing is behind the last row.
fn table(folder: &Path) -> (Vec<CheckpointFile>, RowTable) {
    let (mut files, mut parts, mut first) = (Vec::new(), Vec::new(), 0);
    for (index, (offset, rows)) in PARTS.into_iter().enumerate() {
        let (path, length) = (folder.join(format!("part_{index}")), offset + rows * ROW_BYTES);
        let bytes: Vec<u8> = (0..length).map(|offset| byte_at(index, offset)).collect();
        fs::write(&path, bytes).unwrap();
        let (modified_ns, changed_ns, header_checksum) = (0, 0, 0);
        files.push(CheckpointFile { path, length, modified_ns, changed_ns, header_checksum });
        let extent = Extent { file: FileId(index as u32), offset, length: rows * ROW_BYTES };
        parts.push(RowPart { first, extent, scales_biases: None });
        first += rows;
    }
    let encoding = Encoding::Float(FloatType::Bf16);
    (
        files,
        RowTable {
            rows: ROWS,
            columns: COLUMNS,
            encoding,
            parts,
            shared: Vec::new(),
            paged: false,
        },
    )
}

fn expected(row: u64) -> Vec<u8> {
    let (part, first) = if row < PARTS[0].1 { (0, row) } else { (1, row - PARTS[0].1) };
    let start = PARTS[part].0 + first * ROW_BYTES;
    (start..start + ROW_BYTES).map(|offset| byte_at(part, offset)).collect()
}

/// Rows in any order, some several times.
fn batch(random: &mut SplitMix64, count: usize) -> Vec<u64> {
    let near = random.next_u64() % ROWS;
    let one = |random: &mut SplitMix64| match random.next_u64() % 3 {
        0 => (near + random.next_u64() % 8) % ROWS,
        _ => random.next_u64() % ROWS,
    };
    (0..count).map(|_| one(random)).collect()
}

/// Asks for rows and compares them.
fn check(store: &RowStore, rows: &[u64], context: &str) -> Result<(), StoreError> {
    let found = store.wait(store.ask(rows))?;
    for &row in rows {
        assert_eq!(found.row(row), expected(row), "{context}: row {row}");
    }
    Ok(())
}

fn simulated(folder: &Path, plan: FaultPlan, seed: u64) -> RowStore {
    let (files, table) = table(folder);
    let storage = Some(Box::new(Simulator::new(plan, seed)) as _);
    RowStore::open(&files, &table, RowOptions { storage, ..RowOptions::default() }).unwrap()
}

#[test]
fn rows_are_the_files_bytes_by_every_engine_and_with_every_cache() {
    let folder = tempfile::tempdir().unwrap();
    let (files, table) = table(folder.path());
    for io in [IoEngine::Auto, IoEngine::Pread] {
        for direct in [DirectIo::Auto, DirectIo::Never] {
            for cache_bytes in [0, 2000, 1 << 20] {
                let context = format!("{io:?} {direct:?}, cache of {cache_bytes}");
                let options = RowOptions { io, direct, cache_bytes, ..RowOptions::default() };
                let store = RowStore::open(&files, &table, options).unwrap();
                let mut random = SplitMix64(cache_bytes);
                check(&store, &[], &context).unwrap();
                check(&store, &[0, ROWS - 1, PARTS[0].1 - 1, PARTS[0].1], &context).unwrap();
                for count in [1, 3, 16, 200, 700, 16, 1] {
                    check(&store, &batch(&mut random, count), &context).unwrap();
                }
                let all: Vec<u64> = (0..ROWS).collect();
                check(&store, &all, &context).unwrap();
                check(&store, &all, &context).unwrap();
                let counters = store.counters();
                assert!(counters.asked > counters.distinct, "{context}: {counters:?}");
                assert!(counters.reads > 0 && counters.errors == 0, "{context}: {counters:?}");
                let hits = counters.hits;
                match cache_bytes {
                    0 => assert_eq!(hits, 0, "{context}"),
                    2000 => assert!(hits > 0 && hits < ROWS, "{context}: {hits}"),
                    // All of the last batch.
                    _ => assert!(hits >= ROWS, "{context}: {hits}"),
                }
            }
        }
    }
}

/// Rows that lie together are read together, and each once.
#[test]
fn reads_are_sorted_and_joined() {
    let folder = tempfile::tempdir().unwrap();
    let store = simulated(folder.path(), Box::new(|_| Fault::None), 1);
    check(&store, &[5, 3, 5, 4, 3], "neighbours").unwrap();
    let counters = store.counters();
    assert_eq!((counters.asked, counters.distinct, counters.reads), (5, 3, 1));
    assert_eq!((counters.long_reads, counters.bytes_read), (0, 4096));
    // One that crosses a block takes two.
    let crossing = (4096 - PARTS[0].0) / ROW_BYTES;
    check(&store, &[crossing], "a row across blocks").unwrap();
    let counters = store.counters();
    assert_eq!((counters.reads, counters.long_reads, counters.bytes_read), (2, 1, 3 * 4096));
}

/// A converter deals parts in any order: of two neighbours by number the second may lie first.
#[test]
fn parts_of_one_file_lie_in_any_order() {
    let folder = tempfile::tempdir().unwrap();
    let (files, mut table) = table(folder.path());
    let [first, second] = [(9000, 40), (31, 40)].map(|(offset, rows)| Extent {
        file: FileId(0),
        offset,
        length: rows * ROW_BYTES,
    });
    let part = |first, extent| RowPart { first, extent, scales_biases: None };
    table.parts = vec![part(0, first), part(40, second)];
    table.rows = 80;
    let store = RowStore::open(&files, &table, RowOptions::default()).unwrap();
    let all: Vec<u64> = (0..80).collect();
    let found = store.wait(store.ask(&all)).unwrap();
    for row in all {
        let start = if row < 40 { 9000 + row * ROW_BYTES } else { 31 + (row - 40) * ROW_BYTES };
        let expected: Vec<u8> = (start..start + ROW_BYTES).map(|at| byte_at(0, at)).collect();
        assert_eq!(found.row(row), expected, "row {row}");
    }
}

/// Rows of MLX lie in three places: they come as one, also from the cache and where a disk fails.
#[test]
fn rows_of_three_planes_are_joined() {
    let folder = tempfile::tempdir().unwrap();
    let (files, mut table) = table(folder.path());
    let encoding = Encoding::Affine { bits: 4, group: 32, scale: FloatType::Bf16 };
    let rows = 150;
    (table.rows, table.columns, table.encoding) = (2 * rows, 160, encoding);
    // Of each part: file and offset of values, scales and biases.
    let places = [[(0, 3), (1, 40), (0, 29_000)], [(1, 5_001), (1, 3_301), (0, 26_001)]];
    let lengths = [80, 10, 10];
    let part = |index: usize| {
        let [values, scales, biases] = [0, 1, 2].map(|plane| {
            let ((file, offset), length) = (places[index][plane], rows * lengths[plane]);
            Extent { file: FileId(file), offset, length }
        });
        let first = index as u64 * rows;
        RowPart { first, extent: values, scales_biases: Some((scales, biases)) }
    };
    table.parts = vec![part(0), part(1)];
    let expected = |row: u64| -> Vec<u8> {
        let planes = places[(row / rows) as usize].into_iter().zip(lengths);
        let bytes = planes.flat_map(|((file, offset), length)| {
            let start = offset + row % rows * length;
            (start..start + length).map(move |at| byte_at(file as usize, at))
        });
        bytes.collect()
    };
    let all: Vec<u64> = (0..2 * rows).collect();
    for cache_bytes in [0, 1 << 20] {
        let options = RowOptions { cache_bytes, ..RowOptions::default() };
        let store = RowStore::open(&files, &table, options).unwrap();
        for batch in [&[7_u64, 8, 149, 150, 299][..], &all, &all[100..200]] {
            let found = store.wait(store.ask(batch)).unwrap();
            batch.iter().for_each(|&row| assert_eq!(found.row(row), expected(row), "row {row}"));
        }
        let counters = store.counters();
        assert_eq!(counters.hits, if cache_bytes == 0 { 0 } else { 105 });
        assert_eq!(counters.distinct, 405);
    }
    let (mut failed, mut served) = (0, 0);
    for seed in 0..40 {
        let rates = FaultRates { error: 20, short: 60, ..FaultRates::default() };
        let storage = Some(Box::new(Simulator::new(rates.plan(seed), seed)) as _);
        let options = RowOptions { storage, cache_bytes: 4000, ..RowOptions::default() };
        let store = RowStore::open(&files, &table, options).unwrap();
        let mut random = SplitMix64(seed);
        for _ in 0..8 {
            let batch: Vec<u64> = (0..6).map(|_| random.next_u64() % (2 * rows)).collect();
            match store.wait(store.ask(&batch)) {
                Ok(found) => {
                    served += 1;
                    batch.iter().for_each(|&row| assert_eq!(found.row(row), expected(row)));
                }
                Err(StoreError::Row { .. }) => failed += 1,
                Err(other) => panic!("{other}"),
            }
        }
    }
    assert!(failed > 20 && served > 60, "{failed} failed, {served} served");
}

#[test]
fn a_failed_read_is_an_error_of_the_batch_that_asked() {
    let folder = tempfile::tempdir().unwrap();
    for failing in 0..12 {
        let plan: FaultPlan =
            Box::new(
                move |operation| {
                    if operation.number == failing { Fault::Error(EIO) } else { Fault::None }
                },
            );
        let store = simulated(folder.path(), plan, failing);
        let mut random = SplitMix64(failing);
        let (mut failed, mut served) = (0, 0);
        for _ in 0..6 {
            match check(&store, &batch(&mut random, 4), "after a failure") {
                Ok(()) => served += 1,
                Err(StoreError::Row { path, row, cause: ReadCause::System(EIO), .. }) => {
                    assert!(path.starts_with(folder.path()) && row < ROWS);
                    failed += 1;
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!((failed, served), (1, 5), "read {failing} fails");
        assert_eq!(store.counters().errors, 1);
    }
}

#[test]
fn rows_are_right_or_an_error_whatever_the_disk_does() {
    let folder = tempfile::tempdir().unwrap();
    let rates =
        FaultRates { error: 20, interrupted: 60, short: 60, empty: 20, ..FaultRates::default() };
    let (mut failed, mut served) = (0, 0);
    for seed in 0..60 {
        let store = simulated(folder.path(), rates.plan(seed), seed);
        let mut random = SplitMix64(seed);
        for round in 0..6 {
            let rows = batch(&mut random, 20);
            if round == 2 {
                // Nobody waits for these.
                drop(store.ask(&rows));
                continue;
            }
            let other = store.ask(&batch(&mut random, 20));
            match check(&store, &rows, &format!("seed {seed}")) {
                Ok(()) => served += 1,
                Err(StoreError::Row { .. }) => failed += 1,
                Err(other) => panic!("{other}"),
            }
            drop(other);
        }
    }
    assert!(failed > 20 && served > 60, "{failed} failed, {served} served");
}

#[test]
fn a_table_that_changes_or_ends_early_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let (files, table) = table(folder.path());
    let store = RowStore::open(&files, &table, RowOptions::default()).unwrap();
    let asked = store.wait(store.ask(&[1, ROWS])).err();
    assert_eq!(asked, Some(StoreError::NoRow { row: ROWS, rows: ROWS }));
    let file = fs::File::options().write(true).open(&files[1].path).unwrap();
    file.set_len(files[1].length - ROW_BYTES).unwrap();
    let error = check(&store, &[ROWS - 1], "a shorter file").unwrap_err();
    assert!(matches!(error, StoreError::Row { cause: ReadCause::Changed(_), .. }), "{error}");
    let error = RowStore::open(&files, &table, RowOptions::default()).err().unwrap();
    assert!(error.to_string().contains("part_1"), "{error}");
}
