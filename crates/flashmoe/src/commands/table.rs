//! Rows of figures as a Markdown table, as JSON lines, or as CSV, the latter two with names that programs can use. All
//! rows of a table have the same columns; a value may come with its spread in the column `sd`, which a table joins to
//! `tok/s`.

use std::io::{self, Write};

use serde_json::{Map, Value};

use crate::arguments::OutputChoice;

/// Names and values, in order.
pub(crate) type Row = Map<String, Value>;

/// Writes all rows. Markdown leaves out the columns `hidden`, and those without any value: a table has to fit a
/// terminal.
pub(crate) fn print(
    form: OutputChoice,
    rows: &[Row],
    hidden: &[&str],
    out: &mut dyn Write,
) -> io::Result<()> {
    match form {
        OutputChoice::Json => {
            for row in rows {
                let named = row.iter().map(|(name, value)| (machine_name(name), value.clone()));
                writeln!(out, "{}", Value::Object(named.collect()))?;
            }
            Ok(())
        }
        OutputChoice::Csv => {
            let Some(first) = rows.first() else { return Ok(()) };
            let names: Vec<String> = first.keys().map(|name| machine_name(name)).collect();
            writeln!(out, "{}", names.join(","))?;
            for row in rows {
                let values: Vec<String> = row.values().map(text).collect();
                writeln!(out, "{}", values.join(","))?;
            }
            Ok(())
        }
        OutputChoice::Md => table(rows, hidden, out),
    }
}

/// A column's name in JSON and CSV: lower case, without spaces, its unit last. `GB/token` is `gb_per_token`.
pub(crate) fn machine_name(name: &str) -> String {
    name.to_lowercase().replace(" %", "_percent").replace('/', "_per_").replace([' ', '-'], "_")
}

fn table(rows: &[Row], hidden: &[&str], out: &mut dyn Write) -> io::Result<()> {
    let Some(first) = rows.first() else { return Ok(()) };
    let is_shown = |name: &&String| {
        !hidden.contains(&name.as_str()) && rows.iter().any(|row| !row[*name].is_null())
    };
    let names: Vec<&String> = first.keys().filter(is_shown).collect();
    let cell = |row: &Row, name: &str| match name {
        // One run has no spread, none has no speed.
        "tok/s" if row["runs"].as_u64() > Some(1) => {
            format!("{} ± {}", text(&row["tok/s"]), text(&row["sd"]))
        }
        name => text(&row[name]),
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

#[cfg(test)]
mod tests {
    use super::machine_name;

    #[test]
    fn names_need_no_quoting() {
        let names =
            ["tok/s", "hits %", "T_ssd ms", "disk probe GB/s", "budget GiB", "key-value cache"];
        let expected = [
            "tok_per_s",
            "hits_percent",
            "t_ssd_ms",
            "disk_probe_gb_per_s",
            "budget_gib",
            "key_value_cache",
        ];
        assert_eq!(names.map(machine_name), expected);
    }
}
