//! `flashmoe man`: the manual, generated from the arguments, with exit codes, files and environment.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::arguments::Arguments;
use crate::failure::Failure;
use crate::pager;

/// What no argument says, in roff.
const MORE: &str = r#".SH "EXIT STATUS"
.TP
0
done
.TP
1
failed while running; a GPU that was lost, too
.TP
2
wrong usage, a name that leads nowhere, or a device that is not there
.TP
3
the model is invalid or not supported
.TP
4
not enough memory or disk, a GPU's memory included
.TP
5
input or output failed, the network included
.TP
130
interrupted
.TP
141
the reader of standard output has gone
.SH FILES
.TP
$XDG_CONFIG_HOME/flashmoe/config.toml
settings, ~/.config/flashmoe/config.toml by default: a key is an option's long name; at the top it holds for every
command that has it, in a table named as a command for that one. `flashmoe config show` prints what holds and why.
.TP
$XDG_STATE_HOME/flashmoe/history
what was typed in chats, ~/.local/state/flashmoe/history by default, readable by its owner alone
.TP
$HF_HOME/hub
models by name, ~/.cache/huggingface/hub by default, in the layout that other programs share
.SH ENVIRONMENT
.TP
FLASHMOE_OPTION
any long option, in capitals and with underscores: FLASHMOE_MEMORY=12G. The command line goes before it, it goes before
the configuration file.
.TP
FLASHMOE_CONFIG
the configuration file
.TP
FLASHMOE_HISTORY
the file of the chat's history; off keeps none
.TP
HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_TOKEN_PATH, HF_ENDPOINT, HF_HUB_OFFLINE
as the hub's own tools read them
.TP
HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE
how the hub is reached, and which certificates are trusted
.TP
NO_COLOR
no colours on a terminal
.SH EXAMPLES
.nf
flashmoe run Qwen/Qwen3-30B-A3B "Why is the sky blue?" --memory 12G
flashmoe run MODEL "Summarise this." < report.txt
flashmoe serve MODEL --context 65536
.fi
"#;

pub(crate) fn man(all: Option<&Path>, out: &mut dyn Write) -> Result<()> {
    let mut program = Arguments::command();
    program.build();
    let Some(folder) = all else { return one_page(&program, out) };
    let wrap = |path: &Path| {
        let path = path.display().to_string();
        move || path
    };
    std::fs::create_dir_all(folder).map_err(Failure::io).with_context(wrap(folder))?;
    let mut pages = vec![("flashmoe".to_owned(), program.clone())];
    for command in program.get_subcommands().filter(|it| it.get_name() != "help") {
        pages.push((format!("flashmoe-{}", command.get_name()), command.clone()));
    }
    for (name, page) in pages {
        let path = folder.join(format!("{name}.1"));
        let mut text = Vec::new();
        Man::new(page).render(&mut text).map_err(Failure::io)?;
        text.extend(MORE.as_bytes());
        std::fs::write(&path, text).map_err(Failure::io).with_context(wrap(&path))?;
        writeln!(out, "{}", path.display()).map_err(Failure::io)?;
    }
    Ok(())
}

/// The program's page with a chapter for each command.
fn one_page(program: &Command, out: &mut dyn Write) -> Result<()> {
    let mut text = Vec::new();
    Man::new(program.clone()).render(&mut text).map_err(Failure::io)?;
    for command in program.get_subcommands().filter(|it| it.get_name() != "help") {
        chapter(command, &mut text)?;
        for inner in command.get_subcommands().filter(|it| it.get_name() != "help") {
            chapter(inner, &mut text)?;
        }
    }
    text.extend(MORE.as_bytes());
    if !pager::manual(&text) {
        out.write_all(&text).map_err(Failure::io)?;
    }
    Ok(())
}

fn chapter(command: &Command, text: &mut Vec<u8>) -> Result<()> {
    let name = command.get_bin_name().unwrap_or(command.get_name()).to_uppercase();
    let man = Man::new(command.clone());
    let mut part = Vec::new();
    let rendered = man.render_synopsis_section(&mut part);
    let rendered = rendered.and_then(|()| man.render_description_section(&mut part));
    let rendered = rendered.and_then(|()| man.render_options_section(&mut part));
    rendered.map_err(Failure::io)?;
    let part =
        String::from_utf8_lossy(&part).replace("\n.SH ", "\n.SS ").replace(".SH SYN", ".SS SYN");
    text.extend(format!(".SH \"{name}\"\n{part}").as_bytes());
    Ok(())
}
