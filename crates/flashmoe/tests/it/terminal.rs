//! Goal: what a newcomer meets in a terminal and in a pipe is what other programs have taught. Method: the real binary
//! with the demo model, with pipes and with a pseudo-terminal.
#![cfg(unix)]

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

pub(crate) fn demo() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
    path.canonicalize().unwrap().to_str().unwrap().to_owned()
}

pub(crate) fn command(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flashmoe"));
    command.args(arguments).env("HOME", home).env("XDG_CONFIG_HOME", home.join("config"));
    for name in ["HF_HOME", "HF_HUB_CACHE", "XDG_STATE_HOME", "NO_COLOR", "FLASHMOE_CONFIG"] {
        command.env_remove(name);
    }
    command.env("TERM", "xterm").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(crate) fn flashmoe(arguments: &[&str]) -> Output {
    let home = tempfile::tempdir().unwrap();
    command(home.path(), arguments).output().unwrap()
}

pub(crate) fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn told(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Both ends of a terminal, the program's second. It says its width where it has one.
pub(crate) fn terminal(columns: u16) -> (File, File) {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&controller).unwrap();
    unlockpt(&controller).unwrap();
    let name = ptsname(&controller, Vec::new()).unwrap();
    let terminal =
        rustix::fs::open(name.as_c_str(), OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
    let rows = if columns > 0 { 24 } else { 0 };
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&terminal, size).unwrap();
    (File::from(controller), File::from(terminal))
}

/// What a command writes when standard output is a terminal.
fn on_terminal(command: Command) -> String {
    on_terminal_of(0, command, false)
}

/// And when standard input is one as well, on which nothing is typed.
fn on_terminal_with_input(command: Command) -> String {
    on_terminal_of(0, command, true)
}

pub(crate) fn on_terminal_of(columns: u16, mut command: Command, input: bool) -> String {
    let (controller, terminal) = terminal(columns);
    if input {
        command.stdin(Stdio::from(terminal.try_clone().unwrap()));
    }
    let mut child = command.stdout(Stdio::from(terminal)).spawn().unwrap();
    // The command keeps its end of the terminal open in this process.
    drop(command);
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        read_on(controller, |piece| text.extend_from_slice(piece));
        String::from_utf8_lossy(&text).into_owned()
    });
    child.wait().unwrap();
    reader.join().unwrap()
}

/// Reads what a terminal shows until its writer has gone, which it says by an error.
pub(crate) fn read_on(mut controller: File, mut take: impl FnMut(&[u8])) {
    let mut piece = [0; 4096];
    while let Ok(count) = controller.read(&mut piece)
        && count > 0
    {
        take(&piece[..count]);
    }
}

pub(crate) const FACTOR: &str = "What is 255 factored?";

#[test]
fn thinking_is_apart_from_the_answer() {
    let demo = demo();
    let run = |more: &[&str]| {
        let arguments = [&["run", &demo, FACTOR, "--device=cpu", "--think"][..], more].concat();
        flashmoe(&arguments)
    };
    let plain = out(&run(&[]));
    assert!(plain.contains("3 × 5 × 17") && !plain.contains("think>"), "{plain}");
    let both = out(&run(&["--show-thinking"]));
    assert!(both.starts_with("<think>\n") && both.ends_with(&plain), "{both}");
    assert_eq!(both.matches("</think>\n\n").count(), 1, "{both}");
    let home = tempfile::tempdir().unwrap();
    let arguments = ["run", &demo, FACTOR, "--device=cpu", "--think"];
    let shown = on_terminal(command(home.path(), &arguments));
    assert!(shown.starts_with("\x1b[2mThinking\r\n"), "{shown:?}");
    assert!(shown.contains("\x1b[0m\r\n\r\n255 = "), "{shown:?}");
    let mut colourless = command(home.path(), &arguments);
    colourless.env("NO_COLOR", "1");
    let shown = on_terminal(colourless);
    assert!(shown.starts_with("Thinking:\r\n") && shown.contains("\r\nAnswer:\r\n"), "{shown:?}");
    assert!(!shown.contains('\x1b'), "{shown:?}");
}

