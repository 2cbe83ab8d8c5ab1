//! Goal: from a model's name to an answer with one command, whatever interrupts it, and one line with what to type
//! where a name leads nowhere. Method: the real binary against a hub on this machine that serves the demo model.

#[path = "../../../hub/tests/it/support/mod.rs"]
mod hub;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hub::{COMMIT, NAME, TestHub};
use tempfile::TempDir;

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo")
}

fn demo_files() -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(demo()).unwrap().flatten().filter(|it| it.path().is_file());
    files
        .map(|it| (it.file_name().into_string().unwrap(), std::fs::read(it.path()).unwrap()))
        .collect()
}

/// A hub with the demo model, and an empty home.
fn start() -> (TestHub, TempDir) {
    (TestHub::start(demo_files()), tempfile::tempdir().unwrap())
}

fn command(hub: &TestHub, home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flashmoe"));
    command.args(arguments).env("HF_ENDPOINT", &hub.endpoint).env("HF_HOME", home);
    for name in ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE"] {
        command.env_remove(name);
    }
    for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn flashmoe(hub: &TestHub, home: &Path, arguments: &[&str]) -> Output {
    command(hub, home, arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

const ASK: [&str; 5] = ["What is 255 factored?", "--device", "cpu", "--hide-thinking", "--seed=1"];

#[test]
fn one_command_leads_from_a_name_to_an_answer_although_it_is_killed_three_times() {
    let (hub, home) = start();
    let files = hub.state.files.iter().filter(|(path, _)| *path != "README.md");
    let wanted: u64 = files.map(|(_, bytes)| bytes.len() as u64).sum();
    let run = [&["run", NAME][..], &ASK].concat();
    let total = hub.bytes();
    hub.state.pace.store(4, Ordering::SeqCst);
    for part in 1..=3 {
        let mut child = command(&hub, home.path(), &run).spawn().unwrap();
        let started = Instant::now();
        while hub.sent() < part * total / 4 && started.elapsed() < Duration::from_secs(120) {
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    hub.state.pace.store(0, Ordering::SeqCst);
    let output = flashmoe(&hub, home.path(), &run);
    let told = text(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert!(text(&output.stdout).contains("3 × 5 × 17"), "{}", text(&output.stdout));
    assert!(told.contains("is not on this disk: pulling it"), "{told}");
    // A kill loses what is in flight: four segments of a 128th of the largest file.
    let largest = hub.state.files.values().map(Vec::len).max().unwrap() as u64;
    let lost = 3 * 4 * (largest / 128).max(256 << 10);
    assert!(hub.sent() <= wanted + lost, "{} of {wanted} sent", hub.sent());
    // And once more: nothing is fetched, the hub is not even asked.
    let asked = hub.asked().len();
    assert!(flashmoe(&hub, home.path(), &run).status.success());
    assert_eq!(hub.asked().len(), asked);
}

#[test]
fn a_model_of_an_unknown_family_is_refused_before_its_download() {
    let mut files = demo_files();
    let config = text(&files["config.json"]).replace("qwen3_5_moe", "some_dense_net");
    assert!(config.contains("some_dense_net"), "{config}");
    files.insert("config.json".to_owned(), config.into_bytes());
    let (hub, home) = (TestHub::start(files), tempfile::tempdir().unwrap());
    for arguments in [&["pull", NAME][..], &["run", NAME, "hi"]] {
        let output = flashmoe(&hub, home.path(), arguments);
        let told = text(&output.stderr);
        assert!(!output.status.success(), "{told}");
        assert!(
            told.contains("nothing was downloaded") && told.contains("some_dense_net"),
            "{told}"
        );
    }
    assert!(hub.sent() < hub.bytes() / 10, "{} of {} bytes sent", hub.sent(), hub.bytes());
}

#[test]
fn models_on_disk_are_listed_shown_used_and_removed() {
    let (hub, home) = start();
    let run = |arguments: &[&str]| flashmoe(&hub, home.path(), arguments);
    assert!(text(&run(&["list"]).stderr).contains("flashmoe pull OWNER/NAME"));
    let dry = run(&["pull", NAME, "--dry-run"]);
    assert!(text(&dry.stdout).contains("to download") && hub.sent() == 0);
    let pulled = run(&["pull", NAME]);
    assert!(pulled.status.success(), "{}", text(&pulled.stderr));
    let snapshot = text(&pulled.stdout).trim().to_owned();
    assert!(snapshot.ends_with(COMMIT), "{snapshot}");
    assert!(text(&run(&["ls"]).stdout).contains(NAME));
    let json: serde_json::Value = serde_json::from_slice(&run(&["list", "--json"]).stdout).unwrap();
    assert_eq!((&json[0]["name"], &json[0]["complete"]), (&NAME.into(), &true.into()));
    assert!(text(&run(&["show", NAME]).stdout).contains("tokenizer.json"));
    let folder = home.path().join("hub/models--acme--tiny");
    let folder = folder.to_str().unwrap();
    let hf = format!("hf:{NAME}");
    let page = format!("https://huggingface.co/{NAME}");
    for model in [NAME, "tiny", "TINY", &hf, &page, folder, &snapshot] {
        let output = run(&["inspect", model]);
        assert!(output.status.success(), "{model}: {}", text(&output.stderr));
    }
    let asked = run(&["rm", "tiny"]);
    assert_eq!(asked.status.code(), Some(2), "{}", text(&asked.stderr));
    let removed = run(&["rm", "tiny", "--yes"]);
    assert!(text(&removed.stdout).contains("freed"), "{}", text(&removed.stderr));
    assert!(!Path::new(folder).exists());
    assert_eq!(run(&["rm", NAME, "--yes"]).status.code(), Some(2));
}

#[test]
fn a_name_that_leads_nowhere_is_answered_by_what_to_type() {
    let (hub, home) = start();
    let folder = home.path().join("here");
    std::fs::create_dir_all(folder.join("only-gguf")).unwrap();
    std::fs::write(folder.join("only-gguf/M-Q4_K_M.gguf"), "GGUF").unwrap();
    std::fs::create_dir_all(folder.join("models--a--b/blobs")).unwrap();
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let cases = [
        ("acme/missing".to_owned(), "`flashmoe pull acme/missing`"),
        ("hf:acme/missing".to_owned(), "`flashmoe pull acme/missing`"),
        ("hf:missing".to_owned(), "write OWNER/NAME"),
        ("missing".to_owned(), "`flashmoe list`"),
        (path("missing"), "no such file or folder"),
        ("./missing".to_owned(), "no such file or folder"),
        ("src/missing".to_owned(), "no such file or folder"),
        (path("models--a--b"), "`flashmoe pull a/b`"),
        (path("only-gguf"), "M-Q4_K_M.gguf"),
    ];
    for (model, words) in &cases {
        let output = flashmoe(&hub, home.path(), &["inspect", model]);
        let told = text(&output.stderr);
        assert_eq!(told.lines().count(), 1, "{model}: {told}");
        assert!(told.contains(words), "{model}: {told}");
        assert!(!told.contains("os error"), "{told}");
    }
    assert!(hub.asked().is_empty(), "inspect asks no hub");
    let told = text(&flashmoe(&hub, home.path(), &["run", "acme/missing", "hi"]).stderr);
    assert!(told.contains("no such model (404)"), "{told}");
    let mut offline = command(&hub, home.path(), &["run", NAME, "hi"]);
    let told = text(&offline.env("HF_HUB_OFFLINE", "1").output().unwrap().stderr);
    assert!(told.contains("HF_HUB_OFFLINE forbids"), "{told}");
}

#[test]
fn a_plan_before_the_download_reads_headers_alone() {
    let (hub, home) = start();
    let output = flashmoe(&hub, home.path(), &["plan", NAME, "--device", "cpu"]);
    let (plan, told) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{told}");
    for words in ["is not downloaded", "to download", "dense trunk", "tok/s expected"] {
        assert!(plan.contains(words), "{plan}");
    }
    assert!(hub.sent() < 512 << 10, "{} bytes sent", hub.sent());
    assert!(!home.path().join("hub").exists(), "nothing is left in the cache");
    // What it says of sizes is what the model itself says.
    let json = |model: &str| -> serde_json::Value {
        let output = flashmoe(&hub, home.path(), &["plan", model, "--device", "cpu", "--json"]);
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let (remote, local) = (json(NAME), json(demo().to_str().unwrap()));
    assert_eq!(remote["parts"]["dense trunk"], local["parts"]["dense trunk"]);
    assert_eq!(remote["experts"], local["experts"]);
}

#[test]
fn a_plan_of_a_gguf_file_before_its_download_is_that_of_the_file() {
    use store::synthetic::gguf::{GgufFile, Q8_0};
    let bytes = GgufFile::tiny(Q8_0).to_bytes();
    let files =
        [("tiny-Q8_0.gguf".to_owned(), bytes.clone()), ("tiny-F16.gguf".to_owned(), vec![])];
    let (hub, home) = (TestHub::start(files.into()), tempfile::tempdir().unwrap());
    let local = home.path().join("tiny-Q8_0.gguf");
    std::fs::write(&local, bytes).unwrap();
    let plan = |model: &str| -> serde_json::Value {
        let output = flashmoe(&hub, home.path(), &["plan", model, "--device", "cpu", "--json"]);
        assert!(output.status.success(), "{model}: {}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let (remote, local) = (plan(&format!("{NAME}:Q8_0")), plan(local.to_str().unwrap()));
    assert!(!local["parts"]["dense trunk"].is_null() && !local["experts"].is_null(), "{local}");
    assert_eq!(remote["parts"]["dense trunk"], local["parts"]["dense trunk"]);
    assert_eq!(remote["experts"], local["experts"]);
    assert!(!home.path().join("hub").exists(), "nothing is left in the cache");
}

#[test]
fn a_plan_fetches_a_gguf_header_to_its_end_and_little_more() {
    use store::synthetic::gguf::{GgufFile, GgufValue, Q8_0};
    // Longer than the pieces in which it is fetched, and than a header that was once the limit.
    let mut file = GgufFile::tiny(Q8_0);
    file.set("general.description", GgufValue::Text("long ".repeat(3 << 20)));
    file.set("general.license", GgufValue::Text("longer ".repeat(2 << 20)));
    let header = file.header().len() as u64;
    assert!(header > 24 << 20);
    let files = [("tiny-Q8_0.gguf".to_owned(), file.to_bytes())];
    let (hub, home) = (TestHub::start(files.into()), tempfile::tempdir().unwrap());
    let output = flashmoe(&hub, home.path(), &["plan", &format!("{NAME}:Q8_0"), "--device", "cpu"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("tok/s expected"), "{}", text(&output.stdout));
    assert!((header..header + (5 << 20)).contains(&hub.sent()), "{} of {header}", hub.sent());
}
