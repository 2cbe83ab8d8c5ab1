//! Settings that are not typed each time: a TOML file and environment variables for every option of every command.
//!
//! An option that is not on the command line is looked for as FLASHMOE_OPTION in the environment, then in the file:
//! in the table of the command, then at the top. What is found is added to the command line, so that one parser checks
//! all of it. A key that no command has is an error that says what was probably meant.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Command};
use store::io::platform::{HOME, Links, open_regular};
use store::shown::{self, quoted};
use toml::{Table, Value};

use crate::failure::Failure;

/// Longest file that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Options that belong to one call.
const NOT_SETTINGS: [&str; 6] = ["help", "version", "prompt", "model", "yes", "dry-run"];
/// Longest beginning of a key that is compared with what there is.
const KEY_BYTES_MAX: usize = 64;

/// Where a setting came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The command line.
    Typed,
    /// This environment variable.
    Environment(String),
    /// This file, in the table of a command or at the top.
    File(PathBuf, Option<String>),
    /// Nowhere: the default.
    Default,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Typed => write!(out, "command line"),
            Self::Environment(name) => write!(out, "{name}"),
            Self::File(path, None) => write!(out, "{}", shown::path(path)),
            Self::File(path, Some(table)) => write!(out, "{} [{table}]", shown::path(path)),
            Self::Default => write!(out, "default"),
        }
    }
}

/// The configuration file's values; none when there is no file.
pub(crate) struct Configuration {
    path: Option<PathBuf>,
    table: Table,
}

/// A setting of a command: its name, its value as typed and where it came from.
pub(crate) struct Setting {
    pub(crate) name: String,
    pub(crate) values: Vec<String>,
    pub(crate) origin: Origin,
}

/// `$FLASHMOE_CONFIG`, else the XDG place of configuration files.
pub(crate) fn path() -> Option<PathBuf> {
    let set =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|it| !it.as_os_str().is_empty());
    set("FLASHMOE_CONFIG").or_else(|| {
        let absolute = |name| set(name).filter(|path| path.is_absolute());
        let folder = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute(HOME)?.join(".config")));
        Some(folder?.join("flashmoe/config.toml"))
    })
}

impl Configuration {
    /// Reads the file and checks its keys against the options of `program`.
    pub(crate) fn read(program: &Command) -> Result<Self> {
        let none = Self { path: None, table: Table::new() };
        let Some(path) = path() else { return Ok(none) };
        let file = match open_regular(&path, Links::Followed) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(none),
            Err(error) => {
                return Err(Failure::io(error)).with_context(|| shown::path(&path).to_string());
            }
        };
        let mut text = String::new();
        let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(Failure::io);
        read.with_context(|| shown::path(&path).to_string())?;
        let wrong = |reason: String| {
            anyhow::Error::from(Failure::usage(format!("{}: {reason}", shown::path(&path))))
        };
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(wrong("is longer than any configuration".to_owned()));
        }
        let table: Table = text.parse().map_err(|error: toml::de::Error| {
            wrong(shown::message(error.message().to_owned()).to_string())
        })?;
        check(program, &table).map_err(wrong)?;
        Ok(Self { path: Some(path), table })
    }

    /// The value of `option` for `command`, as texts for the command line, and where it stands.
    fn value(&self, command: &str, option: &str) -> Option<(Vec<String>, Origin)> {
        let path = self.path.clone().unwrap_or_default();
        let of_command = self.table.get(command).and_then(Value::as_table);
        if let Some(value) = of_command.and_then(|table| table.get(option)) {
            return Some((texts(value), Origin::File(path, Some(command.to_owned()))));
        }
        let value = self.table.get(option).filter(|value| !value.is_table())?;
        Some((texts(value), Origin::File(path, None)))
    }

    /// Every setting of the deepest command in `matches`, with its origin.
    pub(crate) fn settings(
        &self,
        command: &Command,
        matches: &ArgMatches,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Vec<Setting> {
        let mut settings = Vec::new();
        for argument in command.get_arguments() {
            let Some(long) = argument.get_long().filter(|long| !NOT_SETTINGS.contains(long)) else {
                continue;
            };
            let variable = format!("FLASHMOE_{}", long.to_uppercase().replace('-', "_"));
            let id = argument.get_id().as_str();
            let source = matches.value_source(id);
            let raw = || {
                let values = matches.try_get_raw(id).ok().flatten().into_iter().flatten();
                values.map(|value| value.to_string_lossy().into_owned()).collect::<Vec<_>>()
            };
            let (values, origin) = match source {
                Some(ValueSource::CommandLine) => (raw(), Origin::Typed),
                // clap's own variables may be secrets.
                Some(ValueSource::EnvVariable) => {
                    (vec!["***".into()], Origin::Environment(variable))
                }
                _ => match (environment(&variable), self.value(command.get_name(), long)) {
                    (Some(text), _) => (vec![text], Origin::Environment(variable)),
                    (None, Some(found)) => found,
                    (None, None) => (raw(), Origin::Default),
                },
            };
            settings.push(Setting { name: long.to_owned(), values, origin });
        }
        settings
    }
}

