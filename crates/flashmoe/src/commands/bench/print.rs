//! Rows as a Markdown table, as JSON lines, or as CSV.

use std::io::{self, Write};

use serde_json::Value;

use super::row::Row;
use crate::arguments::OutputChoice;

/// Columns that only machines read: the table stays narrow enough for a terminal.
const NOT_IN_TABLES: [&str; 5] = ["runs", "sd", "threads", "disk probe GB/s", "memory probe GB/s"];

/// Writes all rows.
pub(super) fn print(form: OutputChoice, rows: &[Row], out: &mut dyn Write) -> io::Result<()> {
    match form {
        OutputChoice::Json => {
            for row in rows {
                writeln!(out, "{}", Value::Object(row.fields.clone()))?;
            }
            Ok(())
        }
        OutputChoice::Csv => {
            let Some(first) = rows.first() else { return Ok(()) };
            let names: Vec<&str> = first.fields.keys().map(String::as_str).collect();
            writeln!(out, "{}", names.join(","))?;
            for row in rows {
                let values: Vec<String> = row.fields.values().map(text).collect();
                writeln!(out, "{}", values.join(","))?;
            }
            Ok(())
        }
        OutputChoice::Md => table(rows, out),
    }
}

fn table(rows: &[Row], out: &mut dyn Write) -> io::Result<()> {
    let Some(first) = rows.first() else { return Ok(()) };
    let names: Vec<&String> =
        first.fields.keys().filter(|name| !NOT_IN_TABLES.contains(&name.as_str())).collect();
    let cell = |row: &Row, name: &str| match name {
        "tok/s" => format!("{} ± {}", text(&row.fields["tok/s"]), text(&row.fields["sd"])),
        name => text(&row.fields[name]),
    };
    let mut lines = vec![names.iter().map(|name| (*name).clone()).collect::<Vec<_>>()];
    lines.extend(rows.iter().map(|row| names.iter().map(|name| cell(row, name)).collect()));
    let width = |column: usize| {
        lines.iter().map(|line: &Vec<String>| line[column].chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..names.len()).map(width).collect();
    for (number, line) in lines.iter().enumerate() {
        let cells: Vec<String> = line
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(column, (cell, &width))| match column {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            })
            .collect();
        writeln!(out, "| {} |", cells.join(" | "))?;
        if number == 0 {
            let rule: Vec<String> = widths
                .iter()
                .enumerate()
                .map(|(column, &width)| match column {
                    0 => "-".repeat(width),
                    _ => format!("{}:", "-".repeat(width.saturating_sub(1))),
                })
                .collect();
            writeln!(out, "| {} |", rule.join(" | "))?;
        }
    }
    Ok(())
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
