//! The tokenizer and template of a planned model, loaded before its weights or beside them.

use std::thread::JoinHandle;

use anyhow::{Result, anyhow};
use text::{Language, LanguageError, TemplateHost, TextError};

use super::Plan;
use crate::failure::Failure;

/// A language that another thread loads: the tokenizer takes as long to parse as a small trunk to read.
pub(crate) struct LanguageBeside(JoinHandle<Result<Language>>);

impl LanguageBeside {
    /// Begins to load the language of `plan`.
    ///
    /// # Errors
    /// A tokenizer that its first keys show to be unreadable: at once, before weights are read.
    pub(crate) fn start(plan: &Plan) -> Result<Self> {
        if let Some(source) = &plan.checkpoint.tokenizer {
            source.check().map_err(|error| Failure::model(error.into()))?;
        }
        let (checkpoint, vocabulary) = (plan.checkpoint.clone(), plan.config.vocabulary);
        let thread = std::thread::Builder::new().name("language".to_owned());
        let thread = thread.spawn(move || load(&checkpoint, vocabulary));
        Ok(Self(thread.map_err(Failure::io)?))
    }

    /// Waits for it.
    pub(crate) fn joined(self) -> Result<Language> {
        self.0.join().map_err(|_| anyhow!("loading the tokenizer failed"))?
    }
}

impl Plan {
    /// Loads the language of this plan's model.
    pub(crate) fn language(&self) -> Result<Language> {
        load(&self.checkpoint, self.config.vocabulary)
    }
}

fn load(checkpoint: &store::format::Checkpoint, vocabulary: usize) -> Result<Language> {
    let language = Language::load(checkpoint, vocabulary, &TemplateHost::own_program());
    Ok(language.map_err(|error| match error {
        // The template's process was lost, which need not be the model's fault.
        LanguageError::File { reason: TextError::TemplateLost { .. }, .. } => Failure::io(error),
        other => Failure::model(other.into()),
    })?)
}
