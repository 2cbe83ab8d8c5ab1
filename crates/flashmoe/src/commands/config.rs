//! `flashmoe config`: where the configuration file is, and what holds for a command with where it came from.

use std::io::Write;

use anyhow::Result;
use clap::CommandFactory;
use store::io::platform::HOME;
use store::shown;

use crate::arguments::{Arguments, ConfigCommand};
use crate::configuration::{self, Origin, Setting};
use crate::failure::Failure;
use crate::progress::say;

pub(crate) fn config(command: &ConfigCommand, out: &mut dyn Write) -> Result<()> {
    match command {
        ConfigCommand::Path => {
            let place = configuration::place();
            let (path, exists) =
                place.ok_or_else(|| Failure::usage(format!("{HOME} is not set")))?;
            let note = if exists { "" } else { " (not there yet)" };
            writeln!(out, "{}{note}", shown::path(&path)).map_err(Failure::io)?;
        }
        ConfigCommand::Init => {
            writeln!(out, "{}", shown::path(&configuration::init()?)).map_err(Failure::io)?;
        }
        ConfigCommand::Show { command, all } => {
            let mut program = Arguments::command();
            program.build();
            let settings = configuration::show(&program, command)?;
            let set = |setting: &&Setting| *all || setting.origin != Origin::Default;
            if settings.iter().filter(set).count() == 0 {
                let place = match configuration::place() {
                    Some((path, true)) => format!("{} sets nothing of it", shown::path(&path)),
                    Some((path, false)) => {
                        format!(
                            "there is no {}; `flashmoe config init` makes one",
                            shown::path(&path)
                        )
                    }
                    None => format!("{HOME} is not set"),
                };
                say(&format!(
                    "{command}: every option has its default, --all prints them; {place}"
                ));
            }
            for setting in settings.into_iter().filter(|setting| set(&setting)) {
                let values = match setting.values.is_empty() {
                    true => "-".to_owned(),
                    false => setting.values.join(", "),
                };
                let (name, origin) = (setting.name, setting.origin);
                let values = shown::line(values).to_string();
                writeln!(out, "{name:<24} {values:<24} {origin}").map_err(Failure::io)?;
            }
        }
    }
    Ok(())
}
