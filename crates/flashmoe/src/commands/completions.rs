//! `flashmoe completions`: what clap generates, and the names of models where a command has one.
//!
//! The names are asked of `flashmoe list --names` when a word is completed, in bash, zsh and fish.

use std::io::Write;

use anyhow::Result;
use clap::{Arg, CommandFactory};
use clap_complete::Shell;

use crate::arguments::Arguments;
use crate::failure::Failure;

/// How the shells get the names.
const NAMES: &str = "flashmoe --quiet list --names 2>/dev/null";

/// Commands whose model is one of the hub, to be brought.
const OTHERS: [&str; 1] = ["pull"];

pub(crate) fn completions(shell: Shell, out: &mut dyn Write) -> Result<()> {
    // Into memory first: the generator panics where it cannot write.
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "flashmoe", &mut text);
    let text = String::from_utf8_lossy(&text);
    let text = match shell {
        Shell::Bash => format!("{text}{}", bash()),
        Shell::Zsh => zsh(&text),
        Shell::Fish => format!("{text}{}", fish()),
        _ => text.into_owned(),
    };
    out.write_all(text.as_bytes()).map_err(|error| Failure::io(error).into())
}

/// The commands whose first word is a model on this disk.
fn commands() -> Vec<String> {
    let mut program = Arguments::command();
    program.build();
    let is_model = |argument: &Arg| {
        let names = argument.get_value_names().unwrap_or_default();
        names.iter().any(|name| name.as_str() == "MODEL")
    };
    let takes = |command: &&clap::Command| {
        !OTHERS.contains(&command.get_name())
            && command.get_positionals().next().is_some_and(is_model)
    };
    program.get_subcommands().filter(takes).map(|it| it.get_name().to_owned()).collect()
}

fn bash() -> String {
    format!(
        r#"
_flashmoe_models() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}"
    case "${{COMP_WORDS[1]}} $COMP_CWORD $word" in
        *" 2 -"*) _flashmoe "$@" ;;
        {commands})
            COMPREPLY=()
            # Read as lines: `compgen -W` would expand what stands in the names of strangers' files.
            while IFS= read -r name; do
                [[ "$name" == "$word"* ]] && COMPREPLY+=("$name")
            done < <({NAMES}; compgen -f -- "$word")
            compopt -o filenames 2>/dev/null
            ;;
        *) _flashmoe "$@" ;;
    esac
}}
complete -F _flashmoe_models -o nosort -o bashdefault -o default flashmoe
"#,
        commands =
            commands().iter().map(|it| format!("\"{it} 2 \"*")).collect::<Vec<_>>().join("|")
    )
}

/// The places of models complete to files in what is generated.
fn zsh(text: &str) -> String {
    let is_model = |line: &str| {
        let line = line.trim_start().trim_start_matches(['\'', ':']);
        line.starts_with("model -- ") || line.starts_with("name -- ")
    };
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        if line.starts_with("if [ \"$funcstack[1]\"") {
            lines.push(format!(
                "_flashmoe_models() {{\n    local -a names\n    names=(${{(f)\"$({NAMES})\"}})\n    \
                 compadd -a names\n    _files\n}}\n"
            ));
        }
        let place = line.rsplit_once(":_").filter(|_| is_model(line));
        lines.push(match place {
            Some((before, after))
                if after.starts_with("files'") || after.starts_with("default'") =>
            {
                let rest = after.split_once('\'').map_or("", |(_, rest)| rest);
                format!("{before}:_flashmoe_models'{rest}")
            }
            _ => line.to_owned(),
        });
    }
    lines.join("\n") + "\n"
}

fn fish() -> String {
    format!(
        "complete -c flashmoe -n \"__fish_seen_subcommand_from {}\" -a \"({NAMES})\"\n",
        commands().join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_with_a_model_are_found_by_their_arguments() {
        let commands = commands();
        for name in ["run", "serve", "plan", "bench", "eval", "show", "rm", "verify", "report"] {
            assert!(commands.iter().any(|it| it == name), "{name}: {commands:?}");
        }
        for name in ["pull", "list", "launch", "config"] {
            assert!(!commands.iter().any(|it| it == name), "{name}: {commands:?}");
        }
    }

    #[test]
    fn zsh_and_fish_ask_for_names() {
        let script = |shell| {
            let mut out = Vec::new();
            completions(shell, &mut out).expect("written");
            String::from_utf8(out).expect("text")
        };
        let zsh = script(Shell::Zsh);
        let places = zsh.lines().filter(|line| line.contains(":_flashmoe_models'")).count();
        assert!(places >= commands().len(), "{places}");
        assert!(zsh.contains("_flashmoe_models() {"), "{zsh}");
        assert!(script(Shell::Fish).contains("list --names"));
    }
}
