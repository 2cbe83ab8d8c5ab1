//! Goal: a pack holds its source's bits, survives every fault, and shows every flipped bit. Method:
//! compare extents; fail the k-th file operation for every k, resume, compare all files.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{Folder, Noise, bytes, go};
use crate::long::is_long;
use kernels::quantize::Method;
use store::format::{Checkpoint, Extent, FormatError, RowTable, open, record_checksum};
use store::pack::{
    PackError, PackFile, PackFs, PackOptions, Precision, RealFs, Recipe, pack, pack_on, verify,
};

pub(crate) fn same_bits(a: &Checkpoint, b: &Checkpoint) {
    assert_eq!(a.norms_are_zero_centred, b.norms_are_zero_centred);
    assert!(a.tensors.keys().eq(b.tensors.keys()));
    for (x, y) in a.tensors.values().zip(b.tensors.values()) {
        assert_eq!((x.element, &x.shape), (y.element, &y.shape));
        assert!(x.parts().map(|e| bytes(a, e)).eq(y.parts().map(|e| bytes(b, e))));
    }
    assert!(a.row_tables.keys().eq(b.row_tables.keys()));
    for (x, y) in a.row_tables.values().zip(b.row_tables.values()) {
        assert_eq!((x.rows, x.columns, x.encoding), (y.rows, y.columns, y.encoding));
        assert_eq!((x.bytes(), &x.shared), (y.bytes(), &y.shared));
        for row in 0..x.rows {
            let of = |c: &Checkpoint, table: &RowTable| {
                table.places(row).unwrap().flat_map(|it| bytes(c, it)).collect::<Vec<u8>>()
            };
            assert_eq!(of(a, x), of(b, y), "row {row}");
        }
    }
    for (x, y) in a.experts.iter().flatten().zip(b.experts.iter().flatten()) {
        for (x, y) in x.experts.iter().zip(&y.experts) {
            for p in 0..3 {
                assert_eq!(bytes(a, x.weight[p]), bytes(b, y.weight[p]));
                let pair = |c: &Checkpoint, q: Option<(Extent, Extent)>| {
                    q.map(|(s, t)| (bytes(c, s), bytes(c, t)))
                };
                assert_eq!(pair(a, x.scales_biases[p]), pair(b, y.scales_biases[p]));
            }
        }
    }
}

fn tree(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for folder in [path.to_owned(), path.join("experts")] {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                files.insert(path.display().to_string(), fs::read(&path).unwrap());
            }
        }
    }
    let prefix = path.display().to_string();
    files.into_iter().map(|(name, bytes)| (name.replace(&prefix, ""), bytes)).collect()
}

#[test]
fn a_pack_holds_the_bits_of_its_source() {
    for folder in [Folder::mlx(), Folder::hugging_face(true), Folder::hugging_face(false)] {
        folder.write("tokenizer.json", "{}");
        let source = open(folder.path()).unwrap();
        let target = folder.path().join("pack");
        pack(&source, &target, PackOptions::default(), &mut go).unwrap();
        let packed = open(&target).unwrap();
        same_bits(&source, &packed);
        let report = verify(&packed, &mut go).unwrap();
        assert!(report.damaged.is_empty() && report.checked_bytes > 100_000);
        let again = pack(&source, &target, PackOptions::default(), &mut go);
        assert!(matches!(again, Err(PackError::Exists { .. })));
    }
}

/// Fails the operation with number `fail`; everything after it as well, like a dead disk.
struct Faulty {
    count: AtomicU64,
    fail: u64,
    error: io::ErrorKind,
}

impl Faulty {
    fn step(&self) -> io::Result<()> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        if number >= self.fail { Err(self.error.into()) } else { Ok(()) }
    }
}

struct FaultyFile<'a>(Box<dyn PackFile>, &'a Faulty);

impl PackFile for FaultyFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Every write is short, and the one that fails has written half of its bytes.
        let half = &bytes[..bytes.len().div_ceil(2).max(bytes.len().min(4096))];
        let written = self.0.write(half)?;
        self.1.step().map(|()| written)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.1.step()?;
        self.0.sync()
    }
}

