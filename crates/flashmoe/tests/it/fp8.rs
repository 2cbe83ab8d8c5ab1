//! 8-bit floats end to end: a checkpoint in tiles of 128 x 128 gives the answers of the same values in binary32, in
//! every storage mode, and from a pack that copied its bytes.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::path::Path;

use serde_json::json;
use support::{Scored, distance, golden, run};

use crate::quantised::{WHOLE, convert, in_tiles};
use crate::support;

pub(crate) const CASE: &str = "qwen3-calm-hf";

pub(crate) fn score(model: &Path, options: &[&str]) -> Scored {
    Scored::with_ids_of(CASE, model, options)
}

#[test]
fn tiles_give_the_answers_of_their_values() {
    for powers in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let config = json!({
            "quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128],
            "activation_scheme": "dynamic",
        });
        let [model, exact] =
            convert((CASE, &WHOLE), folder.path(), &config, |stem, shape, values| {
                in_tiles(stem, shape, values, powers)
            });
        let reference = score(&exact, &[]);
        let found = score(&model, &[]);
        let error = distance(&found, &reference);
        assert!(error < 1e-5, "{error:e}");
        let original = score(&golden().join(CASE).join("model"), &[]);
        assert!(distance(&found, &original) > 1e-3, "nothing was rounded");
        let pack = folder.path().join("pack");
        let [source, target] = [&model, &pack].map(|path| path.to_str().unwrap());
        run(&["pack", source, target]);
        assert!(run(&["verify", target]).contains("all intact"));
        assert!(run(&["inspect", target]).contains("fp8"));
        for path in [&model, &pack] {
            for options in [
                &["--storage", "mmap"][..],
                &["--storage", "budget", "--slots", "floor"],
                &["--prefill-chunk", "5"],
            ] {
                assert!(score(path, options) == found, "{path:?} {options:?}");
            }
        }
        assert!(score(&pack, &["--check-reads"]) == found);
        run(&["plan", target, "--device", "cpu"]);
    }
}