#[test]
fn a_pipe_is_added_to_the_prompt() {
    let (demo, home) = (demo(), tempfile::tempdir().unwrap());
    let json = |arguments: &[&str], input: &str| -> serde_json::Value {
        let mut child = command(home.path(), arguments).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", told(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let base = ["run", &demo, "--device=cpu", "--json", "-n", "8"];
    let tokens = |prompt: &str, input: &str| {
        json(&[&base[..], &[prompt]].concat(), input)["prompt_tokens"].as_u64().unwrap()
    };
    let (alone, both) = (tokens("Hello", ""), tokens("Hello", "some file\n"));
    assert!(both > alone, "{both} {alone}");
    assert_eq!(tokens("-", "Hello\n\nsome file"), both);
    let answer = json(&[&base[..], &["Hello"]].concat(), "");
    assert!(answer["answer_tokens"].as_u64().unwrap() <= 8 && answer["finish"].is_string());
    let seed = u64::MAX.to_string();
    let seeded = json(&[&base[..], &["--temp", "1", "--seed", &seed, "Hello"]].concat(), "");
    assert_eq!(seeded["seed"], u64::MAX, "what was used can be given again");
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_loaded() {
    let demo = demo();
    let long = "word ".repeat(20_000);
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(Path::new(&demo).join(file), folder.path().join(file)).unwrap();
    }
    let mute = folder.path().to_str().unwrap();
    for (model, arguments, words) in [
        (demo.as_str(), &["Hi", "--top-p", "7"][..], "top_p"),
        (&demo, &["Hi", "--temp", "-3"], "temperature"),
        (&demo, &[&long, "-c", "2048"], "the context 2048: shorten it or raise --context"),
        (mute, &["Hi"], "no tokenizer.json"),
        (&demo, &["--json"], "--json needs a prompt"),
        (&demo, &["Hi", "-n", "0"], "a token at least"),
    ] {
        let arguments = [&["run", model, "--device=cpu", "-v"], arguments].concat();
        let output = flashmoe(&arguments);
        let lines = told(&output);
        assert!(lines.contains(words), "{lines}");
        assert!(!lines.contains("loading trunk") && out(&output).is_empty(), "{lines}");
        assert_ne!(output.status.code(), Some(0));
    }
}

#[test]
fn options_are_those_of_other_programs() {
    let demo = demo();
    let output = flashmoe(&["plan", &demo, "--memory", "12"]);
    assert!(told(&output).contains("did you mean 12G?"), "{}", told(&output));
    let short =
        ["run", &demo, FACTOR, "-n", "64", "-c", "2048", "-t", "1", "--temp", "0", "-s", "1"];
    let output = flashmoe(&[&short[..], &["--think=false", "--device=cpu", "-q"]].concat());
    assert!(output.status.success() && told(&output).is_empty(), "{}", told(&output));
    // A prompt after --think is a prompt.
    let output = flashmoe(&["run", &demo, "--think", "Hello", "-n", "4", "--device=cpu"]);
    assert!(output.status.success(), "{}", told(&output));
    // -1 is what the context leaves, and another seed each time; the command may be left out.
    let free = ["--think=false", "--device=cpu", "-q", "-n", "-1", "--seed", "-1", "--temp", "0"];
    let output = flashmoe(&[&[demo.as_str(), FACTOR], &free[..]].concat());
    assert!(out(&output).contains("3 × 5 × 17"), "{}", told(&output));
    for (arguments, words) in [
        (&["run", &demo, "hi", "-ngl", "99"][..], "-ngl: nothing to set: `--vram 12G`"),
        (&["serve", &demo, "--parallel", "2"], "--parallel: `flashmoe serve MODEL --sequences"),
        (&["run", &demo, "hi", "--prompt", "x"], "--prompt: the prompt follows the model"),
        (&["run", &demo, "hi", "--no-think"], "--no-think: `--think=false`"),
        (&["chat"], "chat: `flashmoe run MODEL` without a prompt is a chat"),
    ] {
        let output = flashmoe(arguments);
        let lines = told(&output);
        assert_eq!((output.status.code(), lines.lines().count()), (Some(2), 1), "{lines}");
        assert!(lines.contains(words), "{lines}");
    }
    let output = flashmoe(&["run", &demo, "hi", "--device", "vulkan"]);
    assert!(told(&output).contains("\"vulkan\" is called gpu here"), "{}", told(&output));
    let help = out(&flashmoe(&["run", "-h"]));
    let place = |text: &str| help.find(text).unwrap_or_else(|| panic!("{text}: {help}"));
    assert!(place("--memory") < place("--max-tokens"));
    assert!(
        place("\nOptions:") < place("--max-tokens")
            && place("--max-tokens") < place("\nMemory and disk:")
    );
    assert!(place("--storage") > place("\nMemory and disk:"));
    assert!(help.contains("(default: what the context leaves)"));
}

#[test]
fn alone_it_says_what_it_is_and_what_to_type() {
    let output = flashmoe(&[]);
    let text = out(&output);
    assert!(output.status.success());
    for words in
        ["larger than memory", "No models on this disk yet", "flashmoe pull", "flashmoe serve"]
    {
        assert!(text.contains(words), "{text}");
    }
    assert!(out(&flashmoe(&["-V"])).contains("(development)"));
    assert!(out(&flashmoe(&["--version"])).contains("CUDA"));
}

#[test]
fn a_reader_that_goes_away_is_no_failure_to_tell_of() {
    let demo = demo();
    for arguments in
        [&["inspect", demo.as_str()][..], &["man"], &["run", &demo, "Hello", "--device=cpu"]]
    {
        let home = tempfile::tempdir().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command(home.path(), arguments).stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(141), "{arguments:?}");
        assert_eq!(told(&output), "", "{arguments:?}");
    }
}