impl PackFs for &'static Faulty {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        RealFs.create_folder(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn PackFile>> {
        self.step()?;
        Ok(Box::new(FaultyFile(RealFs.create(path)?, self)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step()?;
        RealFs.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        RealFs.remove(path)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        RealFs.sync_folder(path)
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        RealFs.free_bytes(path)
    }
}

#[test]
fn every_failed_operation_can_be_resumed_to_the_same_bytes() {
    let changed = Recipe {
        experts: Precision::Bits(2),
        trunk: Precision::Bits(3),
        method: Method::MinMax,
        ..Recipe::default()
    };
    // The operations are the same whatever the recipe: of the second fewer will do.
    let steps = if is_long() { [1, 3] } else { [13, 29] };
    for (recipe, step) in [Recipe::default(), changed].into_iter().zip(steps) {
        let folder = Folder::mlx();
        folder.write("tokenizer.json", "{}");
        let options = PackOptions { recipe, ..PackOptions::default() };
        fail_operations(folder.path(), folder.path(), options, step);
    }
}

/// A net with a table of rows.
fn with_rows() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    folder.join("../../tests/golden/flash-next-calm-hf/model")
}

#[test]
fn packs_with_rows_are_resumed_to_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let step = if is_long() { 2 } else { 7 };
    fail_operations(&with_rows(), folder.path(), PackOptions::default(), step);
}

/// Rows of a pack are those of its source, also of another pack, and have pages of their own.
#[test]
fn a_pack_holds_the_rows_of_its_source() {
    let folder = tempfile::tempdir().unwrap();
    let source = open(&with_rows()).unwrap();
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
    let report = pack(&source, &first, PackOptions::default(), &mut go).unwrap();
    let packed = open(&first).unwrap();
    same_bits(&source, &packed);
    let table = packed.row_tables.values().next().unwrap();
    let file = fs::metadata(first.join("rows_001.bin")).unwrap().len();
    assert!(table.paged && table.row_bytes() == 16 && report.row_bytes == 4096);
    assert_eq!((file, packed.pack.as_ref().unwrap().version), (4096, 7));
    assert!(verify(&packed, &mut go).unwrap().damaged.is_empty());
    pack(&packed, &second, PackOptions::default(), &mut go).unwrap();
    same_bits(&source, &open(&second).unwrap());
    let rows = |pack: &Path| fs::read(pack.join("rows_001.bin")).unwrap();
    assert_eq!(rows(&first), rows(&second));
}

/// Tables that contradict themselves, and sizes beyond any file, in a manifest whose checksum is right.
#[test]
fn manifests_of_tables_that_are_wrong_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("pack");
    pack(&open(&with_rows()).unwrap(), &target, PackOptions::default(), &mut go).unwrap();
    let path = target.join("manifest.json");
    let whole = fs::read_to_string(&path).unwrap();
    let table = whole.find("\"row_tables\"").unwrap();
    for (from, to, named) in [
        ("\"rows\": 120", "\"rows\": 40000", ".bytes"),
        ("\"rows\": 120", "\"rows\": 18446744073709551615", ".bytes"),
        ("\"rows\": 120", "\"rows\": 0", ".bytes"),
        ("\"columns\": 8", "\"columns\": 0", ".encoding"),
        ("\"columns\": 8", "\"columns\": 18446744073709551615", ".encoding"),
        ("\"encoding\": \"bf16\"", "\"encoding\": \"q4_k\"", ".encoding"),
        ("\"encoding\": \"bf16\"", "\"encoding\": \"mxfp4:planes\"", ".encoding"),
        ("\"encoding\": \"bf16\"", "\"encoding\": \"fp8:whole:bf16\"", ".shared"),
        ("\"page_rows\": 256", "\"page_rows\": 255", ".bytes"),
        ("\"page_bytes\": 4096", "\"page_bytes\": 8192", ".bytes"),
        ("\"run_pages\": 1024", "\"run_pages\": 1", ".bytes"),
        ("\"bytes\": 4096", "\"bytes\": 8192", ".bytes"),
        ("ngram_embedding\"", "ngram_embedding.shard_0\"", "is not the name of a table"),
        ("\"layers.1.ple", "\"layers.7.ple", "is not the name of a table"),
    ] {
        let (head, tail) = whole.split_at(table);
        assert!(tail.contains(from), "{from}: {tail}");
        let end = tail.rfind(",\n  \"checksum\"").unwrap();
        let mut text = format!("{head}{}", tail[..end].replacen(from, to, 1));
        let sum = record_checksum(text.as_bytes());
        text.push_str(&format!(",\n  \"checksum\": \"{sum:016x}\"\n}}\n"));
        fs::write(&path, text).unwrap();
        let found = open(&target).map(|_| ()).unwrap_err().to_string();
        assert!(found.contains(named), "{to}: {found}");
    }
}

