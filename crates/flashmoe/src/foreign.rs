//! What users of other programs type: understood where it means the same here, else answered in one line that names the
//! word and what to type. The table of docs/models.md is this one; a test compares the two.

use std::ffi::OsString;
use std::path::Path;

use anyhow::Result;
use clap::{Arg, Command};
use hub::ModelName;

use crate::failure::Failure;
use crate::models::{listed, named_shortly};

/// Flags that mean one thing, by whichever name, and what there is in their place.
struct Flags {
    names: &'static [&'static str],
    here: &'static str,
}

/// Flags of llama.cpp, ollama, LM Studio and vLLM. A command's own flag goes before one of these.
const FLAGS: [Flags; 29] = [
    Flags {
        names: &[
            "-ngl",
            "--n-gpu-layers",
            "--gpu-layers",
            "--gpu",
            "-ncmoe",
            "--n-cpu-moe",
            "-cmoe",
            "--cpu-moe",
            "-ot",
            "--override-tensor",
        ],
        here: "nothing to set: `--vram 12G` is the limit, and each expert goes where it is used most",
    },
    Flags {
        names: &[
            "-sm",
            "--split-mode",
            "-ts",
            "--tensor-split",
            "-mg",
            "--main-gpu",
            "--tensor-parallel-size",
            "-tp",
            "--pipeline-parallel-size",
            "-pp",
        ],
        here: "`--device cuda:0,cuda:1` cuts the layers over two GPUs, `--device cuda:1` chooses one",
    },
    Flags {
        names: &["-np", "--parallel", "--max-num-seqs"],
        here: "`flashmoe serve MODEL --sequences 4`: conversations computed together",
    },
    Flags { names: &["-m", "--model"], here: "the model is the first word: `flashmoe run MODEL`" },
    Flags {
        names: &["-hf", "--hf-repo", "-hff", "--hf-file", "-hfr"],
        here: "the name is the model: `flashmoe run OWNER/NAME:Q4_K_M`",
    },
    Flags {
        names: &["-p", "--prompt"],
        here: "the prompt follows the model: `flashmoe run MODEL \"Hello\"`",
    },
    Flags {
        names: &["-f", "--file"],
        here: "standard input is added to the prompt: `flashmoe run MODEL \"Summarise:\" < FILE`",
    },
    Flags {
        names: &["-cnv", "--conversation", "-i", "--interactive", "-if", "--interactive-first"],
        here: "nothing to set: `flashmoe run MODEL` without a prompt is a chat",
    },
    Flags {
        names: &["-no-cnv", "--no-conversation", "-st", "--single-turn"],
        here: "nothing to set: `flashmoe run MODEL PROMPT` answers once",
    },
    Flags { names: &["-sys", "--system-prompt"], here: "`--system TEXT`" },
    Flags {
        names: &["--jinja", "--no-jinja", "--chat-template", "--chat-template-file"],
        here: "nothing to set: the model's own template is used; `--raw` uses none",
    },
    Flags {
        names: &["--no-think", "--nothink", "--reasoning-budget", "-rea", "--reasoning"],
        here: "`--think=false`",
    },
    Flags { names: &["--hidethinking"], here: "`--hide-thinking`" },
    Flags { names: &["--repeat-penalty"], here: "`--repetition-penalty 1.1`" },
    Flags {
        names: &["-tb", "--threads-batch"],
        here: "`-t 8`: the same threads for prompts and answers",
    },
    Flags {
        names: &["-b", "--batch-size", "-ub", "--ubatch-size", "--max-num-batched-tokens"],
        here: "`--prefill-chunk 512`; `flashmoe plan` shows what is chosen",
    },
    Flags {
        names: &["-fa", "--flash-attn", "-cb", "--cont-batching", "--enable-prefix-caching"],
        here: "nothing to set: it is always on",
    },
    Flags {
        names: &["-ctk", "--cache-type-k", "-ctv", "--cache-type-v", "--kv-cache-dtype"],
        here: "`--kv-type q8`",
    },
    Flags {
        names: &["--mmap", "--no-mmap", "--mlock"],
        here: "`--memory 12G`: one number, kept; the disk is read past the page cache",
    },
    Flags { names: &["--gpu-memory-utilization"], here: "`--vram 12G`" },
    Flags { names: &["--max-model-len", "--context-length"], here: "`--context 8192`" },
    Flags {
        names: &["-a", "--alias", "--served-model-name"],
        here: "`flashmoe serve MODEL --served-name NAME`",
    },
    Flags {
        names: &["--cache-reuse"],
        here: "`flashmoe serve MODEL --cache-disk FOLDER` keeps prompts for the next start",
    },
    Flags {
        names: &["--lora", "--mmproj", "--image", "--embedding", "--embeddings", "--rerank"],
        here: "not here: flashmoe runs the text part of Mixture-of-Experts models as they are",
    },
    Flags {
        names: &["-md", "--model-draft", "--draft-max", "--speculative-config"],
        here: "no second model drafts: `--draft auto` takes the model's own head or repeated text",
    },
    Flags { names: &["--keepalive", "--ttl"], here: "a model stays loaded until its process ends" },
    Flags {
        names: &["--nowordwrap"],
        here: "nothing to set: lines are broken on a terminal alone",
    },
    Flags {
        names: &["--format"],
        here: "`--json` prints the answer with its figures; a schema goes to the server: `response_format`",
    },
    Flags {
        names: &["--quantization", "--dtype", "--load-format"],
        here: "nothing to set: the files say how weights are stored; `flashmoe pack` changes it",
    },
];

