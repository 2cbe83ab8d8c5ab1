//! Goal: who types at a terminal is asked, sees lines that end between words, and gets on. Method: the real binary with
//! the demo model at a pseudo-terminal, to which lines are typed.
#![cfg(target_os = "linux")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::terminal::{self, command, demo};

/// Somebody at a terminal: types a line when the prompt is there, and sees everything.
fn typed(columns: u16, home: &Path, arguments: &[&str], lines: &[&str]) -> String {
    let (controller, terminal) = terminal::terminal(columns);
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
    std::thread::spawn(move || {
        terminal::read_on(controller, |piece| drop(sender.send(piece.to_vec())))
    });
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
