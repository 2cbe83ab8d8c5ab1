//! Single bits of a native pack, flipped one at a time in a copy in memory: `verify` must name the file, and a run must
//! refuse it by name or give the answer of the undamaged pack. A run does not read the padding behind tensors, nor
//! files of text.

use std::fs::{File, OpenOptions};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use engine::backend::Uncancelled;
use store::format::{Checkpoint, open};
use store::pack::verify;

use crate::checkpoints::packed;
use crate::net::{Room, engine};
use crate::slim::BOTH;
use crate::target::Target;

/// Enough for every kind of layer to look back. Every expert is read and compared, chosen or not: all fit.
const TOKENS: [u32; 5] = [1, 50, 7, 300, 12];

struct Part {
    name: String,
    file: File,
    length: u64,
}

pub(crate) fn flips() -> Target {
    let (folder, pack) = packed(BOTH);
    let mut parts = Vec::new();
    collect(&pack, &mut parts);
    parts.sort_by(|a, b| a.name.cmp(&b.name));
    let expected = run(open(&pack).expect("the pack opens")).expect("the pack runs");
    assert!(found_by_verify(&pack).is_none(), "the pack is whole");
    Target {
        seeds: vec![vec![0; 16]],
        mutate: |random, input| {
            *input =
                [random.next(), random.next()].iter().flat_map(|word| word.to_le_bytes()).collect();
        },
        run: Box::new(move |input| {
            let _kept = &folder;
            let word = |at: usize| {
                let bytes = input.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
                bytes.map_or(0, u64::from_le_bytes)
            };
            // Every file as often as every other.
            let part = &parts[(word(0) as u32 as usize) % parts.len()];
            let (at, bit) = (word(8) % part.length, 1 << ((word(0) >> 32) % 8));
            let mut byte = [0];
            part.file.read_exact_at(&mut byte, at).expect("the copy can be read");
            part.file.write_all_at(&[byte[0] ^ bit], at).expect("the copy can be written");
            let place = format!("bit {bit} of byte {at} of {}", part.name);
            let found = found_by_verify(&pack);
            assert!(found.as_ref().is_some_and(|it| it.contains(&part.name)), "{place}: {found:?}");
            let ran = open(&pack).map_err(|error| error.to_string()).and_then(run);
            match ran {
                Ok(logits) => assert!(logits == expected, "{place}: another answer"),
                Err(told) => assert!(told.contains(&part.name), "{place}: {told}"),
            }
            part.file.write_all_at(&byte, at).expect("the copy can be written");
        }),
    }
}

fn collect(folder: &Path, parts: &mut Vec<Part>) {
    let paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("the pack can be read")
        .map(|entry| entry.expect("the pack can be read").path())
        .collect();
    for path in paths {
        if path.is_dir() {
            collect(&path, parts);
            continue;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.expect("the copy can be written");
        let length = file.metadata().expect("it is open").len();
        parts.push(Part { name, file, length });
    }
}

/// What `verify` says is damaged, if it says so.
fn found_by_verify(pack: &Path) -> Option<String> {
    let checkpoint = match open(pack) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return Some(error.to_string()),
    };
    match verify(&checkpoint, &mut |_| ControlFlow::Continue(())) {
        Ok(report) => (!report.damaged.is_empty()).then(|| report.damaged.join("; ")),
        Err(error) => Some(error.to_string()),
    }
}

/// The bits of the logits after the last token.
fn run(checkpoint: Checkpoint) -> Result<Vec<u32>, String> {
    let room = Room { context: 64, sequences: 1, snapshots: 0, check_reads: true };
    let mut engine = engine(checkpoint, &room)?;
    let sequence = engine.create_sequence().map_err(|error| error.to_string())?;
    let mut bits = Vec::new();
    let ran =
        engine.prefill(sequence, &TOKENS, &Uncancelled, &mut |_| {}, &mut |engine, _, length| {
            bits = engine.logits(&[length - 1])?.iter().map(|logit| logit.to_bits()).collect();
            Ok(())
        });
    ran.map(|()| bits).map_err(|error| error.to_string())
}
