//! `flashmoe report`: everything that an issue needs to say of a model on a machine, as Markdown and as JSON.
//!
//! Each part is what its own command prints: `doctor`, `inspect`, `plan`, `bench`, `verify`, `eval`. A part that fails
//! is reported with its reason, and the others go on. Nothing private is written (`private.rs`).

mod private;
mod speed;

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::doctor::Findings;
use super::eval::{FixedAnswers, ask_fixed, create, score_fixed};
use super::fingerprint::Fingerprint;
use super::inspect;
use super::pack::Verified;
use super::plan::Forecast;
use crate::arguments::{
    InspectArguments, ModelArguments, PathArguments, ReportArguments, RoutingChoice,
};
use crate::failure::{Failure, in_words};
use crate::models::short_name;
use crate::progress::say;
pub(super) use private::Private;

/// Asked greedily; they change with the number of the report's form only.
const QUESTIONS: &str = include_str!("questions.jsonl");
/// Scored for perplexity; as fixed.
const TEXT: &str = include_str!("text.txt");
/// Number of the form: questions, text and tests of two reports of one form are the same.
const FORM: u32 = 1;
/// Most tokens of an answer.
const ANSWER_TOKENS: usize = 64;
/// Letters of an answer that the Markdown shows.
const SHOWN_LETTERS: usize = 60;

/// What a part found.
struct Found {
    markdown: String,
    json: Value,
}

/// A part of the report.
struct Part {
    /// Its name in the JSON.
    name: &'static str,
    title: &'static str,
    find: fn(&ModelArguments) -> Result<Found>,
}

const PARTS: [Part; 7] = [
    Part { name: "doctor", title: "Machine", find: machine },
    Part { name: "inspect", title: "Model", find: model },
    Part { name: "plan", title: "Plan", find: plan },
    Part { name: "bench", title: "Speed", find: speed::measure },
    Part { name: "verify", title: "Files", find: files },
    Part { name: "answers", title: "Ten questions at temperature 0", find: answers },
    Part { name: "perplexity", title: "Perplexity of a fixed text", find: perplexity },
];

pub(crate) fn report(arguments: &ReportArguments, out: &mut dyn Write) -> Result<()> {
    let model = &arguments.model;
    model.refuse_drafts("a report measures single steps")?;
    if model.routing != RoutingChoice::Model {
        return Err(Failure::usage("--routing: a report asks the model itself").into());
    }
    let [markdown_path, json_path] = ["md", "json"].map(|ending| {
        let mut path = arguments.to.clone().into_os_string();
        path.push(format!(".{ending}"));
        PathBuf::from(path)
    });
    // Before the work, so that a wrong path costs nothing.
    let mut markdown_file = create(&markdown_path)?;
    let json_file = create(&json_path);
    let mut json_file = json_file.inspect_err(|_| _ = std::fs::remove_file(&markdown_path))?;
    say(&format!(
        "the report says what this machine is (processor, memory, GPU, speed of the disk), the name and shape of the \
         model ({}), speeds, answers to ten fixed questions and the perplexity of a fixed text; no path, no name of \
         this machine or its user; read it before you publish it. It takes minutes, Ctrl-C ends it with what is there",
        short_name(&model.model)
    ));
    let private = Private::of(&model.model);
    let mut object = head(model);
    let mut markdown = title(&object);
    let mut failed = Vec::new();
    let mut interrupted = None;
    for (index, part) in PARTS.iter().enumerate() {
        say(&format!("{} of {}: {}", index + 1, PARTS.len(), part.title));
        let found = match (part.find)(model) {
            Err(error) if Failure::is_interruption(&error) => {
                interrupted = Some(error);
                break;
            }
            Err(error) => {
                failed.push(part.name);
                let reason = in_words(&error);
                say(&format!("{}: {reason}", part.name));
                Found { markdown: format!("failed: {reason}\n"), json: json!({"failed": reason}) }
            }
            Ok(found) => found,
        };
        let Found { markdown: text, mut json } = found;
        private.json(&mut json);
        object.insert(part.name.to_owned(), json);
        markdown.push_str(&format!("\n## {}\n\n{}", part.title, private.text(&text)));
    }
    object.insert("complete".to_owned(), (interrupted.is_none() && failed.is_empty()).into());
    let pretty = serde_json::to_string_pretty(&object).map_err(Failure::io)?;
    for (file, text) in [(&mut markdown_file, markdown), (&mut json_file, format!("{pretty}\n"))] {
        file.write_all(text.as_bytes()).and_then(|()| file.flush()).map_err(Failure::io)?;
    }
    let [markdown_path, json_path] = [markdown_path, json_path].map(|it| it.display().to_string());
    writeln!(out, "{markdown_path}, {json_path}").map_err(Failure::io)?;
    match (interrupted, failed.as_slice()) {
        (Some(error), _) => Err(error),
        (None, []) => Ok(()),
        (None, failed) => {
            let reason = anyhow::anyhow!("failed: {}; the report has why", failed.join(", "));
            Err(Failure::Run(reason).into())
        }
    }
}

