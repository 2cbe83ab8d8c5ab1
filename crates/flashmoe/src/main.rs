//! The `flashmoe` command line: parse, run, exit code.
#![forbid(unsafe_code)]

mod account;
mod arguments;
mod commands;
mod configuration;
mod examples;
mod failure;
mod foreign;
mod gpu_check;
mod hosts;
mod interrupt;
mod models;
mod output;
mod pager;
mod phases;
mod plan;
mod printer;
mod progress;
mod prompt;
mod requantisation;
mod sampling;
mod screen;
mod shelf;
mod signals;
mod speed;
mod state;
mod supervisor;
mod terminal;

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use arguments::{Arguments, Command};
use failure::Failure;
use output::Named;

fn main() -> ExitCode {
    if text::is_template_process() {
        return text::template_process();
    }
    failure::end_without_threads();
    let mut out = Named::new("standard output", std::io::stdout().lock());
    let result = parse().and_then(|mut arguments| {
        progress::set_volume(arguments.quiet, arguments.verbose);
        shelf::set_folders(std::mem::take(&mut arguments.models_dir));
        models::locate_all(arguments.command.as_mut())?;
        run(&arguments, &mut out)
    });
    let result = result.and_then(|()| out.flush().map_err(|error| Failure::io(error).into()));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // As a program that is ended by SIGPIPE: in silence, with the code that a shell gives it.
        Err(error) if failure::is_broken_pipe(&error) => ExitCode::from(141),
        Err(error) => {
            progress::complain(&format!("flashmoe: {}", failure::in_words(&error)));
            let failure = error.chain().find_map(|cause| cause.downcast_ref::<Failure>());
            ExitCode::from(failure.map_or(1, Failure::exit_code))
        }
    }
}

/// The command line with what environment and configuration file add to it.
fn parse() -> Result<Arguments> {
    let mut program = Arguments::command();
    program.build();
    let typed = foreign::understood(&program, std::env::args_os().collect())?;
    let words = configuration::completed(&program, typed)?;
    Arguments::try_parse_from(words).map_err(|refused| {
        let help = refused.kind() == ErrorKind::DisplayHelp;
        if help && pager::text(refused.render().ansi().to_string().as_bytes()) {
            std::process::exit(0);
        }
        refused.exit()
    })
}

fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    let Some(command) = &arguments.command else { return commands::welcome(out) };
    match command {
        Command::Run(arguments) => commands::run(arguments, out),
        Command::Pull(arguments) => commands::pull(arguments, out),
        Command::List(arguments) => commands::list(arguments, out),
        Command::Show(arguments) => commands::show(arguments, out),
        Command::Rm(arguments) => commands::remove(arguments, out),
        Command::Serve(arguments) => commands::serve(arguments, out),
        Command::Stage(arguments) => commands::stage(arguments, out),
        Command::Cache(arguments) => commands::cache(arguments, out),
        Command::Inspect(arguments) => commands::inspect(arguments, out),
        Command::Eval(arguments) => commands::eval(arguments, out),
        Command::Pack(arguments) => commands::pack(arguments, out),
        Command::Verify(arguments) => commands::verify(arguments, out),
        Command::Completions { shell } => commands::completions(*shell, out),
        Command::Man { all } => commands::man(all.as_deref(), out),
        Command::Config { command } => commands::config(command, out),
        Command::Plan(arguments) => commands::plan(arguments, out),
        Command::Doctor(arguments) => commands::doctor(arguments, out),
        Command::Score(arguments) => commands::score(arguments, out),
        Command::Launch(arguments) => commands::launch(arguments, out),
        Command::Trace(arguments) => commands::trace(arguments, out),
        Command::Bench(arguments) => commands::bench(arguments, out),
        Command::Report(arguments) => commands::report(arguments, out),
        Command::Synth(arguments) => commands::synth(arguments, out),
    }
}
