//! `flashmoe pack` and `flashmoe verify`: a checkpoint as one aligned record per expert, and whether it still is.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;

use anyhow::{Context, Result};
use engine::model::Model;
use engine::model::config::ModelConfig;
use engine::model::mixture::expert_shapes;
use engine::weights::Catalog;
use serde_json::{Value, json};
use store::format::{Checkpoint, Requantised};
use store::pack::{PackError, PackOptions, PackProgress, VerifyReport};

use crate::arguments::{ByteSize, PackArguments, PathArguments};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::progress::{Progress, Unit, say};
use crate::requantisation;

pub(crate) fn pack(arguments: &PackArguments, out: &mut dyn Write) -> Result<()> {
    let source = crate::models::open_to_pack(&arguments.source)?;
    check_model(&source)?;
    let recipe = arguments.recipe()?;
    let options = PackOptions { dry_run: true, recipe };
    let sizes = store::pack::pack(&source, &arguments.destination, options, &mut |_| {
        ControlFlow::Continue(())
    });
    let sizes = sizes.map_err(failure)?;
    let total = sizes.trunk_bytes + sizes.expert_bytes + sizes.row_bytes;
    if arguments.dry_run {
        let [trunk, experts, total] = [sizes.trunk_bytes, sizes.expert_bytes, total].map(ByteSize);
        let rows = match sizes.row_bytes {
            0 => String::new(),
            bytes => format!(", rows of n-grams {}", ByteSize(bytes)),
        };
        writeln!(out, "{total}: trunk {trunk}, experts {experts}{rows}").map_err(Failure::io)?;
        return Ok(());
    }
    let interrupt = Interrupt::listen()?;
    let mut bar = Progress::new("packing", Unit::Bytes, total as f64);
    let options = PackOptions { dry_run: false, recipe };
    let report = store::pack::pack(&source, &arguments.destination, options, &mut |state| {
        step(&mut bar, &interrupt, state)
    });
    bar.finish();
    let report = report.map_err(failure)?;
    if report.resumed_bytes > 0 {
        say(&format!("{} were finished by an earlier run", ByteSize(report.resumed_bytes)));
    }
    let folder = arguments.destination.display();
    writeln!(out, "{folder}: {}", ByteSize(total)).map_err(Failure::io)?;
    out.write_all(requantisation::table(&report.requantised).as_bytes()).map_err(Failure::io)?;
    if let Some(path) = &arguments.report {
        let rows: Vec<_> = report.requantised.iter().map(Requantised::to_json).collect();
        let text = serde_json::to_vec_pretty(&rows).map_err(Failure::io)?;
        std::fs::write(path, text)
            .map_err(Failure::io)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

pub(crate) fn verify(arguments: &PathArguments, out: &mut dyn Write) -> Result<()> {
    let model = &arguments.model;
    let verified = Verified::read(model)?;
    let text = match arguments.json {
        true => format!("{}\n", verified.json()),
        false => verified.text(),
    };
    out.write_all(text.as_bytes()).map_err(Failure::io)?;
    let count = verified.0.damaged.len();
    if count == 0 {
        return Ok(());
    }
    let reason =
        anyhow::anyhow!("{}: {count} damaged parts; copy or pack it again", model.display());
    Err(Failure::model(reason).into())
}

/// What reading all of a model said.
pub(super) struct Verified(VerifyReport);

impl Verified {
    /// Reads a model.
    pub(super) fn read(model: &Path) -> Result<Self> {
        let checkpoint = crate::models::open(model)?;
        let interrupt = Interrupt::listen()?;
        let mut bar = Progress::new("verifying", Unit::Bytes, checkpoint.file_bytes() as f64);
        let report =
            store::pack::verify(&checkpoint, &mut |state| step(&mut bar, &interrupt, state));
        bar.finish();
        Ok(Self(report.map_err(failure)?))
    }

    /// For programs.
    pub(super) fn json(&self) -> Value {
        let damaged: Vec<_> = self.0.damaged.iter().map(ToString::to_string).collect();
        json!({
            "checked_bytes": self.0.checked_bytes,
            "examined_bytes": self.0.examined_bytes,
            "damaged": damaged,
        })
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let VerifyReport { checked_bytes, examined_bytes, damaged, .. } = &self.0;
        if !damaged.is_empty() {
            return damaged.iter().map(|part| format!("damaged: {part}\n")).collect();
        }
        if *checked_bytes > 0 {
            return format!("{} checked, all intact\n", ByteSize(*checked_bytes));
        }
        let values = match examined_bytes {
            0 => "",
            _ => " and every value is a number",
        };
        format!("structure is sound{values}; this layout has no checksums, pack it to get them\n")
    }
}

/// Refuses what no other command would run: a pack is to be a model that works.
fn check_model(source: &Checkpoint) -> Result<()> {
    let checked = || {
        let config = ModelConfig::read(&source.config)?;
        let mut catalog = Catalog::new(source);
        Model::declare(&config, &mut catalog)?;
        expert_shapes(source, &config)?;
        catalog.check_content()
    };
    checked().map_err(Failure::engine).with_context(|| source.root.display().to_string())
}

fn step(bar: &mut Progress, interrupt: &Interrupt, state: PackProgress) -> ControlFlow<()> {
    bar.set(state.done_bytes as f64);
    if interrupt.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

fn failure(error: PackError) -> anyhow::Error {
    match error {
        PackError::Format(error) => Failure::model(error.into()).into(),
        PackError::Shape | PackError::NotFinite { .. } => Failure::model(error.into()).into(),
        PackError::Space { .. } => Failure::disk(error.to_string()).into(),
        PackError::Exists { .. }
        | PackError::Locked { .. }
        | PackError::OtherWork { .. }
        | PackError::Foreign { .. } => Failure::usage(error.to_string()).into(),
        PackError::Recipe { .. } => Failure::usage(error.to_string()).into(),
        PackError::Stopped => anyhow::Error::from(Failure::Interrupted).context(error.to_string()),
        PackError::Io { .. } | PackError::SourceChanged { .. } => Failure::io(error).into(),
    }
}
