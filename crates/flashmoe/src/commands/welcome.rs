//! `flashmoe` alone: what it is, which models are here and what to type.

use std::io::Write;

use anyhow::Result;

use super::models::table;
use crate::failure::Failure;

pub(crate) fn welcome(out: &mut dyn Write) -> Result<()> {
    let models = crate::models::listed();
    let name = models.first().map_or("OWNER/NAME".to_owned(), |model| model.name.to_string());
    let here = match models.is_empty() {
        true => "No models on this disk yet.\n".to_owned(),
        false => format!("Models on this disk:\n{}", table(&models)),
    };
    let text = format!(
        "flashmoe {} runs Mixture-of-Experts models that are larger than memory on one ordinary machine.\n\n\
         {here}\n\
         flashmoe pull OWNER/NAME          download a model of the Hugging Face hub\n\
         flashmoe plan {name}  how it would run on this machine\n\
         flashmoe run {name} \"Hello\"  one answer; without a prompt a chat\n\
         flashmoe serve {name}  a page and the APIs at http://127.0.0.1:8080\n\
         flashmoe help                     all commands\n",
        env!("CARGO_PKG_VERSION"),
    );
    out.write_all(text.as_bytes()).map_err(Failure::io)?;
    Ok(())
}
