//! Goal: `--device auto` takes a GPU of any maker where its kernels are right, and says in one line what it chose and
//! why; where they are wrong, or the driver crashes, the processor answers. Method: the real binary on lavapipe, which
//! a test's variable has it take for a GPU (`FLASHMOE_TEST_GPU`), with a cache folder of its own.
#![cfg(target_os = "linux")]

use crate::support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A question with an answer of eight tokens, and the answer: lavapipe takes a tenth of a second for each token.
const ASKED: [&str; 4] = ["What is 3 + 4?", "--think=false", "--temperature", "0"];
const ANSWER: &str = "3 + 4 = 7";
/// What a report of a model must have.
const REPORTED: &str = "255 = 3 × 5 × 17";

fn demo() -> String {
    support::golden().join("../../models/demo").to_str().unwrap().to_owned()
}

struct Machine {
    driver: PathBuf,
    cache: tempfile::TempDir,
}

impl Machine {
    fn new() -> Option<Self> {
        Some(Self { driver: support::lavapipe()?, cache: tempfile::tempdir().unwrap() })
    }

    /// What Mesa compiles is kept where other tests have it: a check of all kernels takes thirteen seconds of a
    /// processor, with them three.
    fn compiled() -> Option<PathBuf> {
        let own = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        own.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))
    }

    fn run(&self, hook: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flashmoe"));
        command.args(arguments).env("VK_DRIVER_FILES", &self.driver);
        command.env("XDG_CACHE_HOME", self.cache.path()).env("FLASHMOE_TEST_GPU", hook);
        command.envs(Self::compiled().map(|folder| ("MESA_SHADER_CACHE_DIR", folder)));
        command.env_remove("XDG_RUNTIME_DIR").env_remove("VK_ICD_FILENAMES").output().unwrap()
    }

    /// Asks the demo model, and gives what was said apart from the answer, which must be right.
    fn ask(&self, hook: &str, options: &[&str]) -> String {
        let demo = demo();
        let output = self.run(hook, &[&["run", &demo, "--stats"], &ASKED[..], options].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{hook}: {said}");
        let answer = String::from_utf8(output.stdout).unwrap();
        assert!(answer.contains(ANSWER), "{hook}: {answer}");
        said
    }

    fn kept(&self) -> serde_json::Value {
        let file = self.cache.path().join("flashmoe").join("gpu-checks.json");
        serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
    }
}

/// Lines that have a text.
fn with<'a>(said: &'a str, text: &str) -> Vec<&'a str> {
    said.lines().filter(|line| line.contains(text)).collect()
}

#[test]
fn a_driver_that_computes_on_the_processor_is_no_gpu() {
    let Some(machine) = Machine::new() else { return };
    let said = machine.ask("look", &[]);
    let line = with(&said, "runs on the processor");
    assert_eq!(line.len(), 1, "{said}");
    assert!(line[0].contains("llvmpipe") && line[0].contains("is no GPU"), "{said}");
    assert!(!machine.cache.path().join("flashmoe").exists(), "nothing was checked");
    let output = machine.run("look", &["doctor"]);
    let found = String::from_utf8(output.stdout).unwrap();
    assert!(found.contains("which --device auto does not take"), "{found}");
}

#[test]
fn a_gpu_whose_kernels_are_right_computes_and_is_checked_once() {
    let Some(machine) = Machine::new() else { return };
    let first = machine.ask("software", &["--vram", "200M"]);
    let line = with(&first, " computes: ");
    assert!(line.len() == 1 && line[0].contains("checks of its kernels are right"), "{first}");
    assert_eq!(with(&first, "runs on llvmpipe").len(), 1, "{first}");
    let second = machine.ask("software", &["--vram", "200M"]);
    assert!(with(&second, " computes: ").is_empty(), "{second}");
    assert_eq!(with(&second, "runs on llvmpipe").len(), 1, "{second}");
    let kept = machine.kept();
    let checks = kept["checks"].as_array().unwrap();
    assert_eq!(checks.len(), 1, "{kept}");
    assert!(checks[0]["verdict"]["holds"] == true && checks[0]["verdict"]["short"] == true);
    for part in ["adapter", "api", "driver", "build"] {
        assert!(!checks[0]["key"][part].as_str().unwrap().is_empty(), "{kept}");
    }
    // Options that are the processor's, or too little memory for the GPU: the processor, with the reason.
    for (options, reason) in [
        (["--threads", "2"].as_slice(), "--threads"),
        (&["--storage", "mmap"], "storage mode"),
        (&["--draft", "ngram"], "--draft"),
    ] {
        let said = machine.ask("software", options);
        let line = with(&said, "runs on the processor");
        assert!(line.len() == 1 && line[0].contains(reason), "{options:?}: {said}");
    }
    let damaged = machine.cache.path().join("flashmoe").join("gpu-checks.json");
    std::fs::write(&damaged, "{\"checks\": 7}").unwrap();
    let again = machine.ask("software", &["--vram", "200M"]);
    assert_eq!(with(&again, " computes: ").len(), 1, "a damaged file is none: {again}");
    assert_eq!(machine.kept()["checks"].as_array().unwrap().len(), 1);
}