/// Commands of other programs, and what there is in their place.
const COMMANDS: [(&str, &str); 18] = [
    (
        "ps",
        "a model is loaded as long as its process runs: `curl 127.0.0.1:8080/slots` says what a server does",
    ),
    ("stop", "a model is unloaded when its process ends: Ctrl-C, or `kill -TERM` for a server"),
    ("unload", "a model is unloaded when its process ends: Ctrl-C, or `kill -TERM` for a server"),
    ("load", "`flashmoe serve MODEL` loads a model"),
    ("chat", "`flashmoe run MODEL` without a prompt is a chat"),
    ("generate", "`flashmoe run MODEL PROMPT` answers once"),
    ("server", "`flashmoe serve MODEL`"),
    ("download", "`flashmoe pull OWNER/NAME`"),
    ("get", "`flashmoe pull OWNER/NAME`"),
    (
        "search",
        "models are found on huggingface.co; `flashmoe plan OWNER/NAME` says whether one runs here",
    ),
    ("remove", "`flashmoe rm NAME`"),
    ("delete", "`flashmoe rm NAME`"),
    ("push", "models are not uploaded: `hf upload` does that"),
    (
        "cp",
        "a model has one name, that of its files; `flashmoe serve MODEL --served-name NAME` gives another",
    ),
    ("version", "`flashmoe --version`"),
    ("create", "there are no Modelfiles: settings stand in a file, see `flashmoe config init`"),
    ("convert", "nothing to convert: Hugging Face, MLX and GGUF files are read as they are"),
    ("quantize", "`flashmoe pack SOURCE DESTINATION --experts 4bit`"),
];

/// The command line in this program's words.
///
/// # Errors
/// A word of another program that means nothing here, with what to type.
pub(crate) fn understood(program: &Command, mut typed: Vec<OsString>) -> Result<Vec<OsString>> {
    let Some(first) = first_word(program, &typed) else { return Ok(typed) };
    let word = typed[first].to_string_lossy().into_owned();
    let command = match program.find_subcommand(&word) {
        Some(command) => command,
        None => {
            if let Some((name, here)) = COMMANDS.iter().find(|(name, _)| *name == word) {
                return Err(Failure::usage(format!("{name}: {here}")).into());
            }
            let Some(run) = program.find_subcommand("run").filter(|_| is_model(&word)) else {
                return Ok(typed);
            };
            typed.insert(first, "run".into());
            run
        }
    };
    let words = typed[first..].iter().map(|word| word.to_string_lossy());
    for word in words.take_while(|word| word != "--") {
        let name = word.split('=').next().unwrap_or_default();
        let flags = FLAGS.iter().find(|flags| flags.names.contains(&name));
        if let Some(flags) = flags.filter(|_| !has(command, name)) {
            return Err(Failure::usage(format!("{name}: {}", flags.here)).into());
        }
    }
    Ok(typed)
}

/// The place of the first word that is neither an option nor its value.
fn first_word(program: &Command, typed: &[OsString]) -> Option<usize> {
    let mut at = 1;
    loop {
        let word = typed.get(at)?.to_string_lossy();
        if !word.starts_with('-') {
            return Some(at);
        }
        let takes_value =
            |argument: &Arg| is_named(argument, &word) && argument.get_action().takes_values();
        at += 1 + usize::from(program.get_arguments().any(takes_value));
    }
}

