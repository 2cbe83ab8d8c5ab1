//! Goal: a chat says what it does, keeps to the terminal's width, and goes on when its context is full. Method: the
//! real binary with the demo model, with pipes and with somebody who types at a pseudo-terminal.
#![cfg(unix)]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::terminal::{
    FACTOR, command, demo, flashmoe, on_terminal_of, out, read_on, terminal, told,
};

/// Somebody at a terminal: types a line when the prompt is there, and sees everything.
#[cfg(target_os = "linux")]
fn typed(columns: u16, home: &Path, arguments: &[&str], lines: &[&str]) -> String {
    let (controller, terminal) = terminal(columns);
    let mut keys = controller.try_clone().unwrap();
    let end = || Stdio::from(terminal.try_clone().unwrap());
    let program = command(home, arguments);
    // The editor of lines opens the controlling terminal.
    let mut child = Command::new("setsid");
    child.args(["--ctty", "--wait"]).arg(program.get_program()).args(program.get_args());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => child.env(name, value),
            None => child.env_remove(name),
        };
    }
    let mut running = child.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
    drop((child, terminal));
    let (sender, seen) = std::sync::mpsc::channel();
    std::thread::spawn(move || read_on(controller, |piece| drop(sender.send(piece.to_vec()))));
    let mut text = String::new();
    let wait_for_prompt = |number: usize, text: &mut String| {
        // The editor turns pastes on with each prompt.
        while text.matches("\x1b[?2004h").count() < number {
            let piece = seen.recv_timeout(std::time::Duration::from_secs(200));
            let piece = piece.unwrap_or_else(|_| panic!("before line {number}: {text}"));
            text.push_str(&String::from_utf8_lossy(&piece));
        }
    };
    for (line, number) in lines.iter().zip(1..) {
        wait_for_prompt(number, &mut text);
        keys.write_all(format!("{line}\r").as_bytes()).unwrap();
    }
    wait_for_prompt(lines.len() + 1, &mut text);
    keys.write_all(b"\x04").unwrap();
    for piece in seen {
        text.push_str(&String::from_utf8_lossy(&piece));
    }
    running.wait().unwrap();
    text
}

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
    assert!(lines.contains("File exists"), "{lines}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
}

#[cfg(target_os = "linux")]
#[test]
fn on_a_terminal_it_is_asked_and_lines_end_between_words() {
    let (demo, home) = (demo(), tempfile::tempdir().unwrap());
    let file = home.path().join("kept.json");
    std::fs::write(&file, "kept").unwrap();
    let save = format!("/save {}", file.display());
    let arguments = ["run", &demo, "--device=cpu", "--think=false", "-n", "60"];
    let story = "Tell me a story";
    let text = typed(40, home.path(), &arguments, &[story, "/help", &save, "n", &save, "y"]);
    assert!(text.contains("Overwrite it?") && text.contains("not saved\r\n"), "{text}");
    assert!(text.contains("saved to ") && std::fs::read_to_string(&file).unwrap().contains(story));
    let plain = without_escapes(&text);
    for line in plain.split("\r\n") {
        // Paths have no place to end a line, and bars are not lines.
        let exempt = line.contains(['/', '░', '█']);
        assert!(exempt || line.chars().count() <= 40, "{line:?} of {plain}");
    }
    // Who comes to the demo model knows that it is one.
    assert!(
        plain.replace("\r\n", " ").contains("A demo of 44 million weights answers here"),
        "{plain}"
    );
    // /help goes on below its second column, and an answer is followed by an empty line.
    assert!(plain.contains("\r\n                 "), "{plain}");
    assert!(plain.contains("--max-tokens\r\n\r\n"), "{plain}");
}

/// Text as it is seen: without sequences of a terminal.
fn without_escapes(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text.chars();
    while let Some(character) = rest.next() {
        if character == '\x1b' {
            let _sequence = rest.by_ref().find(|it| it.is_ascii_alphabetic());
        } else {
            out.push(character);
        }
    }
    out
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
