//! What the text of every kernel must keep to, whatever GPU it is for. Each rule names what it found.

use gpu::op::Op;
use gpu::op::row_index::Kernel;

use crate::translate::Translated;

/// Bytes of workgroup memory: two groups of a core of Apple's GPUs have as much.
const WORKGROUP_BYTES: u32 = 16 << 10;
/// Buffers: Metal binds 31, wgpu takes one for parameters and one for sizes.
const BUFFERS: u32 = 29;
/// Bytes of parameters that every Vulkan driver takes.
const IMMEDIATE_BYTES: u32 = 128;

/// Words that no text may have, and why.
const FORBIDDEN: [(&str, &str); 12] = [
    ("loop_bound", "counts the rounds of a loop"),
    ("naga_div", "guards a division"),
    ("naga_mod", "guards a remainder"),
    ("metal::min(unsigned(", "clamps an index"),
    ("_buffer_sizes.", "asks for the size of a buffer"),
    ("simdgroup", "depends on the width of a subgroup, which drivers choose"),
    ("simd_", "depends on the width of a subgroup, which drivers choose"),
    ("quad_", "depends on the width of a subgroup, which drivers choose"),
    ("atomic", "depends on the order of invocations"),
    ("double", "is a type that Metal lacks"),
    ("long", "is a type that some GPUs emulate"),
    ("half ", "computes in f16, which not every GPU does"),
];

/// The breaches in a text of Metal's language.
pub(crate) fn in_text(text: &str) -> Vec<String> {
    let found = FORBIDDEN.iter().filter(|(word, _)| text.contains(word));
    let mut found: Vec<_> = found.map(|(word, why)| format!("\"{word}\": {why}")).collect();
    // A declaration has a type before the name.
    let zeroed = |line: &&str| line.split_whitespace().skip(1).eq(["=", "{};"]);
    let zeroed = text.lines().find(zeroed).map(|line| format!("{}: zeroes", line.trim()));
    found.extend(zeroed);
    found
}

/// All breaches of a kernel.
pub(crate) fn breaches(kernel: &Translated) -> Vec<String> {
    let mut found = in_text(&kernel.metal[0]);
    if [Op::Group, Op::ChosenRows(Kernel::Choice)].contains(&kernel.op) {
        // They count by them, and a count does not depend on their order; places come from ranks.
        found.retain(|breach| !breach.starts_with("\"atomic\""));
    }
    // What is listed is the text of the oldest version; the others must be the same.
    let body = |text: &str| text.split_once('\n').map(|(_, rest)| rest.to_owned());
    if kernel.metal.iter().any(|text| body(text) != body(&kernel.metal[0])) {
        found.push("its text depends on the version of Metal's language".to_owned());
    }
    for (what, has, limit) in [
        ("bytes of workgroup memory", kernel.workgroup_bytes, WORKGROUP_BYTES),
        ("buffers", kernel.buffers, BUFFERS),
        ("bytes of parameters", kernel.immediate_bytes, IMMEDIATE_BYTES - 1),
    ] {
        if has > limit {
            found.push(format!("{has} {what}, {limit} at most"));
        }
    }
    found
}
