//! The commands of a chat: their names, what /help says of them, and what a mistyped one was meant to be.

/// Commands with their arguments, and what they do.
pub(super) const COMMANDS: [(&str, &str); 14] = [
    ("/help", "this list"),
    ("/stats", "print hits, bytes read and speed after each answer, or stop doing so"),
    ("/regen", "answer the last message again"),
    (
        "/undo",
        "take back the last message and its answer, or the command that ended a conversation",
    ),
    ("/clear", "start over under the same system prompt"),
    ("/temp [T]", "how freely tokens are drawn, 0 is greedy; without a number, as at the start"),
    (
        "/think [on|off]",
        "ask for thinking or for none; without a word, as the model's template has it",
    ),
    ("/ctx", "how much of the context is used"),
    (
        "/full [WHAT]",
        "what happens when the context is full: stop, or drop-oldest to go on without the oldest turns; without a \
         word, show it",
    ),
    (
        "/system [TEXT]",
        "show the system prompt, or set it and start over; /system - starts over without one",
    ),
    ("/save FILE", "write the conversation to FILE as JSON"),
    ("/load FILE", "go on with a conversation that /save wrote"),
    ("/bye", "leave"),
    ("/quit", "leave (so does the end of input)"),
];

/// What is not a command.
pub(super) const HELP_MORE: &str = "A line ending in \\ continues in the next; \"\"\" begins and ends a message of \
     several lines. Tab completes commands. Ctrl-C stops the answer.";

/// Names with their slashes.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    COMMANDS.iter().map(|(usage, _)| usage.split(' ').next().unwrap_or(usage))
}

/// The commands that begin with `typed`, ready for their argument.
pub(super) fn completions(typed: &str) -> Vec<String> {
    let begins = |command: &&str| typed.starts_with('/') && command.starts_with(typed);
    names().filter(begins).map(|command| format!("{command} ")).collect()
}

/// The command that `name`, without its slash, was probably meant to be.
pub(super) fn meant(name: &str) -> Option<&'static str> {
    let bare = |command: &'static str| &command[1..];
    let begun = names().map(bare).find(|command| !name.is_empty() && command.starts_with(name));
    let alike = || {
        let distances =
            names().map(bare).map(|command| (strsim::osa_distance(name, command), command));
        let best = distances.min()?;
        (name.len() < 16 && best.0 <= (name.len() / 3).max(1)).then_some(best.1)
    };
    // Words of other programs.
    let other = || match name {
        "set" => Some("system"),
        "reset" | "new" | "forget" => Some("clear"),
        "retry" | "again" => Some("regen"),
        "context" => Some("ctx"),
        "exit" | "q" => Some("quit"),
        _ => None,
    };
    other().or(begun).or_else(alike)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tab_completes_commands_alone() {
        assert_eq!(completions("/re"), ["/regen "]);
        assert_eq!(completions("/t"), ["/temp ", "/think "]);
        assert!(completions("re").is_empty());
    }

    #[test]
    fn a_mistyped_command_is_recognised() {
        for (typed, expected) in [
            ("re", Some("regen")),
            ("rgen", Some("regen")),
            ("hlep", Some("help")),
            ("set", Some("system")),
            ("reset", Some("clear")),
            ("sy", Some("system")),
            ("frobnicate", None),
            ("", None),
        ] {
            assert_eq!(meant(typed), expected, "{typed}");
        }
    }
}