/// Whether a command has a flag of this name itself, or one of its commands has.
fn has(command: &Command, name: &str) -> bool {
    command.get_arguments().any(|argument| is_named(argument, name))
        || command.get_subcommands().any(|inner| has(inner, name))
}

fn is_named(argument: &Arg, name: &str) -> bool {
    match name.strip_prefix("--") {
        Some(long) => {
            argument.get_long() == Some(long)
                || argument.get_all_aliases().is_some_and(|all| all.contains(&long))
        }
        None => argument.get_short().is_some_and(|short| name.chars().skip(1).eq([short])),
    }
}

/// Whether a word in a command's place can only mean a model: a path, a name of the hub, a name that `list` prints.
fn is_model(word: &str) -> bool {
    let path = Path::new(word);
    path.is_dir() && (word.contains('/') || path.join("config.json").is_file())
        || path.is_file()
        || word.parse::<ModelName>().is_ok()
        || !word.is_empty() && !named_shortly(&listed(), word).is_empty()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::arguments::Arguments;
    use clap::CommandFactory;

    const DOCUMENTED: &str = include_str!("../../../docs/models.md");

    #[test]
    fn the_table_of_the_documentation_is_this_one() {
        let flags = FLAGS.iter().map(|flags| {
            let names: Vec<String> = flags.names.iter().map(|name| format!("`{name}`")).collect();
            (names.join(", "), flags.here)
        });
        let commands = COMMANDS.iter().map(|(name, here)| (format!("`{name}`"), *here));
        for (there, here) in flags.chain(commands) {
            let row = format!("| {there} | {here} |\n");
            assert!(DOCUMENTED.contains(&row), "docs/models.md lacks this row:\n{row}");
        }
    }

    #[test]
    fn no_word_is_in_the_table_twice_or_means_something_here_everywhere() {
        let mut program = Arguments::command();
        program.build();
        let mut names: Vec<&str> = FLAGS.iter().flat_map(|flags| flags.names).copied().collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        for name in names {
            let own = program.get_subcommands().filter(|command| has(command, name)).count();
            assert!(own < program.get_subcommands().count(), "{name} is never reached");
        }
        for (name, _) in COMMANDS {
            assert!(program.find_subcommand(name).is_none(), "{name} is a command here");
        }
    }

    fn answer(words: &[&str]) -> Result<Vec<String>, String> {
        let mut program = Arguments::command();
        program.build();
        let typed = ["flashmoe"].iter().chain(words).map(OsString::from).collect();
        let words = understood(&program, typed).map_err(|error| error.to_string())?;
        Ok(words.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect())
    }

    #[test]
    fn flags_of_others_are_answered_by_name_and_our_own_are_left_alone() {
        for (words, answered) in [
            (&["run", "m", "hi", "-ngl", "99"][..], "-ngl: nothing to set"),
            (&["serve", "m", "--n-gpu-layers=99"], "--n-gpu-layers: nothing to set"),
            (&["-q", "serve", "m", "-np", "4"], "-np: `flashmoe serve MODEL --sequences 4`"),
            (&["run", "-m", "x.gguf", "-p", "hi"], "-m: the model is the first word"),
            (&["run", "m", "--no-think"], "--no-think: `--think=false`"),
            (&["ps"], "ps: a model is loaded"),
            (&["version"], "version: `flashmoe --version`"),
            (&["serve", "m", "-ts", "1,1"], "-ts: `--device cuda:0,cuda:1`"),
            (&["run", "m", "--keepalive", "5m"], "--keepalive: a model stays loaded"),
            (&["run", "m", "--model-draft", "x"], "--model-draft: no second model drafts"),
        ] {
            assert!(answer(words).unwrap_err().starts_with(answered), "{words:?}");
        }
        for words in [
            &["bench", "m", "-p", "512"][..],
            &["run", "m", "--", "-ngl"],
            &["cache", "ls", "x", "--model", "other"],
            &["--models-dir", "/tmp", "list"],
            &["run", "m", "-m is a flag"],
            &[],
            &["-q"],
            &["lst"],
        ] {
            assert_eq!(answer(words).unwrap(), words);
        }
        assert_eq!(answer(&["-q", "acme/tiny", "hi"]).unwrap(), ["-q", "run", "acme/tiny", "hi"]);
    }
}
