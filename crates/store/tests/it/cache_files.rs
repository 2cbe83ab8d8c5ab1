//! Goal: files that change under a running store are found out, with the real engines. Method: open, then
//! truncate, overwrite, lengthen, replace or unlink a layer's file; visits give the bytes that were there
//! at open or an error that says what happened, and other layers go on.

use crate::cache_support;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cache_support::{Layout, byte_at, checkpoint, ids, is_right, native_record_bytes};
use store::LayerId;
use store::cache::{
    ExpertStore, Phase, ReadCause, SlotBudget, StorageMode, StoreError, StoreOptions,
};
use store::format::Checkpoint;
use store::io::{FileChange, IoEngine};

const EXPERTS: usize = 8;

/// Every way to read that works here.
fn stores(checkpoint: &Arc<Checkpoint>) -> Vec<(String, ExpertStore)> {
    let mut stores = Vec::new();
    for mode in [StorageMode::Budget, StorageMode::PageCache, StorageMode::Mmap] {
        for io in [IoEngine::Pread, IoEngine::Uring] {
            let options =
                StoreOptions { slots: SlotBudget::Slots(4), io, ..StoreOptions::new(mode, 4) };
            match ExpertStore::open(Arc::clone(checkpoint), options) {
                Ok(store) => stores.push((format!("{mode:?} {io:?}"), store)),
                Err(StoreError::Engine { cause, .. }) => {
                    use std::io::Write;
                    let note = format!("skipped {mode:?} {io:?}: {cause}\n");
                    std::io::stderr().write_all(note.as_bytes()).unwrap();
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
    assert!(stores.len() >= 3);
    stores
}

/// The first member's outcome: whether the bytes are those at open, or why they could not be had.
fn outcome(
    checkpoint: &Checkpoint,
    store: &ExpertStore,
    layer: u16,
    expert: u16,
) -> Option<ReadCause> {
    let (layer, experts) = (LayerId(layer), ids(&[expert]));
    let result = store.visit(layer, &experts, Phase::Decode).and_then(|visit| {
        let bytes = visit.wait(0)?;
        assert!(is_right(checkpoint, layer, experts[0], &bytes), "wrong bytes without an error");
        Ok(())
    });
    match result {
        Ok(()) => None,
        Err(StoreError::Read { path, cause, .. }) => {
            assert_eq!(path, checkpoint.files[layer.index()].path);
            Some(cause)
        }
        Err(other) => panic!("{other}"),
    }
}

fn later(path: &Path) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(5)).unwrap();
}

/// Applies `change` to layer 0's file of a fresh checkpoint under every store, and judges a visit to its
/// last expert; the other layer must be served.
fn after(change: impl Fn(&Path), judge: impl Fn(&str, Option<ReadCause>)) {
    let count = {
        let folder = tempfile::tempdir().unwrap();
        stores(&checkpoint(folder.path(), 2, EXPERTS, Layout::Native)).len()
    };
    for index in 0..count {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = checkpoint(folder.path(), 2, EXPERTS, Layout::Native);
        let (name, store) = stores(&checkpoint).swap_remove(index);
        assert_eq!(outcome(&checkpoint, &store, 0, 0), None);
        change(&checkpoint.files[0].path);
        judge(&name, outcome(&checkpoint, &store, 0, EXPERTS as u16 - 1));
        assert_eq!(outcome(&checkpoint, &store, 1, 5), None, "{name}: the other layer");
    }
}

#[test]
fn a_truncated_file_is_an_error_of_the_visits_that_need_it() {
    let length = EXPERTS as u64 * native_record_bytes();
    for now in [0, 1, length / 2, length - native_record_bytes(), length - 1] {
        after(
            |path| fs::OpenOptions::new().write(true).open(path).unwrap().set_len(now).unwrap(),
            |name, cause| {
                let expected = ReadCause::Changed(FileChange::Resized { before: length, now });
                assert_eq!(cause, Some(expected), "{name}, cut to {now}");
            },
        );
    }
}

#[test]
fn a_file_written_over_in_place_is_an_error() {
    after(
        |path| {
            // What `cp` does: the same inode, in the end the same size.
            let length = fs::metadata(path).unwrap().len() as usize;
            fs::write(path, vec![0x55; length]).unwrap();
            later(path);
        },
        |name, cause| {
            assert_eq!(cause, Some(ReadCause::Changed(FileChange::Modified)), "{name}");
        },
    );
}

#[test]
fn a_file_written_over_whose_times_were_set_back_is_an_error() {
    after(
        |path| {
            // What `cp -p` and `rsync --inplace` do: the same inode, size and time of modification.
            let before = fs::metadata(path).unwrap();
            fs::write(path, vec![0x55; before.len() as usize]).unwrap();
            let file = fs::OpenOptions::new().write(true).open(path).unwrap();
            file.set_modified(before.modified().unwrap()).unwrap();
        },
        |name, cause| {
            assert_eq!(cause, Some(ReadCause::Changed(FileChange::Modified)), "{name}");
        },
    );
}

#[test]
fn links_and_permissions_change_no_weights() {
    let link = |path: &Path| fs::hard_link(path, path.with_extension("link")).unwrap();
    let protect = |path: &Path| {
        let mut permissions = path.metadata().unwrap().permissions();
        permissions.set_readonly(true);
        fs::set_permissions(path, permissions).unwrap();
    };
    after(link, |name, cause| assert_eq!(cause, None, "{name}, linked"));
    after(protect, |name, cause| assert_eq!(cause, None, "{name}, protected"));
}

/// The open file lives on: a store goes on with the model that it opened.
#[test]
fn a_file_that_was_unlinked_or_replaced_by_renaming_is_still_read() {
    after(|path| fs::remove_file(path).unwrap(), |name, cause| assert_eq!(cause, None, "{name}"));
    after(
        |path| {
            let other = path.with_extension("new");
            let length = fs::metadata(path).unwrap().len();
            let bytes: Vec<u8> = (0..length).map(|at| byte_at(77, at)).collect();
            fs::write(&other, bytes).unwrap();
            fs::rename(&other, path).unwrap();
        },
        |name, cause| assert_eq!(cause, None, "{name}"),
    );
}

#[test]
fn a_file_that_changed_between_opening_the_checkpoint_and_the_store_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(folder.path(), 2, EXPERTS, Layout::Native);
    let file = fs::OpenOptions::new().write(true).open(&checkpoint.files[1].path).unwrap();
    file.set_len(native_record_bytes()).unwrap();
    let options = StoreOptions::new(StorageMode::Budget, 4);
    let refused = ExpertStore::open(Arc::clone(&checkpoint), options).err().unwrap();
    let StoreError::Open { path, cause } = refused else { panic!("{refused}") };
    assert_eq!(path, checkpoint.files[1].path);
    assert!(cause.contains("when the checkpoint was opened"), "{cause}");
}
