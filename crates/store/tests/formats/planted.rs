//! Packing over what somebody has planted: nothing outside the pack is written to, and what this packer did not begin
//! is refused with the name of the folder.
#![cfg(unix)]

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};

use store::format::open;
use store::pack::{PackError, PackOptions, PackProgress, pack};

use crate::common::Folder;

fn go(_: PackProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn stop(_: PackProgress) -> ControlFlow<()> {
    ControlFlow::Break(())
}

/// Packs a model where `plant` has put something beside the destination `pack`, whose unfinished folder was begun by
/// an earlier run if `begun`. Gives the error. A file `victim` must stay as it is.
fn attack(begun: bool, plant: impl Fn(&Path, &Path)) -> Result<(), PackError> {
    let folder = Folder::mlx();
    let source = open(folder.path()).unwrap();
    let target = folder.path().join("pack");
    let partial = folder.path().join("pack.partial");
    if begun {
        let stopped = pack(&source, &target, PackOptions::default(), &mut stop);
        assert!(matches!(stopped, Err(PackError::Stopped)));
    }
    let outside = tempfile::tempdir().unwrap();
    let victim = outside.path().join("victim");
    fs::write(&victim, "keep me").unwrap();
    plant(&partial, &victim);
    let result = pack(&source, &target, PackOptions::default(), &mut go);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "keep me");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1, "something was put outside");
    if let Err(error) = &result {
        assert!(!target.exists());
        let line = error.to_string();
        assert!(line.contains("pack.partial") && !line.contains('\n'), "{line}");
    } else {
        open(&target).unwrap();
    }
    result.map(drop)
}

fn refused(begun: bool, plant: impl Fn(&Path, &Path)) {
    let result = attack(begun, plant);
    assert!(matches!(result, Err(PackError::Foreign { .. })), "{result:?}");
}

#[test]
fn links_in_a_folder_that_was_not_begun_are_refused() {
    for name in ["trunk.bin", "journal.new", "checksums.bin", "manifest.json", "config.json", "x"] {
        refused(false, |partial, victim| {
            fs::create_dir(partial).unwrap();
            symlink(victim, partial.join(name)).unwrap();
        });
    }
    refused(false, |partial, victim| {
        fs::create_dir(partial).unwrap();
        symlink(victim.parent().unwrap(), partial.join("experts")).unwrap();
    });
}

#[test]
fn links_among_the_files_of_an_earlier_run_are_refused() {
    let replace = |path: PathBuf, victim: &Path| {
        let _ = fs::remove_file(&path);
        symlink(victim, path).unwrap();
    };
    for name in ["trunk.bin", "journal", "journal.new", "checksums.bin", "experts/layer_000.bin"] {
        refused(true, |partial, victim| replace(partial.join(name), victim));
        // To nowhere: creating a file through it would make one there.
        refused(true, |partial, victim| {
            replace(partial.join(name), &victim.with_extension("made"));
        });
    }
    refused(true, |partial, victim| {
        fs::remove_dir_all(partial.join("experts")).unwrap();
        symlink(victim.parent().unwrap(), partial.join("experts")).unwrap();
    });
}

/// A second name of somebody's file is as good as a link to it.
#[test]
fn second_names_of_other_files_are_refused() {
    for begun in [false, true] {
        refused(begun, |partial, victim| {
            let _ = fs::create_dir(partial);
            let place = partial.join("trunk.bin");
            let _ = fs::remove_file(&place);
            if fs::hard_link(victim, &place).is_err() {
                // Another file system: the next best thing.
                symlink(victim, &place).unwrap();
            }
        });
    }
}

#[test]
fn an_unfinished_folder_that_is_none_is_refused() {
    let linked =
        attack(false, |partial, victim| symlink(victim.parent().unwrap(), partial).unwrap());
    assert!(matches!(linked, Err(PackError::Io { .. } | PackError::Foreign { .. })), "{linked:?}");
    let file = attack(false, |partial, _| fs::write(partial, "").unwrap());
    assert!(matches!(file, Err(PackError::Io { .. } | PackError::Foreign { .. })), "{file:?}");
    let dangling = attack(false, |partial, victim| {
        symlink(victim.with_extension("made"), partial).unwrap();
    });
    assert!(matches!(dangling, Err(PackError::Io { .. } | PackError::Foreign { .. })));
}

#[test]
fn files_that_pack_did_not_write_are_refused() {
    refused(false, |partial, _| {
        fs::create_dir(partial).unwrap();
        fs::write(partial.join("tokenizer.json"), "{}").unwrap();
    });
    refused(false, |partial, _| fs::create_dir_all(partial.join("experts")).unwrap());
    for name in ["chat_template.txt", "experts/layer_999.bin"] {
        refused(true, |partial, _| fs::write(partial.join(name), "{}").unwrap());
    }
    refused(true, |partial, _| fs::create_dir(partial.join("generation_config.json")).unwrap());
    // A journal of no pack.
    refused(false, |partial, _| {
        fs::create_dir(partial).unwrap();
        fs::write(partial.join("journal"), "hello\n").unwrap();
    });
}

#[test]
fn the_folder_of_another_user_is_refused() {
    let give_away = |path: &Path| chown(path, Some(12345), None).is_ok();
    let probe = tempfile::tempdir().unwrap();
    if !give_away(probe.path()) {
        return; // only the administrator can give folders away
    }
    refused(true, |partial, _| assert!(give_away(partial)));
    refused(false, |partial, _| {
        fs::create_dir(partial).unwrap();
        assert!(give_away(partial));
    });
}

/// What a run leaves that was killed before it had a journal.
#[test]
fn an_empty_folder_is_taken() {
    attack(false, |partial, _| fs::create_dir(partial).unwrap()).unwrap();
    attack(false, |partial, _| {
        fs::create_dir(partial).unwrap();
        fs::write(partial.join("journal.new"), "half a li").unwrap();
    })
    .unwrap();
    attack(true, |_, _| {}).unwrap();
}
