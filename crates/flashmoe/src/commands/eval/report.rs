//! The results as Markdown tables or as one JSON object.

use std::time::Duration;

use engine::routing::Recall;
use serde_json::{Map, Value, json};

use super::divergence::Sums;
use super::{tasks, text};
use crate::account::rate;

/// Everything that was measured.
#[derive(Default)]
pub(super) struct Report {
    pub(super) tasks: Option<tasks::Outcome>,
    pub(super) text: Option<text::Outcome>,
    /// By layer; empty unless asked for.
    pub(super) recalls: Vec<Recall>,
}

impl Report {
    pub(super) fn markdown(&self) -> String {
        let mut lines = Vec::new();
        if let Some(outcome) = &self.tasks {
            tasks_lines(outcome, &mut lines);
        }
        if !self.recalls.is_empty() {
            recall_lines(&self.recalls, &mut lines);
        }
        if let Some(outcome) = &self.text {
            text_lines(outcome, &mut lines);
        }
        lines.join("\n")
    }

    pub(super) fn json(&self) -> Value {
        let mut object = Map::new();
        if let Some(outcome) = &self.tasks {
            let tally =
                |tally: &tasks::Tally| json!({"passed": tally.passed, "asked": tally.asked});
            let made = |tally: &tasks::Tally| json!({"made": tally.asked, "valid": tally.passed});
            let by_task: Map<String, Value> =
                outcome.tasks.iter().map(|(name, value)| (name.clone(), tally(value))).collect();
            object.insert("tasks".into(), by_task.into());
            object.insert("all".into(), tally(&outcome.total()));
            object.insert("json".into(), made(&outcome.json));
            object.insert("tool_calls".into(), made(&outcome.calls));
            object.insert("answer_tokens".into(), outcome.answer_tokens.into());
            object.insert("seconds".into(), outcome.seconds.into());
        }
        if !self.recalls.is_empty() {
            let layers: Vec<Value> =
                self.recalls.iter().map(|recall| recall.rate().into()).collect();
            let all = total(&self.recalls);
            let lookahead = json!({
                "recall": all.rate(),
                "by_layer": layers,
                "found_by_true_rank": shares(&all.found, all.tokens),
                "right_by_guessed_rank": shares(&all.right, all.tokens),
            });
            object.insert("lookahead".into(), lookahead);
        }
        if let Some(outcome) = &self.text {
            let sums = |sums: &Sums| {
                let mut fields = json!({"tokens": sums.tokens, "perplexity": sums.perplexity()});
                if outcome.compared {
                    fields["reference_perplexity"] = sums.reference_perplexity().into();
                    fields["kl"] = sums.divergence().into();
                    fields["kl_max"] = sums.divergence_max.into();
                    fields["top1"] = sums.agreement().into();
                }
                fields
            };
            let mut fields = json!({"documents": outcome.documents, "all": sums(&outcome.all)});
            if outcome.answers.tokens > 0 {
                fields["answers"] = sums(&outcome.answers);
            }
            object.insert("text".into(), fields);
        }
        object.into()
    }
}

fn tasks_lines(outcome: &tasks::Outcome, lines: &mut Vec<String>) {
    lines.extend(["| task | passed | asked | % |", "|---|---|---|---|"].map(str::to_owned));
    let row = |name: &str, tally: tasks::Tally| {
        let percent = 100.0 * tally.passed as f64 / tally.asked.max(1) as f64;
        format!("| {name} | {} | {} | {percent:.1} |", tally.passed, tally.asked)
    };
    lines.extend(outcome.tasks.iter().map(|(name, tally)| row(name, *tally)));
    lines.push(row("all", outcome.total()));
    for (name, tally) in [("valid JSON", outcome.json), ("valid tool calls", outcome.calls)] {
        if tally.asked > 0 {
            lines.push(row(name, tally));
        }
    }
    lines.push(String::new());
    let (tokens, seconds) = (outcome.answer_tokens, outcome.seconds);
    let speed = rate(tokens, Duration::from_secs_f64(seconds));
    lines.push(format!("{tokens} tokens in {seconds:.0} s ({speed:.1} tok/s)"));
    lines.push(String::new());
}

fn recall_lines(recalls: &[Recall], lines: &mut Vec<String>) {
    let all = total(recalls);
    let cells = |values: Vec<f64>| {
        let cells: Vec<String> =
            values.iter().map(|value| format!("{:.1}", 100.0 * value)).collect();
        cells.join(" | ")
    };
    let ranks: Vec<String> = (1..=all.found.len()).map(|rank| format!("rank {rank}")).collect();
    lines.push(format!("| next layer prefetched, % | all | {} |", ranks.join(" | ")));
    lines.push(format!("|---{}|", "|---".repeat(ranks.len() + 1)));
    let found = cells(shares(&all.found, all.tokens));
    lines.push(format!(
        "| chosen experts that were guessed | {:.1} | {found} |",
        100.0 * all.rate()
    ));
    let right = cells(shares(&all.right, all.tokens));
    lines.push(format!("| guesses that were right | {:.1} | {right} |", 100.0 * all.rate()));
    let layers = recalls.iter().enumerate().skip(1);
    let layers: Vec<String> =
        layers.map(|(layer, recall)| format!("{layer}: {:.1}", 100.0 * recall.rate())).collect();
    lines.push(String::new());
    lines.push(format!("by layer: {}", layers.join(", ")));
    lines.push(String::new());
}

fn text_lines(outcome: &text::Outcome, lines: &mut Vec<String>) {
    let compared = outcome.compared;
    let more = if compared { " reference's | KL, nats | KL, worst | top-1 % |" } else { "" };
    lines.push(format!("| {} documents | tokens | perplexity |{more}", outcome.documents));
    lines.push(format!("|---|---|---|{}", if compared { "---|---|---|---|" } else { "" }));
    for (name, sums) in [("all tokens", &outcome.all), ("answers", &outcome.answers)] {
        if sums.tokens == 0 {
            continue;
        }
        let mut line = format!("| {name} | {} | {:.4} |", sums.tokens, sums.perplexity());
        if compared {
            line.push_str(&format!(
                " {:.4} | {:.2e} | {:.2e} | {:.2} |",
                sums.reference_perplexity(),
                sums.divergence(),
                sums.divergence_max,
                100.0 * sums.agreement(),
            ));
        }
        lines.push(line);
    }
    lines.push(String::new());
}

/// All layers together.
fn total(recalls: &[Recall]) -> Recall {
    let mut total = Recall::default();
    recalls.iter().for_each(|recall| total.add(recall));
    total
}

fn shares(counts: &[u64], tokens: u64) -> Vec<f64> {
    counts.iter().map(|&count| count as f64 / tokens.max(1) as f64).collect()
}
