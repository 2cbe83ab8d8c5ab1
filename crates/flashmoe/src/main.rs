//! The `flashmoe` command line: parse, run, exit code.
#![forbid(unsafe_code)]

mod account;
mod arguments;
mod commands;
mod failure;
mod interrupt;
mod models;
mod output;
mod plan;
mod printer;
mod progress;
mod requantisation;
mod sampling;
mod speed;
mod supervisor;
mod terminal;

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, Parser};

use arguments::{Arguments, Command};
use failure::Failure;
use output::Named;

fn main() -> ExitCode {
    if engine::text::is_template_process() {
        return engine::text::template_process();
    }
    let mut arguments = Arguments::parse();
    let mut out = Named::new("standard output", std::io::stdout().lock());
    let result = models::locate_all(&mut arguments.command);
    let result = result.and_then(|()| run(&arguments, &mut out));
    let result = result.and_then(|()| out.flush().map_err(|error| Failure::io(error).into()));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            progress::say(&format!("flashmoe: {}", failure::in_words(&error)));
            let failure = error.chain().find_map(|cause| cause.downcast_ref::<Failure>());
            ExitCode::from(failure.map_or(1, Failure::exit_code))
        }
    }
}

fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    match &arguments.command {
        Command::Run(arguments) => commands::run(arguments, out),
        Command::Pull(arguments) => commands::pull(arguments, out),
        Command::List(arguments) => commands::list(arguments, out),
        Command::Show(arguments) => commands::show(arguments, out),
        Command::Rm(arguments) => commands::remove(arguments, out),
        Command::Serve(arguments) => commands::serve(arguments, out),
        Command::Cache(arguments) => commands::cache(arguments, out),
        Command::Inspect(arguments) => commands::inspect(&arguments.model, out),
        Command::Eval(arguments) => commands::eval(arguments, out),
        Command::Pack(arguments) => commands::pack(arguments, out),
        Command::Verify(arguments) => commands::verify(&arguments.model, out),
        Command::Completions { shell } => {
            // Into memory first: the generator panics where it cannot write.
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut Arguments::command(), "flashmoe", &mut text);
            out.write_all(&text).map_err(|error| Failure::io(error).into())
        }
        Command::Man => {
            let page = clap_mangen::Man::new(Arguments::command());
            page.render(out).map_err(|error| Failure::io(error).into())
        }
        Command::Plan(arguments) => commands::plan(arguments, out),
        Command::Doctor(arguments) => commands::doctor(arguments, out),
        Command::Score(arguments) => commands::score(arguments, out),
        Command::Launch(arguments) => commands::launch(arguments, out),
        Command::Trace(arguments) => commands::trace(arguments, out),
        Command::Bench(arguments) => commands::bench(arguments, out),
        Command::Synth(arguments) => commands::synth(arguments, out),
    }
}
