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
        let mut text = self.declarations.clone();
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

/// Adds `red[0..256]` up in a fixed tree; the sum is in `red[0]`. For use after every invocation has written its own.
pub(crate) const TREE_SUM: &str = "
fn tree_sum(lid: u32) -> f32 {
    workgroupBarrier();
    for (var half = 128u; half > 0u; half = half >> 1u) {
        if lid < half { red[lid] = red[lid] + red[lid + half]; }
        workgroupBarrier();
    }
    let sum = red[0];
    workgroupBarrier();
    return sum;
}
";

/// The greatest of `red[0..256]`.
pub(crate) const TREE_MAX: &str = "
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
";