/// What does not have to be measured.
fn head(model: &ModelArguments) -> Map<String, Value> {
    let head = json!({
        "form": FORM,
        "model": short_name(&model.model),
        "version": env!("CARGO_PKG_VERSION"),
        "commit": env!("FLASHMOE_COMMIT"),
        "system": std::env::consts::OS,
        "processor": std::env::consts::ARCH,
    });
    let Value::Object(head) = head else { unreachable!("written as an object above") };
    head
}

fn title(head: &Map<String, Value>) -> String {
    let text = |name: &str| head[name].as_str().unwrap_or_default().to_owned();
    let [model, version, commit] = ["model", "version", "commit"].map(text);
    let [system, processor] = ["system", "processor"].map(text);
    format!("# {model}\n\nflashmoe {version} ({commit}), {system}, {processor}; report {FORM}\n")
}

/// Lines as they are.
fn fenced(text: &str) -> String {
    format!("```\n{}\n```\n", text.trim_end())
}

fn machine(model: &ModelArguments) -> Result<Found> {
    let findings = Findings::look(Some(model.model.as_path()))?;
    Ok(Found { markdown: fenced(&findings.text()), json: findings.json() })
}

fn model(model: &ModelArguments) -> Result<Found> {
    let printed = |json| {
        let path = PathArguments { model: model.model.clone(), json };
        let mut out = Vec::new();
        inspect(&InspectArguments { path, program: false }, &mut out)?;
        anyhow::Ok(String::from_utf8_lossy(&out).into_owned())
    };
    let json = serde_json::from_str(&printed(true)?).map_err(|error| Failure::Run(error.into()))?;
    Ok(Found { markdown: fenced(&printed(false)?), json })
}

fn plan(model: &ModelArguments) -> Result<Found> {
    let forecast = Forecast::make(model, None)?;
    Ok(Found { markdown: fenced(&forecast.text()), json: forecast.json() })
}

fn files(model: &ModelArguments) -> Result<Found> {
    let verified = Verified::read(&model.model)?;
    Ok(Found { markdown: fenced(&verified.text()), json: verified.json() })
}

fn answers(model: &ModelArguments) -> Result<Found> {
    let FixedAnswers { answers, figures } = ask_fixed(model, QUESTIONS, ANSWER_TOKENS)?;
    let mut lines = vec!["| question | right | tokens | check | answer |".to_owned()];
    lines.push("|---|---|--:|---|---|".to_owned());
    let mut all = Fingerprint::START;
    let mut rows = Vec::new();
    for answer in &answers {
        let tokens: Vec<u64> =
            answer["tokens"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
        let check = tokens.iter().fold(Fingerprint::START, |sum, &token| sum.word(token));
        all = tokens.iter().fold(all, |sum, &token| sum.word(token));
        let (task, right) = (&answer["task"], answer["passed"] == true);
        let content = answer["content"].as_str().unwrap_or_default();
        lines.push(format!(
            "| {} | {} | {} | {} | {} |",
            task.as_str().unwrap_or_default(),
            if right { "yes" } else { "no" },
            tokens.len(),
            check.short(),
            cell(content)
        ));
        rows.push(json!({
            "question": task,
            "right": right,
            "tokens": tokens.len(),
            "check": check.short(),
            "content": content,
        }));
    }
    lines.push(format!("\ncheck of all: {}\n", all.short()));
    let json = json!({"answers": rows, "check": all.short(), "figures": figures});
    Ok(Found { markdown: lines.join("\n"), json })
}

/// The beginning of an answer, as a cell of a table shows it.
fn cell(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut shown: String = words.chars().take(SHOWN_LETTERS).collect();
    if shown.len() < words.len() {
        shown.push('…');
    }
    // In code nothing is markup; a cell ends at a stroke even there.
    format!("`{}`", shown.replace('`', "'").replace('|', "\\|"))
}

fn perplexity(model: &ModelArguments) -> Result<Found> {
    let json = score_fixed(model, TEXT)?;
    let all = &json["text"]["all"];
    let value = all["perplexity"].as_f64().unwrap_or(f64::NAN);
    let markdown = format!("{value:.4} over {} tokens\n", all["tokens"]);
    Ok(Found { markdown, json })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_stays_within_its_cell() {
        assert_eq!(cell("a | b\n`c`"), "`a \\| b 'c'`");
        assert_eq!(cell(&"ä".repeat(70)).chars().count(), SHOWN_LETTERS + 3);
    }
}
