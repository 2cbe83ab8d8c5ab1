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
    // Models of other programs lie there.
    command.env("HOME", home).env_remove("OLLAMA_MODELS");
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
    for (arguments, words) in [
        (&["pull", NAME][..], "nothing was downloaded: acme/tiny is a \"some_dense_net"),
        (&["run", NAME, "hi"], "nothing was downloaded: acme/tiny is a \"some_dense_net"),
        (&["plan", NAME], "flashmoe: acme/tiny is a \"some_dense_net"),
    ] {
        let output = flashmoe(&hub, home.path(), arguments);
        let told = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(3), ""), "{told}");
        assert!(told.contains(words) && told.contains("Mixture-of-Experts"), "{told}");
        // No place that means nothing to anybody.
        assert!(!told.contains(".scratch"), "{told}");
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
    let json = |arguments: &[&str]| -> serde_json::Value {
        serde_json::from_slice(&run(arguments).stdout).unwrap()
    };
    let dry = json(&["pull", NAME, "--dry-run", "--json"]);
    assert!(dry["bytes_missing"].as_u64().unwrap() > 0 && hub.sent() == 0, "{dry}");
    assert_eq!((&dry["bytes_missing"], &dry["model"]), (&dry["bytes_total"], &NAME.into()));
    assert!(dry["files"][0]["path"].is_string() && dry["files"][0]["bytes"].is_u64(), "{dry}");
    let pulled = run(&["pull", NAME]);
    assert!(pulled.status.success(), "{}", text(&pulled.stderr));
    let snapshot = text(&pulled.stdout).trim().to_owned();
    assert!(snapshot.ends_with(COMMIT), "{snapshot}");
    let again = json(&["pull", NAME, "--json"]);
    assert_eq!((&again["path"], &again["bytes_downloaded"]), (&snapshot.clone().into(), &0.into()));
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

/// Stopped when half of it is there: it is listed, shown and removed as what it is, and gone on with.
#[test]
fn a_stopped_download_is_seen_and_removed() {
    let (hub, home) = start();
    let run = |arguments: &[&str]| flashmoe(&hub, home.path(), arguments);
    let stop = || {
        hub.state.pace.store(4, Ordering::SeqCst);
        let before = hub.sent();
        let mut child = command(&hub, home.path(), &["pull", NAME]).spawn().unwrap();
        let started = Instant::now();
        while hub.sent() - before < hub.bytes() / 2 && started.elapsed() < Duration::from_secs(120)
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        // While it runs it is seen too, and not removed under its feet.
        let told = run(&["rm", NAME, "--yes"]);
        assert_eq!(told.status.code(), Some(2), "{}", text(&told.stdout));
        assert!(text(&told.stderr).contains("is being downloaded"), "{}", text(&told.stderr));
        child.kill().unwrap();
        child.wait().unwrap();
        hub.state.pace.store(0, Ordering::SeqCst);
    };
    stop();
    let listed = text(&run(&["list"]).stdout);
    assert!(listed.contains(NAME) && listed.contains("partial"), "{listed}");
    let size = listed.lines().find(|line| line.contains(NAME)).unwrap();
    assert!(size.contains(" of ") && size.contains("MiB"), "{size}");
    let json: serde_json::Value = serde_json::from_slice(&run(&["list", "--json"]).stdout).unwrap();
    let (there, total) = (json[0]["bytes"].as_u64(), json[0]["bytes_total"].as_u64());
    assert!(json[0]["complete"] == false && there < total && there > Some(0), "{json}");
    let shown = text(&run(&["show", "tiny"]).stdout);
    assert!(shown.contains("partial") && shown.contains("model.safetensors"), "{shown}");
    assert!(shown.contains(&format!("flashmoe pull {NAME}")), "{shown}");
    let told = text(&run(&["inspect", NAME]).stderr);
    assert!(told.contains("is not complete"), "{told}");
    let removed = run(&["rm", "tiny", "--yes"]);
    assert!(text(&removed.stdout).contains("freed"), "{}", text(&removed.stderr));
    assert!(!home.path().join("hub/models--acme--tiny").exists());
    assert!(text(&run(&["list"]).stdout).is_empty());
    // What is gone on with is whole at its end, and no part of it is left over.
    stop();
    assert!(run(&["pull", NAME]).status.success());
    let json: serde_json::Value = serde_json::from_slice(&run(&["list", "--json"]).stdout).unwrap();
    assert_eq!((json.as_array().unwrap().len(), &json[0]["complete"]), (1, &true.into()));
}

