//! Goal: models in blocks of GGUF give the processor's logits on any GPU, and the same bits wherever experts were.
//! Method: synthetic checkpoints whose widths are whole blocks, on whatever GPU is there, with `FLASHMOE_GPU_TESTS=1`
//! alone.

use crate::long::{part, skips_gpu};
use crate::support;

use support::{Scored, demo_shape, distance, run};

/// Of experts and of the rest: blocks with and without minima, of 32 and 256 values, with grids and with tables.
const PAIRS: [(&str, &str); 3] = [("q4_k", "q6_k"), ("iq2_xs", "q8_0"), ("iq3_s", "iq4_xs")];

#[test]
fn blocks_give_the_logits_of_the_processor() {
    if skips_gpu() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let shape = demo_shape(folder.path(), 256);
    for (experts, trunk) in part(PAIRS, 3) {
        let model = folder.path().join(experts);
        let words = [shape.to_str().unwrap(), model.to_str().unwrap()];
        run(&[
            "synth",
            words[0],
            words[1],
            "--layout",
            "native",
            "--experts",
            experts,
            "--trunk",
            trunk,
        ]);
        let score = |options: &[&str]| Scored::with_ids_of("qwen35-hf", &model, options);
        let reference = score(&["--device", "cpu", "--arithmetic", "f32"]);
        let all = score(&["--device", "gpu:0"]);
        let apart = distance(&all, &reference);
        assert!(apart < 1e-4, "{experts} and {trunk}: {apart:.1e} from the processor");
        let few = score(&["--device", "gpu:0", "--vram", "45M"]);
        assert!(all.logits == few.logits, "{experts}: other bits with experts on disk");
    }
}
