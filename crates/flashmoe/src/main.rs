//! The `flashmoe` command line: parse, run, exit code.
#![forbid(unsafe_code)]

mod account;
mod arguments;
mod commands;
mod failure;
mod interrupt;
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

use clap::{CommandFactory, Parser};

use arguments::{Arguments, Command};
use failure::Failure;
use output::Named;

fn main() -> ExitCode {
    if engine::text::is_template_process() {
        return engine::text::template_process();
    }
    let arguments = Arguments::parse();
    let mut out = Named::new("standard output", std::io::stdout().lock());
    let result = match &arguments.command {
        Command::Run(arguments) => commands::run(arguments, &mut out),
        Command::Serve(arguments) => commands::serve(arguments, &mut out),
        Command::Cache(arguments) => commands::cache(arguments, &mut out),
        Command::Inspect(arguments) => commands::inspect(&arguments.model, &mut out),
        Command::Eval(arguments) => commands::eval(arguments, &mut out),
        Command::Pack(arguments) => commands::pack(arguments, &mut out),
        Command::Verify(arguments) => commands::verify(&arguments.model, &mut out),
        Command::Completions { shell } => {
            // Into memory first: the generator panics where it cannot write.
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut Arguments::command(), "flashmoe", &mut text);
            out.write_all(&text).map_err(|error| Failure::io(error).into())
        }
        Command::Man => {
            let page = clap_mangen::Man::new(Arguments::command());
            page.render(&mut out).map_err(|error| Failure::io(error).into())
        }
        Command::Plan(arguments) => commands::plan(arguments, &mut out),
        Command::Doctor(arguments) => commands::doctor(arguments, &mut out),
        Command::Score(arguments) => commands::score(arguments, &mut out),
        Command::Launch(arguments) => commands::launch(arguments, &mut out),
        Command::Trace(arguments) => commands::trace(arguments, &mut out),
        Command::Bench(arguments) => commands::bench(arguments, &mut out),
        Command::Synth(arguments) => commands::synth(arguments, &mut out),
    };
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
