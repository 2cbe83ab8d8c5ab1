//! Prometheus' text format 0.0.4.
//!
//! A family's samples must stand together, so what is written of a family that is there already, for another model, is
//! added to it.

use std::collections::HashMap;
use std::fmt::{Display, Write};

use crate::work::Histogram;

/// Prometheus' text format.
#[derive(Debug)]
pub(super) struct Exposition {
    /// Each with its head, in the order in which they were begun.
    families: Vec<String>,
    /// Where a family is.
    known: HashMap<String, usize>,
    /// The family that is written.
    current: usize,
    /// What names begin with.
    prefix: &'static str,
    /// A label of every sample.
    label: Option<(&'static str, String)>,
}

impl Exposition {
    /// An empty page of names that begin with `prefix`.
    pub(super) fn new(prefix: &'static str) -> Self {
        Self { families: Vec::new(), known: HashMap::new(), current: 0, prefix, label: None }
    }

    /// The families that follow have other names, and a label in each sample, or none.
    pub(super) fn go_on_as(&mut self, prefix: &'static str, label: Option<(&'static str, String)>) {
        self.prefix = prefix;
        self.label = label;
    }

    /// Whether samples have a label of a model.
    pub(super) fn has_label(&self) -> bool {
        self.label.is_some()
    }

    pub(super) fn family(&mut self, name: &str, kind: &str, help: &str) {
        let prefix = self.prefix;
        let next = self.families.len();
        self.current = *self.known.entry(format!("{prefix}{name}")).or_insert(next);
        if self.current == next {
            self.families.push(String::new());
            self.line(format_args!("# HELP {prefix}{name} {help}\n# TYPE {prefix}{name} {kind}\n"));
        }
    }

    /// All of it.
    pub(super) fn text(self) -> String {
        self.families.concat()
    }

    pub(super) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let own = self.label.iter().map(|(label, text)| (*label, text.as_str()));
        let labels: Vec<String> = own
            .chain(labels.iter().copied())
            .map(|(label, text)| format!("{label}=\"{}\"", escaped(text)))
            .collect();
        let braces = |inner: String| if inner.is_empty() { inner } else { format!("{{{inner}}}") };
        let prefix = self.prefix;
        self.line(format_args!("{prefix}{name}{} {value}\n", braces(labels.join(","))));
    }

    pub(super) fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    pub(super) fn labelled<'a>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'a &'static str, &'a u64)>,
    ) {
        self.family(name, "counter", help);
        for (text, value) in values {
            self.sample(name, &[(label, text)], value);
        }
    }

    pub(super) fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.family(name, "histogram", help);
        self.buckets(name, histogram.cumulative(), histogram.count(), histogram.sum());
    }

    /// Samples of a histogram: how many figures are at or below each edge, how many there are, their sum.
    pub(super) fn buckets(
        &mut self,
        name: &str,
        cumulative: impl Iterator<Item = (f64, u64)>,
        count: u64,
        sum: f64,
    ) {
        let bucket = format!("{name}_bucket");
        for (edge, below) in cumulative {
            self.sample(&bucket, &[("le", &edge.to_string())], below);
        }
        self.sample(&bucket, &[("le", "+Inf")], count);
        self.sample(&format!("{name}_sum"), &[], sum);
        self.sample(&format!("{name}_count"), &[], count);
    }

    fn line(&mut self, arguments: std::fmt::Arguments<'_>) {
        let family = &mut self.families[self.current];
        family.write_fmt(arguments).expect("a string takes all text");
    }
}

/// A label's text between its quotes.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
