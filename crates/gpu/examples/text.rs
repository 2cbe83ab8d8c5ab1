//! Prints the text of GPU kernels: `cargo run -p flashmoe-gpu --example text` lists the groups of kernels and how many
//! each has; with a group's name, and a number below its count, it prints that kernel as WGSL and in Metal's language.

use std::collections::BTreeMap;
use std::io::{self, Write};

use gpu::op::{Form, Op, all::all};

#[path = "../tests/shaders/group.rs"]
mod group;
#[path = "../tests/shaders/translate.rs"]
#[expect(dead_code, reason = "the tests use the rest")]
mod translate;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = io::stdout().lock();
    let mut groups: BTreeMap<String, Vec<Op>> = BTreeMap::new();
    for op in all().filter(|op| !op.uses_matrices()) {
        groups.entry(group::group(op)).or_default().push(op);
    }
    let mut arguments = std::env::args().skip(1);
    let Some(name) = arguments.next() else {
        for (group, ops) in &groups {
            writeln!(out, "{:5} {group}", ops.len())?;
        }
        return Ok(());
    };
    let index: usize = arguments.next().map_or(Ok(0), |number| number.parse())?;
    let ops = groups
        .get(&name)
        .ok_or_else(|| format!("no group {name:?}: see the list without arguments"))?;
    let op =
        ops.get(index).ok_or_else(|| format!("{name:?} has {} kernels, from 0 on", ops.len()))?;
    let metal = translate::translate(*op)?.metal;
    writeln!(out, "// {op:?}\n{}\n// Metal\n{}", op.text(Form::default()), metal[0])?;
    Ok(())
}