#[test]
fn the_manual_is_whole() {
    let page = out(&flashmoe(&["man"]));
    for words in
        ["FLASHMOE RUN", "EXIT STATUS", "FILES", "ENVIRONMENT", "\\-\\-memory", "FLASHMOE_HISTORY"]
    {
        assert!(page.contains(words), "{words}");
    }
    let folder = tempfile::tempdir().unwrap();
    let output = flashmoe(&["man", "--all", folder.path().to_str().unwrap()]);
    assert!(output.status.success(), "{}", told(&output));
    for name in ["flashmoe.1", "flashmoe-run.1", "flashmoe-pull.1"] {
        let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(text.contains("EXIT STATUS"), "{name}");
    }
}

/// A folder of programs that say how they were called, and what they got.
fn programs(names: &[&str]) -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    for name in names {
        let path = folder.path().join(name);
        let script =
            "#!/bin/sh\necho \"${0##*/} called with: $*, LESS=$LESS\"\n/usr/bin/head -c 300\n";
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    folder
}

#[test]
fn long_texts_go_through_the_pager_on_a_terminal_and_nowhere_else() {
    let home = tempfile::tempdir().unwrap();
    let shown = |arguments: &[&str], programs: &Path, pager: Option<&str>| {
        let mut command = command(home.path(), arguments);
        command.env("PATH", programs).env_remove("LESS").env_remove("PAGER");
        command.envs(pager.map(|pager| ("PAGER", pager)));
        on_terminal_with_input(command)
    };
    let both = programs(&["man", "less", "most"]);
    let manual = shown(&["man"], both.path(), None);
    assert!(manual.starts_with("man called with: -l -"), "{manual}");
    let help = shown(&["help", "run"], both.path(), None);
    assert!(help.starts_with("less called with: , LESS=FRX"), "{help}");
    assert!(help.contains("Answer one prompt"), "{help}");
    let help = shown(&["help", "run"], both.path(), Some("most -x"));
    assert!(help.starts_with("most called with: -x"), "{help}");
    // Where there is no such program, as it is.
    let none = programs(&[]);
    assert!(shown(&["help", "run"], none.path(), None).contains("--max-tokens"));
    assert!(shown(&["man"], none.path(), None).contains("EXIT STATUS"));
    // In a pipe, too.
    let mut piped = command(home.path(), &["help", "run"]);
    let piped = out(&piped.env("PATH", both.path()).output().unwrap());
    assert!(!piped.contains("called with") && piped.contains("--max-tokens"), "{piped}");
}