#[test]
fn a_gpu_that_fails_its_check_leaves_the_answer_to_the_processor() {
    for (hook, reason) in [("software,wrong", "are wrong"), ("software,crash", "crashed")] {
        let Some(machine) = Machine::new() else { return };
        let first = machine.ask(hook, &[]);
        let line = with(&first, "the processor computes, not llvmpipe");
        assert_eq!(line.len(), 1, "{first}");
        assert!(line[0].contains(reason) && line[0].contains("--gpu-check"), "{first}");
        assert_eq!(with(&first, "runs on the processor: llvmpipe").len(), 1, "{first}");
        // Once is enough, and a driver that crashes is not tried again.
        let second = machine.ask(hook, &[]);
        assert!(with(&second, "the processor computes, not").is_empty(), "{second}");
        let why = with(&second, "runs on the processor: llvmpipe");
        assert!(why.len() == 1 && why[0].contains(reason), "{second}");
        let refused = machine.run(hook, &["run", &demo(), "Hi", "--vram", "200M"]);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains("--vram needs a GPU") && said.contains(reason), "{said}");
    }
}

#[test]
fn a_crash_of_a_driver_is_a_line_of_the_report() {
    let Some(machine) = Machine::new() else { return };
    let output = machine.run("software,crash", &["doctor", "--gpu-check"]);
    let found = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{found}");
    for group in ["layers:", "packings:", "pairs:", "options:"] {
        assert_eq!(found.lines().filter(|line| *line == group).count(), 1, "{group} {found}");
    }
    assert!(with(&found, "stopped: crashed").len() > 8, "{found}");
    assert_eq!(machine.kept()["checks"][0]["verdict"]["holds"], false);
    let output = machine.run("software,crash", &["doctor", "--report"]);
    let found = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{found}");
    for part in ["== machine", "== kernels of GPU 0: llvmpipe", "no model", "end of the report"] {
        assert!(found.contains(part), "{part}: {found}");
    }
}

#[test]
fn a_report_of_a_model_has_its_answer_its_speed_and_the_disks() {
    let Some(machine) = Machine::new() else { return };
    let output = machine.run("", &["doctor", "--report", &demo()]);
    let found = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{found}");
    assert!(found.contains(REPORTED), "{found}");
    for part in [
        "left out: it computes on the processor",
        "== answer, --device cpu",
        "== speed, --device cpu",
        "direct, aligned to 4 KiB: ",
        "buffered, aligned to 16 KiB: ",
        "end of the report",
    ] {
        assert!(found.contains(part), "{part}: {found}");
    }
    assert!(!found.contains("FAILED"), "{found}");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_str().unwrap();
    assert!(!found.contains(folder), "{folder}: {found}");
}

/// Reads of a Mac begin and end at multiples of 16 KiB: the same answer, on a file whose pieces lie anywhere.
#[test]
fn reads_of_whole_large_pages_give_the_same_answer() {
    let ask = |block: &str, storage: &[&str]| {
        let demo = demo();
        let mut command = Command::new(env!("CARGO_BIN_EXE_flashmoe"));
        command.args(["run", &demo, "--device", "cpu", "--stats"]).args(ASKED).args(storage);
        command.env("FLASHMOE_TEST_BLOCK", block);
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{block}: {said}");
        let read =
            said.split("· read ").nth(1).map(|rest| rest.split(" · ").next().unwrap().to_owned());
        (String::from_utf8(output.stdout).unwrap(), read.unwrap())
    };
    for storage in [["--slots", "200", "--io", "auto"], ["--slots", "200", "--io", "pread"]] {
        let (plain, plain_read) = ask("", &storage);
        let (large, large_read) = ask("16384", &storage);
        assert_eq!(plain, large, "{storage:?}");
        assert!(plain.contains(ANSWER), "{plain}");
        assert_ne!(plain_read, large_read, "the reads were not widened");
    }
}
