//! Goal: `--device cpu,cpu` answers as `--device cpu` does, to the bit, whatever the split and the storage; what is no
//! split of the model, or no devices that can share one, is refused with the reason; so do GPUs. Method: the real
//! binary on golden nets; lavapipe with `FLASHMOE_GPU_TESTS=1`; plans
//! for GPUs that are not here.

use crate::long::{part, skips_gpu};
use crate::support;

use std::process::Command;

use support::Scored;

/// A net with its number of layers.
const CASES: [(&str, usize); 5] = [
    ("qwen35-calm-mlx-mixed", 4),
    ("dsv4-calm-hf", 4),
    ("flash-next-calm-hf", 3),
    ("deepseek-calm-hf", 3),
    ("dsv32-calm-hf", 3),
];

fn model(case: &str) -> String {
    support::golden().join(case).join("model").to_str().unwrap().to_owned()
}

#[test]
fn stages_answer_as_one_device_does() {
    for (case, layers) in CASES {
        let reference = Scored::compute(case, &["--device", "cpu", "--storage", "resident"]);
        let two = format!("1,{}", layers - 1);
        let all = vec!["1"; layers].join(",");
        let devices = vec!["cpu"; layers].join(",");
        for options in [
            &["--device", "cpu,cpu"][..],
            &["--device", "cpu,cpu", "--split", "auto", "--storage", "resident"],
            &["--device", "cpu,cpu", "--split", &two, "--slots", "floor"],
            &["--device", "cpu,cpu", "--split", &two, "--storage", "page-cache", "--kv", "ahead"],
            &["--device", "cpu,cpu", "--split", &two, "--storage", "mmap", "--load", "mmap"],
            &["--device", &devices, "--split", &all, "--slots", "floor", "--prefill-chunk", "7"],
        ] {
            let out = Scored::compute(case, options);
            assert!(out == reference, "{case} {options:?}: the bits differ");
        }
    }
}

#[test]
fn a_generator_gives_stages_what_it_gives_one_device() {
    let case = "qwen35-calm-mlx-mixed";
    let one = ["--device", "cpu", "--routing", "calibrated"];
    let two = ["--device", "cpu,cpu", "--split", "3,1", "--routing", "calibrated"];
    assert!(Scored::compute(case, &one) == Scored::compute(case, &two));
    assert!(Scored::compute(case, &one) != Scored::compute(case, &one[..2]), "it does replace it");
}

#[test]
fn what_is_no_split_is_refused_with_the_reason() {
    let model = model("qwen35-calm-mlx-mixed");
    for (options, words) in [
        (&["--split", "2,2"][..], &["--split", "--device cpu,cpu"][..]),
        (&["--device", "cpu,cpu", "--split", "2,3"], &["--split 2,3", "layers 2 to 5"]),
        (&["--device", "cpu,cpu", "--split", "1,2"], &["--split 1,2", "layer 3 of 4"]),
        (&["--device", "cpu,cpu", "--split", "0,4"], &["--split 0,4", "layers 0 to 0"]),
        (&["--device", "cpu,cpu", "--split", "4"], &["--split 4", "1 stages for 2 devices"]),
        (&["--device", "cpu,cpu", "--split", "1,1,2"], &["3 stages for 2 devices"]),
        (&["--device", "cpu,cpu", "--split", "half"], &["half", "20,20"]),
        (&["--device", "cpu,cpu,cpu,cpu,cpu"], &["5 devices", "4 stages"]),
        (&["--device", "cpu,cuda"], &["devices of several kinds"]),
        (&["--device", "auto,auto"], &["name each of several"]),
        (&["--device", "cuda:0,gpu:0"], &["devices of several kinds"]),
        (&["--device", "cpu,cpu", "--vram", "1G,2G,3G"], &["--vram", "one for each of the 2"]),
        (&["--device", "cpu", "--vram", "1G,2G"], &["--vram", "one size", "1 devices"]),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flashmoe"));
        let output = command.args(["plan", &model]).args(options).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{options:?}: {said}");
        for word in words {
            assert!(said.contains(word), "{options:?}: no \"{word}\" in {said}");
        }
    }
}

fn planned(options: &[&str]) -> serde_json::Value {
    planned_of("qwen35-calm-mlx-mixed", options)
}