/// The command line `typed` with what environment and file add to it.
pub(crate) fn completed(program: &Command, typed: Vec<OsString>) -> Result<Vec<OsString>> {
    let matches = program.clone().try_get_matches_from(&typed);
    // What is wrong as it was typed is told by the parser, as if there were no file.
    let Ok(matches) = matches else { return Ok(typed) };
    let (mut command, mut found, mut place) = (program, &matches, 1);
    while let Some((name, inner)) = found.subcommand() {
        let Some(next) = command.find_subcommand(name) else { break };
        let is_name = |word: &OsString| {
            let word = word.to_string_lossy();
            word == name || next.get_all_aliases().any(|alias| word == alias)
        };
        let Some(at) = typed.iter().skip(place).position(is_name) else { break };
        (command, found, place) = (next, inner, place + at + 1);
    }
    if std::ptr::eq(command, program) || command.get_name() == "config" {
        return Ok(typed);
    }
    let configuration = Configuration::read(program)?;
    let environment = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let mut added = Vec::new();
    for setting in configuration.settings(command, found, &environment) {
        if !matches!(setting.origin, Origin::Environment(_) | Origin::File(..))
            || setting.values == ["***"]
        {
            continue;
        }
        let option = command.get_arguments().find(|it| it.get_long() == Some(&setting.name));
        let is_flag = option.is_some_and(|it| matches!(it.get_action(), ArgAction::SetTrue));
        for value in &setting.values {
            let word = match (is_flag, value.as_str()) {
                (true, "true" | "1" | "yes" | "on") => format!("--{}", setting.name),
                (true, "false" | "0" | "no" | "off") => continue,
                (true, other) => {
                    let (name, origin) = (&setting.name, &setting.origin);
                    let reason = format!(
                        "{name} from {origin}: {} is neither true nor false",
                        quoted(other)
                    );
                    return Err(Failure::usage(reason).into());
                }
                (false, value) => format!("--{}={value}", setting.name),
            };
            let mut alone = typed.clone();
            alone.insert(place, OsString::from(&word));
            if let Err(error) = program.clone().try_get_matches_from(alone) {
                // What was typed excludes it, and goes before it.
                if error.kind() == ErrorKind::ArgumentConflict {
                    continue;
                }
                let (name, origin) = (&setting.name, &setting.origin);
                let told = error.to_string();
                let told = told.lines().next().unwrap_or_default().trim_start_matches("error: ");
                let reason = format!("{name} from {origin}: {}", shown::message(told));
                return Err(Failure::usage(reason).into());
            }
            added.push(OsString::from(word));
        }
    }
    let mut all = typed;
    all.splice(place..place, added);
    Ok(all)
}

/// That every key of the file is an option of some command.
fn check(program: &Command, table: &Table) -> Result<(), String> {
    let commands: Vec<&Command> = program.get_subcommands().collect();
    let options = |command: &Command| -> Vec<String> {
        let longs = command.get_arguments().filter_map(|it| it.get_long());
        longs.filter(|long| !NOT_SETTINGS.contains(long)).map(str::to_owned).collect()
    };
    let mut all: Vec<String> = commands.iter().flat_map(|command| options(command)).collect();
    all.sort();
    all.dedup();
    for (key, value) in table {
        match value {
            Value::Table(inner) => {
                let command = commands.iter().find(|command| command.get_name() == key);
                let Some(command) = command else {
                    let names: Vec<_> =
                        commands.iter().map(|it| it.get_name().to_owned()).collect();
                    return Err(unknown(key, "command", &names));
                };
                let known = options(command);
                for (key, value) in inner {
                    check_value(key, value)?;
                    if !known.contains(key) {
                        let what = format!("setting of {}", command.get_name());
                        return Err(unknown(key, &what, &known));
                    }
                }
            }
            value => {
                check_value(key, value)?;
                if !all.contains(key) {
                    return Err(unknown(key, "setting", &all));
                }
            }
        }
    }
    Ok(())
}

