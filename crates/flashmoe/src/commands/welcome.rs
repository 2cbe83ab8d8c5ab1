//! `flashmoe` alone: what it is, which models are here and what to type.

use std::io::Write;

use anyhow::Result;

use super::models::{lines, table};
use crate::failure::Failure;
use crate::shelf;

pub(crate) fn welcome(out: &mut dyn Write) -> Result<()> {
    let (models, shelf) = (crate::models::listed(), shelf::here());
    let whole = models.iter().find(|model| model.missing.is_none());
    let name = whole.map(|model| model.name.to_string());
    let name = name.or_else(|| Some(shelf.models.first()?.name.clone()));
    let name = name.unwrap_or_else(|| "OWNER/NAME".to_owned());
    let here = match table(&lines(&models, &shelf)) {
        none if none.is_empty() => "No models on this disk yet.\n".to_owned(),
        table => format!("Models on this disk:\n{table}"),
    };
    let commands = [
        ("pull OWNER/NAME".to_owned(), "download a model of the Hugging Face hub"),
        (format!("plan {name}"), "how it would run on this machine"),
        (format!("run {name} \"Hello\""), "one answer; without a prompt a chat"),
        (format!("serve {name}"), "a page and the APIs at http://127.0.0.1:8080"),
        ("help".to_owned(), "all commands"),
    ];
    let width = commands.iter().map(|(command, _)| command.chars().count()).max().unwrap_or(0);
    let commands = commands.map(|(command, what)| format!("flashmoe {command:<width$}  {what}\n"));
    let text = format!(
        "flashmoe {} runs Mixture-of-Experts models that are larger than memory on one ordinary machine.\n\n\
         {here}\n{}",
        env!("CARGO_PKG_VERSION"),
        commands.concat()
    );
    out.write_all(text.as_bytes()).map_err(Failure::io)?;
    Ok(())
}
