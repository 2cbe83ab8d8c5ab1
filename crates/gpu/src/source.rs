//! The text of a kernel: declarations of its buffers and parameters around a generated body.

use std::fmt::Write as _;

/// Invocations of every workgroup.
pub(crate) const GROUP: u32 = 256;

/// How a kernel uses a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// A kernel in the making. Buffers are bound in the order of their declaration, parameters are words.
#[derive(Clone, Debug, Default)]
pub(crate) struct Source {
    extensions: String,
    declarations: String,
    parameters: Vec<&'static str>,
    shared: String,
    functions: String,
    pub(crate) accesses: Vec<Access>,
}

impl Source {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// An extension of the language that the text uses.
    pub(crate) fn extension(mut self, name: &str) -> Self {
        let _ = writeln!(self.extensions, "enable {name};");
        self
    }

    fn buffer(mut self, name: &str, kind: &str, access: Access) -> Self {
        let index = self.accesses.len();
        let mode = if access == Access::Read { "read" } else { "read_write" };
        let _ = writeln!(
            self.declarations,
            "@group(0) @binding({index}) var<storage, {mode}> {name}: array<{kind}>;"
        );
        self.accesses.push(access);
        self
    }

    /// A buffer that is read.
    pub(crate) fn read(self, name: &str, kind: &str) -> Self {
        self.buffer(name, kind, Access::Read)
    }

    /// A buffer that is read and written.
    pub(crate) fn write(self, name: &str, kind: &str) -> Self {
        self.buffer(name, kind, Access::Write)
    }

    /// Parameters, `p.name` in the body; words.
    pub(crate) fn parameters(mut self, names: &[&'static str]) -> Self {
        self.parameters.extend(names);
        self
    }

    /// Memory that the workgroup shares.
    pub(crate) fn shared(mut self, name: &str, kind: &str) -> Self {
        let _ = writeln!(self.shared, "var<workgroup> {name}: {kind};");
        self
    }

    /// A function, or several.
    pub(crate) fn function(mut self, text: &str) -> Self {
        self.functions.push_str(text);
        self
    }

    /// Bytes of the parameters.
    pub(crate) fn parameter_bytes(&self) -> u32 {
        4 * self.parameters.len() as u32
    }

    /// The whole module; `body` is that of `main`, where `lid` is the invocation and `wid` the workgroup.
    pub(crate) fn text(&self, body: &str) -> String {
        let mut text = format!("{}{}", self.extensions, self.declarations);
        if !self.parameters.is_empty() {
            text.push_str("struct Parameters {\n");
            for name in &self.parameters {
                let _ = writeln!(text, "    {name}: u32,");
            }
            text.push_str("}\nvar<immediate> p: Parameters;\n");
        }
        text.push_str(&self.shared);
        text.push_str(&self.functions);
        let _ = write!(
            text,
            "@compute @workgroup_size({GROUP})\n\
             fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) wid: vec3<u32>) {{\n{body}}}\n"
        );
        text
    }
}

/// What the texts of all kernels of a device depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Form {
    /// 32 invocations in the order of their numbers are a subgroup, and add up what they hold without workgroup memory.
    /// It shows in no bit.
    pub subgroups: bool,
}

/// `tree_sum`: adds `red[0..256]` up in a fixed order; every invocation has the sum. For use after every invocation has
/// written its own: two rounds of sixteen, with as few barriers as possible.
pub(crate) fn tree_sum(form: Form) -> &'static str {
    match form.subgroups {
        true => {
            "
fn tree_sum(lid: u32) -> f32 {
    let mine = red[lid];
    red[lid] = mine + subgroupShuffleXor(mine, 16u);
    workgroupBarrier();
    let at = lid & 15u;
    var sum = ((red[at] + red[at + 32u]) + (red[at + 64u] + red[at + 96u]))
        + ((red[at + 128u] + red[at + 160u]) + (red[at + 192u] + red[at + 224u]));
    sum = sum + subgroupShuffleXor(sum, 1u);
    sum = sum + subgroupShuffleXor(sum, 2u);
    sum = sum + subgroupShuffleXor(sum, 4u);
    sum = sum + subgroupShuffleXor(sum, 8u);
    workgroupBarrier();
    return sum;
}
"
        }
        false => {
            "
fn sixteen(first: u32, step: u32) -> f32 {
    let a = (red[first] + red[first + step]) + (red[first + 2u * step] + red[first + 3u * step]);
    let b = (red[first + 4u * step] + red[first + 5u * step]) + (red[first + 6u * step] + red[first + 7u * step]);
    let c = (red[first + 8u * step] + red[first + 9u * step]) + (red[first + 10u * step] + red[first + 11u * step]);
    let d = (red[first + 12u * step] + red[first + 13u * step]) + (red[first + 14u * step] + red[first + 15u * step]);
    return (a + b) + (c + d);
}
fn tree_sum(lid: u32) -> f32 {
    workgroupBarrier();
    let sum = sixteen(lid & 15u, 16u);
    workgroupBarrier();
    if lid < 16u { red[lid] = sum; }
    workgroupBarrier();
    let all = sixteen(0u, 1u);
    workgroupBarrier();
    return all;
}
"
        }
    }
}

/// `tree_max`: the greatest of `red[0..256]`.
pub(crate) fn tree_max(form: Form) -> &'static str {
    match form.subgroups {
        true => {
            "
fn tree_max(lid: u32) -> f32 {
    var most = red[lid];
    most = max(most, subgroupShuffleXor(most, 1u));
    most = max(most, subgroupShuffleXor(most, 2u));
    most = max(most, subgroupShuffleXor(most, 4u));
    most = max(most, subgroupShuffleXor(most, 8u));
    most = max(most, subgroupShuffleXor(most, 16u));
    red[lid] = most;
    workgroupBarrier();
    let low = max(max(red[0], red[32]), max(red[64], red[96]));
    let high = max(max(red[128], red[160]), max(red[192], red[224]));
    let found = max(low, high);
    workgroupBarrier();
    return found;
}
"
        }
        false => {
            "
fn tree_max(lid: u32) -> f32 {
    workgroupBarrier();
    for (var half = 128u; half > 0u; half = half >> 1u) {
        if lid < half { red[lid] = max(red[lid], red[lid + half]); }
        workgroupBarrier();
    }
    let found = red[0];
    workgroupBarrier();
    return found;
}
"
        }
    }
}
