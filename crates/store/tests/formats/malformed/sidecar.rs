//! Malformed files beside the weights: tokenizer configuration, template, generation defaults.

use super::{FolderCase, run_folders};
use crate::common::Folder;

const CONFIG: &str = "tokenizer_config.json";
const JINJA: &str = "chat_template.jinja";
const JSON: &str = "chat_template.json";
const GENERATION: &str = "generation_config.json";

#[test]
fn sidecars() {
    let cases: &[FolderCase] = &[
        ("tokenizer configuration empty", CONFIG, &["JSON"], |f| drop(f.write(CONFIG, ""))),
        ("tokenizer configuration a list", CONFIG, &["not an object"], |f| {
            drop(f.write(CONFIG, "[]"))
        }),
        ("tokenizer configuration, key twice", CONFIG, &["twice"], |f| {
            drop(f.write(CONFIG, r#"{"a":1,"a":2}"#));
        }),
        ("tokenizer configuration too large", CONFIG, &["file size", "limit"], |f| {
            drop(f.write(CONFIG, " ".repeat((16 << 20) + 1)));
        }),
        ("template a number", CONFIG, &["chat_template", "3"], |f| {
            drop(f.write(CONFIG, r#"{"chat_template":3}"#));
        }),
        ("template list without templates", CONFIG, &["chat_template", "without template"], |f| {
            drop(f.write(CONFIG, r#"{"chat_template":[{"name":"default"}]}"#));
        }),
        ("template list of numbers", CONFIG, &["chat_template"], |f| {
            drop(f.write(CONFIG, r#"{"chat_template":[1,2]}"#));
        }),
        ("template file not text", JINJA, &["text", "utf-8"], |f| {
            drop(f.write(JINJA, b"\xff\xfe{"))
        }),
        ("template file of two megabytes", JINJA, &["file size", "limit"], |f| {
            drop(f.write(JINJA, "x".repeat(2 << 20)));
        }),
        ("template file a list", JSON, &["not an object"], |f| drop(f.write(JSON, "[]"))),
        ("template file with a number", JSON, &["chat_template"], |f| {
            drop(f.write(JSON, r#"{"chat_template":false}"#));
        }),
        ("generation defaults empty", GENERATION, &["JSON"], |f| drop(f.write(GENERATION, ""))),
        ("generation defaults a text", GENERATION, &["not an object"], |f| {
            drop(f.write(GENERATION, "\"hot\""));
        }),
        ("generation defaults, nesting", GENERATION, &["JSON"], |f| {
            drop(f.write(GENERATION, r#"{"a":"#.repeat(5000)));
        }),
    ];
    run_folders(Folder::mlx, cases);
}
