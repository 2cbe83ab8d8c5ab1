//! Goal: a GPU that is not there, or too small, is one clear line that says what to do, with the documented exit code;
//! one that is there says nothing of its own. Method: the real binary, with loaders and drivers that do not exist, and
//! lavapipe with `FLASHMOE_GPU_TESTS=1`.
#![cfg(target_os = "linux")]

use crate::support;

use std::path::Path;
use std::process::Command;

fn demo() -> String {
    support::golden().join("../../models/demo").to_str().unwrap().to_owned()
}

/// Exit code and standard error of flashmoe with arguments and variables.
fn told(arguments: &[&str], variables: &[(&str, &Path)]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flashmoe"));
    command.args(arguments).env_remove("XDG_RUNTIME_DIR").env_remove("VK_ICD_FILENAMES");
    let output = command.envs(variables.iter().copied()).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// One line, with the words.
#[track_caller]
fn one_line(text: &str, words: &[&str]) {
    assert_eq!(text.trim_end().lines().count(), 1, "{text}");
    for word in words {
        assert!(text.contains(word), "no \"{word}\": {text}");
    }
}

#[test]
fn without_a_loader_it_says_what_to_install() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("libvulkan.so.1"), "no library").unwrap();
    std::fs::write(folder.path().join("libvulkan.so"), "no library").unwrap();
    let path = [("LD_LIBRARY_PATH", folder.path())];
    let (code, said) = told(&["plan", &demo(), "--device", "gpu"], &path);
    one_line(&said, &["no Vulkan loader", "libvulkan1", "--device cpu"]);
    assert_eq!(code, 2);
    let (code, said) = told(&["doctor", "--gpu-check"], &path);
    one_line(&said, &["no Vulkan loader"]);
    assert_eq!(code, 2);
}

#[test]
fn without_a_driver_it_says_so_and_not_that_the_loader_is_missing() {
    if support::lavapipe().is_none() {
        return;
    }
    let none = [("VK_DRIVER_FILES", Path::new("/nonexistent.json"))];
    let (code, said) = told(&["plan", &demo(), "--device", "gpu"], &none);
    one_line(&said, &["found no driver", "VK_DRIVER_FILES=/nonexistent.json", "--device cpu"]);
    assert_eq!(code, 2);
    let (code, said) = told(&["doctor", "--gpu-check"], &none);
    one_line(&said, &["found no driver"]);
    assert_eq!(code, 2);
}

#[test]
fn an_adapter_that_is_not_there_or_computes_on_the_processor_is_named() {
    let Some(driver) = support::lavapipe() else { return };
    let driver = [("VK_DRIVER_FILES", driver.as_path())];
    let (code, said) = told(&["plan", &demo(), "--device", "gpu:7"], &driver);
    one_line(&said, &["no GPU 7", "1 found", "flashmoe doctor"]);
    assert_eq!(code, 2);
    let (code, said) = told(&["plan", &demo(), "--device", "gpu"], &driver);
    one_line(&said, &["no GPU was found", "llvmpipe", "--device gpu:N"]);
    assert_eq!(code, 2);
}

#[test]
fn too_little_memory_is_told_before_anything_is_loaded_and_enough_says_nothing_else() {
    let Some(driver) = support::lavapipe() else { return };
    let driver = [("VK_DRIVER_FILES", driver.as_path())];
    let with = |options: &[&str]| {
        let demo = demo();
        let mut arguments = vec!["plan", &demo, "--device", "gpu:0"];
        arguments.extend(options);
        told(&arguments, &driver)
    };
    let (code, said) = with(&["--vram", "1M"]);
    one_line(&said, &["not enough memory", "the cap is 1.00 MiB", "raise --vram"]);
    assert_eq!(code, 4);
    let (code, said) = with(&["--vram", "60000G"]);
    one_line(&said, &["not enough memory", "--vram"]);
    assert_eq!(code, 4);
    // One memory: the GPU's bytes are the process's.
    let (code, said) = with(&["--vram", "600M", "--memory", "400M"]);
    one_line(&said, &["not enough memory", "GPU's buffers", "--memory"]);
    assert_eq!(code, 4);
    let (code, said) = with(&["--vram", "120M", "--context", "2048"]);
    assert_eq!(code, 0, "{said}");
    assert!(!said.contains("XDG_RUNTIME_DIR"), "{said}");
}

#[test]
fn types_of_keys_and_values_that_the_kernels_do_not_store_are_refused_before_anything_is_loaded() {
    let Some(driver) = support::lavapipe() else { return };
    let driver = [("VK_DRIVER_FILES", driver.as_path())];
    let plan = |model: &str, kv_type: &str| {
        told(&["plan", model, "--device", "gpu:0", "--kv-type", kv_type], &driver)
    };
    let odd = support::golden().join("qwen35-calm-hf/model");
    let (code, said) = plan(odd.to_str().unwrap(), "q8");
    one_line(&said, &["head_dim", "1 x 32 values", "--kv-type f16"]);
    assert_eq!(code, 3);
    let (code, said) = plan(&demo(), "bf16");
    one_line(&said, &["--kv-type", "f16, f32 or q8"]);
    assert_eq!(code, 2);
    let (code, said) = plan(&demo(), "q8");
    assert_eq!(code, 0, "{said}");
}

#[test]
fn the_demo_answers_in_8_bits_as_the_processor_does() {
    let Some(driver) = support::lavapipe() else { return };
    let answer = |device: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flashmoe"));
        let question = "What is 255 factored?";
        command.args(["run", &demo(), question, "--temperature", "0", "--kv-type", "q8"]);
        command.args(["--think=false", "--max-tokens", "24"]);
        let output = command.args(["--device", device]).env("VK_DRIVER_FILES", &driver).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let found = answer("gpu:0");
    assert!(found.contains("255 is odd"), "{found}");
    assert_eq!(found, answer("cpu"));
}
