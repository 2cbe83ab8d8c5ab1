//! `--check-reads`: a flipped bit in an expert ends the request by name; where nothing can be checked, the
//! option is refused.

use crate::support;

use std::path::{Path, PathBuf};
use std::process::Output;

use store::io::platform::FileExt;
use support::flashmoe;

fn synth(folder: &Path, name: &str, layout: &str) -> PathBuf {
    let model = folder.join(name);
    let path = model.to_str().unwrap();
    let output = flashmoe(&["synth", "tiny", path, "--layout", layout]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    model
}

fn score(folder: &Path, model: &Path, options: &[&str]) -> Output {
    let ids = folder.join("ids.json");
    std::fs::write(&ids, "[1, 50, 501, 7, 7, 300, 12, 400, 3, 511]").unwrap();
    let mut arguments = vec!["score", model.to_str().unwrap(), "--ids", ids.to_str().unwrap()];
    arguments.extend(options);
    flashmoe(&arguments)
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_flipped_bit_is_found_when_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let model = synth(folder.path(), "model", "native");
    let sound = score(folder.path(), &model, &["--check-reads"]);
    assert_eq!(sound.status.code(), Some(0), "{}", errors(&sound));

    // One bit in the middle of every record of the first layer: whichever are chosen, they are damaged.
    let experts = model.join("experts");
    let mut files: Vec<_> =
        std::fs::read_dir(&experts).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let file = std::fs::File::options().read(true).write(true).open(&files[0]).unwrap();
    for block in (0..file.metadata().unwrap().len()).step_by(4096) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, block + 100).unwrap();
        file.write_all_at(&[byte[0] ^ 0x10], block + 100).unwrap();
    }
    drop(file);

    let unchecked = score(folder.path(), &model, &[]);
    assert_eq!(unchecked.status.code(), Some(0), "{}", errors(&unchecked));
    let checked = score(folder.path(), &model, &["--check-reads"]);
    assert_eq!(checked.status.code(), Some(5), "{}", errors(&checked));
    let name = files[0].file_name().unwrap().to_str().unwrap();
    for part in ["checksum", name, "layer 0 expert", "flashmoe verify"] {
        assert!(errors(&checked).contains(part), "{part}: {}", errors(&checked));
    }
}

#[test]
fn what_cannot_be_checked_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mlx = synth(folder.path(), "mlx", "mlx");
    let refused = score(folder.path(), &mlx, &["--check-reads"]);
    assert_eq!(refused.status.code(), Some(2), "{}", errors(&refused));
    assert!(errors(&refused).contains("flashmoe pack"), "{}", errors(&refused));
    let native = synth(folder.path(), "native", "native");
    let refused = score(folder.path(), &native, &["--check-reads", "--storage", "mmap"]);
    assert_eq!(refused.status.code(), Some(2), "{}", errors(&refused));
}

/// A byte of the dense weights in each kind of tensor: refused by default, however they are loaded.
#[test]
fn a_damaged_trunk_is_refused_unless_the_check_is_declined() {
    let folder = tempfile::tempdir().unwrap();
    let model = synth(folder.path(), "model", "native");
    let sound = score(folder.path(), &model, &[]);
    assert_eq!(sound.status.code(), Some(0), "{}", errors(&sound));
    let checkpoint = store::format::open(&model).unwrap();
    let parts = &checkpoint.pack.as_ref().unwrap().trunk;
    let file = std::fs::File::options().read(true).write(true).open(model.join("trunk.bin"));
    let file = file.unwrap();
    for part in [
        "embed_tokens.weight",
        "embed_tokens.scales",
        "lm_head.biases",
        "norm.weight",
        "layers.0.linear_attn.conv1d.weight",
        "layers.3.self_attn.q_proj.weight",
        "layers.1.mlp.gate.weight",
    ] {
        let (name, extent, _) = parts.iter().find(|(name, ..)| name == part).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, extent.offset + 5).unwrap();
        file.write_all_at(&[byte[0] ^ 0x01], extent.offset + 5).unwrap();
        for options in [&[][..], &["--load", "mmap"], &["--storage", "resident"]] {
            let refused = score(folder.path(), &model, options);
            assert_eq!(refused.status.code(), Some(3), "{name}: {}", errors(&refused));
            for word in ["trunk.bin", name, "checksum"] {
                assert!(errors(&refused).contains(word), "{word}: {}", errors(&refused));
            }
        }
        let declined = score(folder.path(), &model, &["--no-check"]);
        assert_ne!(declined.status.code(), Some(3), "{name}: {}", errors(&declined));
        file.write_all_at(&byte, extent.offset + 5).unwrap();
    }
    assert_eq!(score(folder.path(), &model, &[]).status.code(), Some(0));
}