fn check_value(key: &str, value: &Value) -> Result<(), String> {
    match value {
        Value::Table(_) | Value::Datetime(_) => Err(format!("{}: is no value", quoted(key))),
        Value::Array(values) if values.iter().any(|it| it.is_array() || it.is_table()) => {
            Err(format!("{}: is no list of values", quoted(key)))
        }
        _ => Ok(()),
    }
}

fn unknown(key: &str, what: &str, known: &[String]) -> String {
    // Long keys are somebody else's words: nothing is like them.
    let key = &key[..key.floor_char_boundary(KEY_BYTES_MAX)];
    let alike = known.iter().map(|name| (strsim::osa_distance(key, name), name));
    let best = alike.min().filter(|best| best.0 <= (key.len() / 3).max(1));
    let hint = best.map_or(String::new(), |(_, name)| format!("; did you mean {name}?"));
    format!("there is no {what} {}{hint}", quoted(key))
}

fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text.clone()],
        Value::Array(values) => values.iter().flat_map(texts).collect(),
        Value::Integer(number) => vec![number.to_string()],
        Value::Float(number) => vec![number.to_string()],
        Value::Boolean(truth) => vec![truth.to_string()],
        // Refused by `check_value`.
        Value::Table(_) | Value::Datetime(_) => Vec::new(),
    }
}

/// Every setting of the command `name` as it holds without a command line.
pub(crate) fn show(program: &Command, name: &str) -> Result<Vec<Setting>> {
    let configuration = Configuration::read(program)?;
    let Some(command) = program.find_subcommand(name) else {
        let known: Vec<_> = program.get_subcommands().map(|it| it.get_name().to_owned()).collect();
        return Err(Failure::usage(unknown(name, "command", &known)).into());
    };
    // No positional arguments are known here, and none is a setting.
    let lenient = command.clone().mut_args(|argument| argument.required(false));
    let matches = lenient.ignore_errors(true).try_get_matches_from([name]);
    let matches = matches.map_err(|error| Failure::Run(error.into()))?;
    let environment = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    Ok(configuration.settings(command, &matches, &environment))
}

/// The file's place, and whether it is there.
pub(crate) fn place() -> Option<(PathBuf, bool)> {
    let path = path()?;
    let exists = Path::new(&path).is_file();
    Some((path, exists))
}

/// What `flashmoe config init` writes: every line but the tables' names is a remark until its # goes.
const EXAMPLE: &str = r#"# Settings of flashmoe.
# A key is the long name of an option; `flashmoe help COMMAND` explains them.
# At the top it holds for every command that has the option, in a table for that command alone.
# The command line goes before FLASHMOE_OPTION in the environment, which goes before this file.

# Most memory that the process takes, and most GPU memory.
#memory = "12G"
#vram = "10G"
# Most tokens of a conversation.
#context = 16384
# What computes: auto, cpu, cuda, cuda:1, gpu.
#device = "auto"
#threads = 8
# How keys and values are stored: f16, q8.
#kv-type = "q8"
# Folders with models of your own, which `flashmoe list` then shows and `run` finds by name.
#models-dir = ["/mnt/models"]

[run]
#max-tokens = 2048
#temperature = 0.7
#stats = true

[serve]
#host = "127.0.0.1"
#port = 8080
#api-key-file = "/etc/flashmoe/keys"
#cache-disk = "/var/lib/flashmoe/prompts"
#allow-origin = ["http://localhost:3000"]
"#;

/// Writes a file to begin with, and gives its place.
///
/// # Errors
/// A file that is there already, or no place for one.
pub(crate) fn init() -> Result<PathBuf> {
    let path = path().ok_or_else(|| Failure::usage(format!("{HOME} is not set")))?;
    let named = || shown::path(&path).to_string();
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(Failure::io).with_context(named)?;
    }
    match std::fs::File::create_new(&path) {
        Ok(mut file) => {
            file.write_all(EXAMPLE.as_bytes()).map_err(Failure::io).with_context(named)?
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let reason = format!("{} is there already: it stays as it is", named());
            return Err(Failure::usage(reason).into());
        }
        Err(error) => return Err(Failure::io(error)).with_context(named),
    }
    Ok(path)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::arguments::Arguments;
    use clap::CommandFactory;

    #[test]
    fn the_example_is_good_as_it_is_and_with_every_setting_of_it() {
        let mut program = Arguments::command();
        program.build();
        let all: String = EXAMPLE
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(setting) if !setting.starts_with(' ') => format!("{setting}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        for text in [EXAMPLE, &all] {
            check(&program, &text.parse().unwrap()).unwrap();
        }
        assert!(all.parse::<Table>().unwrap().len() > 6);
        // The same in the documentation.
        assert!(include_str!("../../../docs/configuration.md").contains(EXAMPLE));
    }
}