/// A home with this configuration file.
fn configured(text: &str) -> (tempfile::TempDir, PathBuf) {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("config/flashmoe/config.toml");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, text).unwrap();
    (home, file)
}

#[test]
fn settings_come_from_the_command_line_then_the_environment_then_the_file() {
    let demo = demo();
    let (home, file) =
        configured("context = 2048\ndevice = \"cpu\"\n[run]\nmax-tokens = 3\nstats = true\n");
    let show = |name: &str, value: &str| {
        let mut command = command(home.path(), &["config", "show"]);
        out(&command.env(name, value).output().unwrap())
    };
    let text = show("FLASHMOE_CONTEXT", "4096");
    let row = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    assert!(
        row("context").contains("4096") && row("context").contains("FLASHMOE_CONTEXT"),
        "{text}"
    );
    assert!(row("max-tokens").contains('3'), "{text}");
    assert!(row("max-tokens").ends_with("config.toml [run]"), "{text}");
    assert!(row("device").ends_with("config.toml"), "{text}");
    let json = |arguments: &[&str]| -> serde_json::Value {
        let arguments = [&["run", &demo, "Hello", "--json"], arguments].concat();
        let output = command(home.path(), &arguments).output().unwrap();
        assert!(output.status.success(), "{}", told(&output));
        // `stats` is on in the file.
        assert!(told(&output).contains("peak memory"), "{}", told(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    assert_eq!(json(&[])["answer_tokens"], 3);
    assert_eq!(json(&["-n", "2"])["answer_tokens"], 2);
    for (text, words) in [
        ("memroy = \"12G\"", "did you mean memory?"),
        ("[rnu]\nstats = true", "did you mean run?"),
        ("[run]\nport = 1", "no setting of run \"port\""),
        ("memory = \"12\"", "did you mean 12G?"),
        ("context = [", "config.toml"),
    ] {
        std::fs::write(&file, text).unwrap();
        let output = command(home.path(), &["plan", &demo]).output().unwrap();
        let lines = told(&output);
        assert_eq!(output.status.code(), Some(2), "{lines}");
        assert!(lines.contains(words) && lines.lines().count() == 1, "{text}: {lines}");
    }
}

#[test]
fn a_configuration_begins_with_a_file_that_says_what_can_be_set() {
    let home = tempfile::tempdir().unwrap();
    let config = |arguments: &[&str]| command(home.path(), arguments).output().unwrap();
    let empty = config(&["config", "show"]);
    assert!(out(&empty).is_empty() && told(&empty).contains("`flashmoe config init` makes one"));
    let made = config(&["config", "init"]);
    let path = out(&made).trim().to_owned();
    assert!(path.ends_with("config/flashmoe/config.toml"), "{path} {}", told(&made));
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("#memory = ") && text.contains("[serve]"), "{text}");
    // It sets nothing, and is not written over.
    assert!(told(&config(&["config", "show"])).contains("sets nothing"));
    std::fs::write(&path, text.replace("#memory", "memory")).unwrap();
    let again = config(&["config", "init"]);
    assert!(told(&again).contains("is there already"), "{}", told(&again));
    let shown = out(&config(&["config", "show", "serve"]));
    assert!(shown.starts_with("memory ") && shown.contains("12G"), "{shown}");
}

#[test]
fn figures_come_as_json() {
    let demo = demo();
    let inspect: serde_json::Value =
        serde_json::from_slice(&flashmoe(&["inspect", &demo, "--json"]).stdout).unwrap();
    assert_eq!(inspect["experts"], 64);
    assert!(inspect["layers"][0]["record_bytes"].as_u64().unwrap() > 0);
    let verify: serde_json::Value =
        serde_json::from_slice(&flashmoe(&["verify", &demo, "--json"]).stdout).unwrap();
    assert!(verify["damaged"].as_array().unwrap().is_empty());
}

#[test]
fn a_plan_says_what_to_expect_and_counts_what_is_read() {
    let demo = demo();
    let text = out(&flashmoe(&["plan", &demo, "--device", "cpu"]));
    for words in ["tok/s expected", "at most", "a prompt of 20,000 tokens takes", "prefill: "] {
        assert!(text.contains(words), "{text}");
    }
    // First of all what it is, and whether it runs.
    let mut lines = text.lines();
    assert!(lines.next().unwrap().starts_with("demo: Qwen3.5-MoE, experts in "), "{text}");
    let runs = lines.next().unwrap();
    assert!(runs.starts_with("runs here: yes, on the processor, about "), "{text}");
    assert!(runs.contains(" tok/s; 20,000 tokens of prompt in about "), "{text}");
    let least = text.lines().find(|line| line.starts_with("least budget")).unwrap();
    let typed = least.split_once("--memory ").unwrap().1.split(' ').next().unwrap();
    assert!(typed.ends_with('M') && typed.len() < 7, "{least}");
    let output = flashmoe(&["plan", &demo, "--device", "cpu", "--memory", typed]);
    assert!(output.status.success(), "{}", told(&output));
    // More memory than there is is said, and planned with.
    let output = flashmoe(&["plan", &demo, "--device", "cpu", "--memory", "900T"]);
    assert!(output.status.success(), "{}", told(&output));
    assert!(told(&output).contains("--memory 900 TiB is more than the "), "{}", told(&output));
    assert!(out(&output).contains(", less than --memory"), "{}", out(&output));
    // Every expert has a slot: more memory gains nothing.
    assert!(!text.contains("more memory"), "{text}");
    let output = flashmoe(&["plan", &demo, "--device", "cpu", "--json"]);
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let trunk = plan["parts"]["dense_trunk"].as_u64().unwrap();
    let read = plan["trunk_bytes_per_token"].as_u64().unwrap();
    assert!(0 < read && read <= trunk, "{read} of {trunk}");
    let [low, high] = [0, 1].map(|at| plan["expected"]["decode_tok_per_s"][at].as_f64().unwrap());
    assert!(
        0.0 < low
            && low <= high
            && high <= plan["expected"]["decode_bound_tok_per_s"].as_f64().unwrap()
    );
}

#[test]
fn a_plan_can_be_made_for_a_machine_that_is_not_here() {
    let demo = demo();
    let plan = |machine: &str, more: &[&str]| {
        flashmoe(&[&["plan", &demo, "--machine", machine], more].concat())
    };
    let card = "ram=64G,disk=7,memory=936,vram=24G,bus=25";
    let text = out(&plan(card, &[]));
    assert!(text.contains("would run there: yes, on a GPU of 24.00 GiB, about "), "{text}");
    let speeds = "disk 7.00 GB/s, bus 25.0 GB/s, GPU memory 936 GB/s (assumed by --machine)";
    assert!(text.contains(speeds), "{text}");
    assert!(text.contains("of the memory that --machine leaves"), "{text}");
    let text = out(&plan("ram=32G,disk=3.5,memory=60,compute=800", &[]));
    assert!(text.contains("would run there: yes, on the processor, about "), "{text}");
    // With a GPU the processor may still be asked about, and more than the card has is refused.
    let text = out(&plan(card, &["--device", "cpu"]));
    assert!(text.contains("on the processor, about "), "{text}");
    let refused = plan(card, &["--vram", "30G"]);
    assert_eq!(refused.status.code(), Some(4));
    assert!(told(&refused).contains("--machine has 24.00 GiB"), "{}", told(&refused));
    let refused = plan("ram=32G,disk=3.5", &[]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(told(&refused).contains("memory= is missing"), "{}", told(&refused));
}
