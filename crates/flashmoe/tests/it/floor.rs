//! The least memory: what a refusal names is granted, one MiB less is not, and the answer is the same.

use crate::long::part;
use crate::support;

use std::path::{Path, PathBuf};
use std::process::Output;

use support::flashmoe;

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo")
}

fn run(options: &[&str]) -> Output {
    let model = demo();
    let mut arguments = vec!["run", model.to_str().unwrap(), "Name a colour.", "--max-tokens", "8"];
    arguments.extend(["--device", "cpu"]);
    arguments.extend(options);
    flashmoe(&arguments)
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The number behind `word` in a message.
fn number(message: &str, word: &str) -> u64 {
    let rest = message.split_once(word).unwrap_or_else(|| panic!("no {word:?} in {message}")).1;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no number behind {word:?} in {message}"))
}

#[test]
fn the_least_memory_is_granted_and_less_is_not() {
    let usual = run(&[]);
    assert!(usual.status.success(), "{}", errors(&usual));
    for options in [
        &[][..],
        &["--context", "1024"],
        &["--context", "512", "--prefill-chunk", "64"],
        &["--storage", "page-cache"],
        &["--storage", "mmap"],
        &["--slots", "40"],
    ] {
        let with = |mebibytes: u64| {
            let memory = format!("{mebibytes}M");
            run(&[options, &["--memory", &memory]].concat())
        };
        let refused = with(1);
        assert_eq!(refused.status.code(), Some(4), "{options:?}: {}", errors(&refused));
        let least = number(&errors(&refused), "--memory ");
        let granted = with(least);
        assert!(granted.status.success(), "{options:?}, {least}: {}", errors(&granted));
        assert_eq!(granted.stdout, usual.stdout, "{options:?}: another answer at the floor");
        let refused = with(least - 1);
        assert_eq!(refused.status.code(), Some(4), "{options:?}: {}", errors(&refused));
        assert_eq!(number(&errors(&refused), "--memory "), least, "{options:?}");
        // Nothing between the floor and plenty is refused.
        for more in part(1..12, 6).map(|step| least + step * 3) {
            let granted = with(more);
            assert!(granted.status.success(), "{options:?}, {more}: {}", errors(&granted));
        }
    }
}

/// The model has records of two sizes: each needs the experts of a step.
#[test]
fn fewer_slots_than_a_step_needs_are_refused() {
    let refused = run(&["--slots", "3"]);
    assert_eq!(refused.status.code(), Some(2), "{}", errors(&refused));
    let needed = number(&errors(&refused), "which needs ");
    assert!(errors(&refused).contains("3 slots for experts do not hold one step"), "{refused:?}");
    let slots = |count: u64| run(&["--slots", &count.to_string()]);
    assert_eq!(slots(needed - 1).status.code(), Some(2));
    let floor = run(&["--slots", "floor"]);
    for output in [slots(needed), slots(needed + 1), floor] {
        assert!(output.status.success(), "{}", errors(&output));
        assert_eq!(output.stdout, run(&[]).stdout);
    }
}