fn planned_of(case: &str, options: &[&str]) -> serde_json::Value {
    let model = model(case);
    let mut command = Command::new(env!("CARGO_BIN_EXE_flashmoe"));
    let output = command.args(["plan", &model, "--json"]).args(options).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{options:?}: {said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_plan_shares_memory_out_and_holds_each_layer_once() {
    let slots = |plan: &serde_json::Value| -> Vec<u64> {
        let stages = plan["stages"].as_array().unwrap();
        stages.iter().map(|stage| stage["slots"].as_u64().unwrap()).collect()
    };
    let one = planned(&["--device", "cpu"]);
    assert_eq!(one["stages"][0]["layers"], serde_json::json!([0, 4]));
    let two = planned(&["--device", "cpu,cpu", "--split", "1,3"]);
    assert_eq!(two["stages"][1]["layers"], serde_json::json!([1, 4]));
    assert_eq!(one["experts"], two["experts"], "every expert in one store");
    let parts = ["key_value_cache", "recurrent_state"];
    for part in parts {
        assert_eq!(one["parts"][part], two["parts"][part], "{part}");
    }
    let floor = planned(&["--device", "cpu,cpu", "--split", "1,3", "--slots", "floor"]);
    let all = planned(&["--device", "cpu", "--slots", "floor"]);
    assert_eq!(slots(&floor).len(), 2);
    assert!(slots(&floor).iter().all(|&count| count > 0), "a step for each");
    assert!(slots(&floor).iter().sum::<u64>() >= slots(&all)[0], "no less than one device");
    let least = two["least_budget_bytes"].as_u64().unwrap();
    let memory = format!("{}M", least.div_ceil(1 << 20));
    let tight = planned(&["--device", "cpu,cpu", "--split", "1,3", "--memory", &memory]);
    assert!(tight["total_bytes"].as_u64() <= tight["budget_bytes"].as_u64());
}

#[test]
fn stages_are_counted_by_run_and_bench() {
    let output = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flashmoe"));
        let output = command.args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output
    };
    let model = support::golden().join("../../models/demo");
    let model = model.to_str().unwrap();
    let options = ["--device", "cpu,cpu", "--split", "5,7", "--memory", "1G"];
    let run = ["run", model, "Hi", "-n", "4", "--stats"];
    let said = String::from_utf8(output(&[&run[..], &options].concat()).stderr).unwrap();
    for line in ["layers 0 to 4: expert hits", "layers 5 to 11: expert hits", "waited for its"] {
        assert!(said.contains(line), "no \"{line}\" in {said}");
    }
    let bench = ["bench", model, "-p", "20", "-n", "4", "-r", "1", "-o", "json"];
    let rows = String::from_utf8(output(&[&bench[..], &options].concat()).stdout).unwrap();
    for row in rows.lines() {
        let row: serde_json::Value = serde_json::from_str(row).unwrap();
        let stages = row["stages"].as_array().unwrap();
        assert_eq!(stages.len(), 2, "{row}");
        assert_eq!(stages[1]["layers"], serde_json::json!([5, 12]));
        assert!(stages.iter().all(|stage| stage["slots"].as_u64() > Some(0)), "{row}");
        assert!(stages.iter().all(|stage| stage["waited_ms_per_token"].is_number()), "{row}");
    }
}

const CARDS: [&str; 4] =
    ["--machine", "ram=64G,disk=7,memory=936,vram=24G,bus=25", "--device", "cuda:0,cuda:1"];

#[test]
fn a_plan_says_what_each_gpu_takes() {
    let with = |options: &[&str]| planned(&[&CARDS[..], options].concat());
    let device = |plan: &serde_json::Value, stage: usize, field: &str| {
        plan["stages"][stage]["device"][field].as_u64().unwrap()
    };
    let two = with(&["--vram", "2G,1G", "--split", "1,3"]);
    assert_eq!(two["stages"][1]["layers"], serde_json::json!([1, 4]));
    assert!(device(&two, 0, "bytes") <= 2 << 30 && device(&two, 1, "bytes") <= 1 << 30);
    assert!(device(&two, 0, "slots") > 0 && device(&two, 1, "slots") > 0);
    assert_eq!(two["device"], two["stages"][0]["device"], "the first is named as ever");
    let each = with(&["--vram", "1G"]);
    assert!(device(&each, 0, "bytes") <= 1 << 30 && device(&each, 1, "bytes") <= 1 << 30);
    let one = planned(&[&CARDS[..3], &["cuda:0", "--vram", "2G"]].concat());
    assert_eq!(one["stages"].as_array().unwrap().len(), 1);
    let experts = |plan: &serde_json::Value| plan["experts"].as_u64().unwrap();
    assert_eq!(experts(&one), experts(&two));
    let slots = device(&two, 0, "slots") + device(&two, 1, "slots");
    assert_eq!(slots, device(&one, 0, "slots"), "all fit, each once");
    // The processor has nothing of it.
    assert!(planned(&["--device", "cpu"])["stages"][0]["device"].is_null());
}

#[test]
fn a_stage_of_gpus_ends_with_experts() {
    // The first layer is dense.
    let model = model("deepseek-calm-hf");
    let mut command = Command::new(env!("CARGO_BIN_EXE_flashmoe"));
    let output = command.args(["plan", &model]).args(CARDS).args(["--split", "1,2"]).output();
    let output = output.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("layer 0, which has no experts"), "{said}");
    let automatic = planned_of("deepseek-calm-hf", &CARDS);
    assert_eq!(automatic["stages"][0]["layers"], serde_json::json!([0, 2]));
}

#[test]
fn stages_on_any_gpu_answer_as_one_does() {
    if skips_gpu() {
        return;
    }
    let case = "qwen35-calm-mlx-mixed";
    let reference = Scored::compute(case, &["--device", "gpu:0"]);
    let calibrated = ["--device", "gpu:0", "--routing", "calibrated"];
    let drawn = Scored::compute(case, &calibrated);
    let cuts = [
        &["--device", "gpu:0,gpu:0,gpu:0", "--split", "1,2,1", "--prefill-chunk", "7"][..],
        &["--device", "gpu:0,gpu:0"],
        &["--device", "gpu:0,gpu:0", "--split", "1,3", "--slots", "floor", "--vram", "44M,45M"],
    ];
    for options in part(cuts, 2) {
        assert!(Scored::compute(case, options) == reference, "{options:?}: the bits differ");
        let options = [options, &calibrated[2..]].concat();
        assert!(Scored::compute(case, &options) == drawn, "{options:?}: the bits differ");
    }
}