#[test]
fn a_quantisation_that_is_not_whole_is_removed_beside_one_that_is() {
    use store::synthetic::gguf::{GgufFile, GgufValue, Q8_0};
    let files = ["M-Q8_0.gguf", "sub/M-Q4_K_M.gguf"].map(|name| {
        let mut file = GgufFile::tiny(Q8_0);
        // Other bytes, so that they are other blobs.
        file.set("general.name", GgufValue::Text(name.to_owned()));
        (name.to_owned(), file.to_bytes())
    });
    let (hub, home) = (TestHub::start(files.into()), tempfile::tempdir().unwrap());
    let run = |arguments: &[&str]| flashmoe(&hub, home.path(), arguments);
    let q8 = format!("{NAME}:Q8_0");
    assert!(run(&["pull", &q8]).status.success());
    hub.state.pace.store(200, Ordering::SeqCst);
    let mut child = command(&hub, home.path(), &["pull", "acme/tiny:Q4_K_M"]).spawn().unwrap();
    let record = home.path().join("hub/.locks/models--acme--tiny/pull.Q4_K_M.json");
    while !record.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let listed = text(&run(&["list"]).stdout);
    assert!(listed.contains("acme/tiny:Q4_K_M") && listed.contains(&q8), "{listed}");
    assert_eq!(listed.matches("partial").count(), 1, "{listed}");
    // The short name of both, as `run` has it.
    assert!(text(&run(&["show", "tiny"]).stdout).contains(&q8));
    assert!(run(&["rm", "tiny:q4_k_m", "--yes"]).status.success());
    let listed = text(&run(&["list"]).stdout);
    assert!(!listed.contains("Q4_K_M") && listed.contains(&q8), "{listed}");
    assert!(run(&["rm", "TINY", "--yes"]).status.success());
    assert!(text(&run(&["list"]).stdout).is_empty());
}

/// A GGUF file is found where other programs put it, by what `list` prints, and where the user says.
#[test]
fn models_of_other_programs_and_of_the_user_have_a_home() {
    use store::synthetic::gguf::{GgufFile, GgufValue, Q8_0};
    let (hub, home) = (TestHub::start(BTreeMap::new()), tempfile::tempdir().unwrap());
    let good = GgufFile::tiny(Q8_0).to_bytes();
    let mut dense = GgufFile::tiny(Q8_0);
    dense.set("general.architecture", GgufValue::Text("llama".to_owned()));
    let write = |path: &str, bytes: &[u8]| {
        let path = home.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    };
    write(".lmstudio/models/acme/Studio-GGUF/Studio-Q8_0.gguf", &good);
    write(".lmstudio/models/acme/Dense-GGUF/Dense-Q8_0.gguf", &dense.to_bytes());
    write("disk2/Mine-Q8_0.gguf", &good);
    write("disk2/deep/Linked/note.txt", b"");
    let digest = "ab".repeat(32);
    write(&format!(".ollama/models/blobs/sha256-{digest}"), &good);
    let layer = serde_json::json!({"mediaType": "application/vnd.ollama.image.model",
        "digest": format!("sha256:{digest}"), "size": good.len()});
    let manifest = serde_json::json!({"layers": [{"mediaType": "x"}, layer]}).to_string();
    write(".ollama/models/manifests/registry.ollama.ai/library/tiny/8b", manifest.as_bytes());
    let disk = home.path().join("disk2");
    let disk = disk.to_str().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = command(&hub, home.path(), arguments);
        command.env("FLASHMOE_MODELS_DIR", disk).current_dir(home.path()).output().unwrap()
    };
    let listed = run(&["list"]);
    let (lines, told) = (text(&listed.stdout), text(&listed.stderr));
    assert!(lines.starts_with("NAME "), "{lines}");
    for words in ["Studio-Q8_0.gguf", "LM Studio", "tiny:8b", "ollama", "Mine-Q8_0.gguf"] {
        assert!(lines.contains(words), "{words}: {lines}");
    }
    assert!(!lines.contains("Dense") && told.contains("1 more in folders"), "{lines} {told}");
    for model in ["Studio-Q8_0", "tiny:8b", "mine-q8_0", &format!("{disk}/Mine-Q8_0.gguf")] {
        for verb in ["inspect", "show"] {
            let output = run(&[verb, model]);
            assert!(output.status.success(), "{verb} {model}: {}", text(&output.stderr));
        }
    }
    let shown = text(&run(&["show", "disk2/Mine-Q8_0.gguf"]).stdout);
    assert!(shown.contains("KiB") && shown.contains("flashmoe inspect"), "{shown}");
    let removed = run(&["rm", "disk2/Mine-Q8_0.gguf", "--yes"]);
    assert_eq!(removed.status.code(), Some(2));
    assert!(text(&removed.stderr).contains("of yours"), "{}", text(&removed.stderr));
    // Alone, it offers what is in the working folder, in columns.
    let alone = text(&run(&[]).stdout);
    assert!(alone.contains("disk2/Mine-Q8_0.gguf") && !alone.contains("No models"), "{alone}");
    let commands: Vec<&str> =
        alone.lines().filter(|line| line.starts_with("flashmoe ")).skip(1).collect();
    let column = |words: &str| commands.iter().find_map(|line| line.find(words)).unwrap();
    assert_eq!(commands.len(), 5, "{alone}");
    assert_eq!(column("download a model"), column("all commands"), "{alone}");
    assert_eq!(column("how it would run"), column("a page and the APIs"), "{alone}");
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
    assert_eq!(remote["parts"]["dense_trunk"], local["parts"]["dense_trunk"]);
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
    assert!(!local["parts"]["dense_trunk"].is_null() && !local["experts"].is_null(), "{local}");
    assert_eq!(remote["parts"]["dense_trunk"], local["parts"]["dense_trunk"]);
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
