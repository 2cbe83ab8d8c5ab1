//! `bench`: rows of every form, one per test and temperature, and the same logits in every arm.

use crate::support;

use std::path::PathBuf;

use serde_json::Value;
use support::flashmoe;

fn tiny(folder: &tempfile::TempDir) -> PathBuf {
    let model = folder.path().join("model");
    let output = flashmoe(&["synth", "tiny", model.to_str().unwrap(), "--layout", "native"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    model
}

fn bench(model: &std::path::Path, options: &[&str]) -> String {
    let mut arguments = vec!["bench", model.to_str().unwrap(), "--memory", "1G"];
    arguments.extend(options);
    let output = flashmoe(&arguments);
    assert!(output.status.success(), "{options:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn arms_that_only_move_bytes_agree_and_count_what_they_read() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny(&folder);
    let modes = "budget,buffered,page-cache,mmap,resident";
    let options = ["-p", "40", "-n", "4", "-d", "33", "-r", "1", "-o", "json", "--storage", modes];
    let rows: Vec<Value> =
        bench(&model, &options).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 5 * 2 * 2);
    let names = ["pp40 @ d33 cold", "pp40 @ d33", "tg4 @ d33 cold", "tg4 @ d33"];
    for (number, row) in rows.iter().enumerate() {
        assert_eq!(row["test"], names[number % 4]);
        assert_eq!(row["check"], rows[number % 4]["check"], "{row}");
        assert!(row["tok_per_s"].as_f64().unwrap() > 0.0);
    }
    // Four layers of four experts, 55,296 bytes each: read anew for every token without a pool.
    let page_cache = rows.iter().find(|row| row["mode"] == "page-cache" && row["test"] == names[3]);
    assert_eq!(page_cache.unwrap()["gb_per_token"], 0.0009);
    let resident = rows.iter().find(|row| row["mode"] == "resident" && row["test"] == names[3]);
    assert_eq!(resident.unwrap()["hits_percent"], 100.0);
}

/// A context is computed once and gone on from; a test's logits are those of a context computed for it alone.
#[test]
fn a_depth_has_the_same_logits_whatever_was_measured_before() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny(&folder);
    let rows = |depths: &str| -> Vec<Value> {
        let options = ["-p", "20", "-n", "3", "-d", depths, "-r", "2", "-o", "json"];
        let text = bench(&model, &options);
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let check = |rows: &[Value], test: &str| {
        let row = rows.iter().find(|row| row["test"] == test).unwrap();
        row["check"].clone()
    };
    let several = rows("0,40,300,7");
    assert_eq!(several.len(), 4 * 2 * 2);
    for depth in [7, 40, 300] {
        let alone = rows(&depth.to_string());
        for test in [format!("pp20 @ d{depth}"), format!("tg3 @ d{depth} cold")] {
            assert_eq!(check(&several, &test), check(&alone, &test), "{test}");
        }
    }
}

/// A lossy type is named in the rows, and every type gives other logits.
#[test]
fn types_of_keys_and_values_are_arms_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny(&folder);
    let options = ["-p", "40", "-n", "0", "-r", "1", "-o", "json", "--kv-type", "f32,f16,bf16,q8"];
    let rows = bench(&model, &options);
    let rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let warm: Vec<_> = rows.iter().filter(|row| row["test"] == "pp40").collect();
    assert_eq!(
        warm.iter().map(|row| &row["kv_type"]).collect::<Vec<_>>(),
        ["f32", "f16", "bf16", "q8"]
    );
    for (index, row) in warm.iter().enumerate() {
        assert!(warm[..index].iter().all(|other| other["check"] != row["check"]), "{row}");
    }
}

#[test]
fn tables_and_csv_have_a_header_and_a_line_per_row() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny(&folder);
    let options = ["-p", "8", "-n", "0", "-r", "1"];
    let table = bench(&model, &options);
    assert_eq!(table.lines().count(), 6);
    assert!(table.starts_with("| test"));
    // What a row is of, for whoever reads it elsewhere; one run has no spread.
    let caption = table.lines().last().unwrap();
    for words in ["model, ", " MiB; ", "flashmoe 0.", "("] {
        assert!(caption.contains(words), "{caption}");
    }
    assert!(!table.contains('±'), "{table}");
    let rows = bench(&model, &[&options[..], &["--json"]].concat());
    let row: Value = serde_json::from_str(rows.lines().next().unwrap()).unwrap();
    assert_eq!(row["model"], "model");
    for name in ["size_gib", "device", "threads", "commit"] {
        assert!(!row[name].is_null(), "{name}: {row}");
    }
    let plain = |name: &String| name.bytes().all(|it| it.is_ascii_lowercase() || it == b'_');
    assert!(row.as_object().unwrap().keys().all(plain), "{row}");
    let csv = bench(&model, &[&options[..], &["-o", "csv"]].concat());
    let columns: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
    assert_eq!(columns, [columns[0]; 3]);
}