/// Fails every `step`-th operation until none is left to fail.
fn fail_operations(source: &Path, folder: &Path, options: PackOptions, step: usize) {
    let source = open(source).unwrap();
    let reference = folder.join("reference");
    pack(&source, &reference, options, &mut go).unwrap();
    let expected = tree(&reference);
    for (fail, error) in (0..)
        .step_by(step)
        .zip([io::ErrorKind::StorageFull, io::ErrorKind::Other].into_iter().cycle())
    {
        let faulty: &'static Faulty =
            Box::leak(Box::new(Faulty { count: AtomicU64::new(0), fail, error }));
        let target = folder.join("target");
        let first = pack_on(&faulty, &source, &target, options, &mut go);
        if first.is_err() && (!target.exists() || target.join("journal").exists()) {
            pack(&source, &target, options, &mut go).unwrap();
        }
        assert!(tree(&target) == expected, "operation {fail}");
        fs::remove_dir_all(&target).unwrap();
        if first.is_ok() {
            assert!(fail > 20);
            return;
        }
    }
}

#[test]
fn every_flipped_bit_is_found() {
    let folder = Folder::mlx();
    for source in [folder.path().to_owned(), with_rows()] {
        let target = tempfile::tempdir().unwrap();
        flip_bits(&source, &target.path().join("pack"));
    }
}

fn flip_bits(source: &Path, target: &Path) {
    let source = open(source).unwrap();
    pack(&source, target, PackOptions::default(), &mut go).unwrap();
    let mut noise = Noise(7);
    let names: Vec<String> = tree(target).into_keys().collect();
    for round in 0..80 {
        let path = target.join(names[noise.below(names.len())].trim_start_matches('/'));
        let original = fs::read(&path).unwrap();
        let mut flipped = original.clone();
        let at = noise.below(flipped.len());
        flipped[at] ^= 1 << noise.below(8);
        fs::write(&path, &flipped).unwrap();
        let found = match open(target) {
            Err(_) => true,
            Ok(packed) => !verify(&packed, &mut go).unwrap().damaged.is_empty(),
        };
        assert!(found, "round {round}: byte {at} of {}", path.display());
        // Cut short it does not open at all.
        fs::write(&path, &original[..at]).unwrap();
        assert!(open(target).is_err(), "round {round}: {} cut at {at}", path.display());
        fs::write(&path, &original).unwrap();
    }
    assert!(verify(&open(target).unwrap(), &mut go).unwrap().damaged.is_empty());
}

#[test]
fn a_changed_source_and_an_unfinished_pack_are_refused() {
    let folder = Folder::mlx();
    let source = open(folder.path()).unwrap();
    let target = folder.path().join("pack");
    let stop = &mut |_| ControlFlow::Break(());
    let stopped = pack(&source, &target, PackOptions::default(), stop);
    assert!(matches!(stopped, Err(PackError::Stopped)));
    let partial = folder.path().join("pack.partial");
    assert!(matches!(open(&partial), Err(FormatError::Unfinished { .. })));
    let file = fs::OpenOptions::new().write(true).open(&source.files[0].path).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let resumed = pack(&source, &target, PackOptions::default(), &mut go);
    assert!(matches!(resumed, Err(PackError::SourceChanged { .. })));
    let changed = open(folder.path()).unwrap();
    let resumed = pack(&changed, &target, PackOptions::default(), &mut go);
    assert!(matches!(resumed, Err(PackError::OtherWork { .. })));
}
