//! Goal: a chat says what it does, keeps to the terminal's width, and goes on when its context is full. Method: the
//! real binary with the demo model, with pipes and with a pseudo-terminal.
#![cfg(unix)]

use std::io::Write;
use std::process::Stdio;

use crate::terminal::{FACTOR, command, demo, flashmoe, on_terminal_of, out, told};

/// What a chat says to lines that come through a pipe: answers, and what is told beside them.
fn chat(arguments: &[&str], lines: &[&str]) -> (String, String) {
    let (demo, home) = (demo(), tempfile::tempdir().unwrap());
    let arguments = [&["run", &demo, "--device=cpu", "--think=false"][..], arguments].concat();
    let mut child = command(home.path(), &arguments).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.join("\n").as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", told(&output));
    (out(&output), told(&output))
}

#[test]
fn the_end_of_the_context_is_said_and_gone_on_from() {
    let story = "Tell me a long story about a turtle, please, with many words.";
    let lines = [story; 8];
    let (_, stopped) = chat(&["-c", "200", "-n", "20"], &lines);
    let gauge = stopped.find("context: 1").unwrap_or_else(|| panic!("{stopped}"));
    let full = stopped.find("tokens, the context 200").unwrap_or_else(|| panic!("{stopped}"));
    assert!(gauge < full && stopped.contains(" of 200 tokens, "), "{stopped}");
    assert!(stopped.contains("the conversation has "), "{stopped}");
    let ways = "/clear starts over, /full drop-oldest goes on without the oldest turns";
    assert!(stopped.contains(ways), "{stopped}");
    // Without a limit of its own an answer goes to the end of the context, and that is said under it.
    let (_, cut) = chat(&["-c", "50"], &[story]);
    assert!(cut.contains(&format!("context full: 50 of 50 tokens: {ways}")), "{cut}");
    let (answers, dropped) = chat(&["-c", "200", "-n", "60", "--on-full", "drop-oldest"], &lines);
    assert!(dropped.contains("the context is full: the "), "{dropped}");
    assert!(!dropped.contains("the context 200:"), "{dropped}");
    assert!(answers.lines().filter(|line| !line.is_empty()).count() >= 8, "{answers}");
    // The same from within a chat, and /clear.
    let mut later = lines.to_vec();
    later.extend(["/full drop-oldest", story, "/clear", "/ctx", "/full", "/full away"]);
    let (_, later) = chat(&["-c", "200", "-n", "60"], &later);
    for words in [
        "oldest turns are left out",
        "conversation started over; /undo brings it back",
        "context: 0 of 200 tokens, 0 %",
        "when the context is full: drop-oldest",
        "/full: \"away\" is not one of stop, drop-oldest",
    ] {
        assert!(later.contains(words), "{words}: {later}");
    }
}

#[test]
fn a_cut_answer_says_what_cut_it() {
    let demo = demo();
    let run = |arguments: &[&str]| {
        let base = ["run", &demo, "Tell me a story", "--device=cpu", "--think=false"];
        flashmoe(&[&base[..], arguments].concat())
    };
    let cut = run(&["-n", "10"]);
    assert!(
        told(&cut).contains("the answer was cut after 10 tokens: see --max-tokens"),
        "{}",
        told(&cut)
    );
    let full = run(&["-c", "40"]);
    assert!(told(&full).contains("context full: 40 of 40 tokens"), "{}", told(&full));
    let whole = flashmoe(&["run", &demo, FACTOR, "--device=cpu", "--think=false"]);
    assert_eq!(told(&whole), "");
    let raw = run(&["--raw", "--on-full=drop-oldest"]);
    assert!(raw.status.code() == Some(2) && told(&raw).contains("needs turns"), "{}", told(&raw));
}

#[test]
fn commands_show_before_they_change_and_can_be_taken_back() {
    let (_, lines) = chat(
        &["--system", "Be brief.", "-n", "4"],
        &[
            "Hi.",
            "/system",
            "/system Be long.",
            "/system",
            "/undo",
            "/system",
            "/ctx",
            "/clear",
            "/undo",
            "/system -",
            "/system",
            "/re",
            "/set",
            "/frobnicate",
        ],
    );
    for words in [
        "Be brief.\n",
        "system prompt set, conversation started over; /undo brings it back\nBe long.\n",
        "the conversation before goes on\nBe brief.\ncontext: ",
        "conversation started over; /undo brings it back\nthe conversation before goes on\n",
        "there is no system prompt; /system TEXT sets one",
        "/re is not a command; did you mean /regen?",
        "/set is not a command; did you mean /system?",
        "/frobnicate is not a command; /help lists them",
    ] {
        assert!(lines.contains(words), "{words}: {lines}");
    }
    assert!(!lines.contains("context: 0 of"), "{lines}");
}

#[test]
fn a_file_is_not_overwritten_unasked() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kept.json");
    std::fs::write(&file, "kept").unwrap();
    let save = format!("/save {}", file.display());
    let (_, lines) = chat(&["-n", "4"], &["Hi.", &save]);
    assert!(lines.contains("is there already: name another file"), "{lines}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
}

#[test]
fn markdown_is_rendered_on_a_terminal_and_raw_elsewhere() {
    // The demo model writes code in fences.
    let demo = demo();
    let arguments = [
        "run",
        &demo,
        "Write a Python function that adds two numbers.",
        "--device=cpu",
        "--think=false",
    ];
    let raw = out(&flashmoe(&arguments));
    let home = tempfile::tempdir().unwrap();
    let run = |colourless: &str| {
        let mut command = command(home.path(), &arguments);
        command.env("NO_COLOR", colourless);
        on_terminal_of(80, command, false)
    };
    let (coloured, colourless) = (run(""), run("1"));
    assert!(raw.contains("```") && colourless.contains("```"), "{raw}");
    assert!(!colourless.contains('\x1b'), "{colourless:?}");
    assert!(coloured.contains("\x1b[36m") && !coloured.contains("```"), "{coloured:?}");
}

#[test]
fn an_empty_prompt_opens_a_chat() {
    let demo = demo();
    let home = tempfile::tempdir().unwrap();
    let output = command(home.path(), &["run", &demo, "", "--device=cpu"]).output().unwrap();
    assert!(output.status.success() && out(&output).is_empty(), "{}", told(&output));
    let output = flashmoe(&["run", &demo, "", "--device=cpu", "--json"]);
    assert!(told(&output).contains("--json needs a prompt"), "{}", told(&output));
}