/// The columns of a table.
fn columns(table: &str) -> Vec<String> {
    let head = table.lines().next().unwrap().trim_matches('|');
    head.split('|').map(|name| name.trim().to_owned()).collect()
}

#[test]
fn a_table_is_narrow_unless_all_of_it_is_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny(&folder);
    let options = ["-p", "0", "-n", "4", "-r", "1", "--device", "cpu"];
    let narrow = bench(&model, &options);
    let expected = ["test", "tok/s", "mode", "budget GiB", "hits %", "GB/token", "of bound %"];
    assert_eq!(columns(&narrow), expected);
    assert!(narrow.lines().all(|line| line.chars().count() <= 100), "{narrow}");
    let wide = bench(&model, &[&options[..], &["--wide"]].concat());
    assert!(columns(&wide).len() > 15, "{wide}");
    // What was compared is told.
    let compared = bench(&model, &[&options[..], &["--kv-type", "f32,f16"]].concat());
    assert!(columns(&compared).contains(&"kv type".to_owned()), "{compared}");
}

#[test]
fn nothing_to_measure_is_wrong_usage() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny(&folder);
    let output = flashmoe(&["bench", model.to_str().unwrap(), "-p", "0", "-n", "0"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_sweep_goes_on_where_one_combination_does_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny(&folder);
    let run = |memory: &str| {
        let model = model.to_str().unwrap();
        flashmoe(&["bench", model, "-p", "0", "-n", "4", "-r", "1", "--memory", memory, "--json"])
    };
    let swept = run("1M,1G");
    assert!(swept.status.success(), "{}", String::from_utf8_lossy(&swept.stderr));
    let text = String::from_utf8(swept.stdout).unwrap();
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 3, "{text}");
    assert!(rows[..2].iter().all(|row| row["tok_per_s"].as_f64() > Some(0.0)), "{text}");
    assert_eq!(rows[2]["test"], "does not fit");
    assert!(rows[2]["tok_per_s"].is_null() && rows[2]["mode"] == "budget", "{text}");
    let said = String::from_utf8_lossy(&swept.stderr).into_owned();
    assert!(said.contains("budget in 1.00 MiB") && said.contains("--memory"), "{said}");
    // One alone, or none that fits, is an error as ever.
    for memory in ["1M", "1M,2M"] {
        assert_eq!(run(memory).status.code(), Some(4), "{memory}");
    }
}

#[test]
fn phases_add_up_to_a_tokens_time() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny(&folder);
    let text = bench(&model, &["-p", "0", "-n", "8", "-r", "1", "--phases", "-o", "json"]);
    for row in text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        let phase = |name: &str| row[format!("{name}_ms_per_token").as_str()].as_f64().unwrap();
        let sum: f64 = [
            "attention",
            "delta_net",
            "routing",
            "waiting_for_experts",
            "experts",
            "head",
            "other",
        ]
        .into_iter()
        .map(phase)
        .sum();
        let whole = 1e3 / row["tok_per_s"].as_f64().unwrap();
        assert!((sum / whole - 1.0).abs() < 0.05, "{sum} of {whole}: {row}");
        assert!(phase("experts") > 0.0 && phase("routing") > 0.0 && phase("head") > 0.0, "{row}");
    }
}
