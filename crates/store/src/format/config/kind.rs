//! The types that a configuration's values have, each with the range that makes sense.
//!
//! A value of another type, or outside the range, is an error: taking it as absent would compute with a default
//! that the model was not made for, and no error would show it.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

/// A type of value: how it is read, and what to say of one that it is not.
pub trait Kind {
    /// What is read.
    type Read<'a>;
    /// The value, if it is of this type and in range.
    fn read<'a>(&self, value: &'a Value) -> Option<Self::Read<'a>>;
    /// What a value must be, to follow "is not".
    fn expected(&self) -> Cow<'static, str>;
    /// The largest number, where there is one.
    fn limit(&self) -> Option<u64> {
        None
    }
    /// True for lists, where one entry may be to blame.
    fn has_entries(&self) -> bool {
        false
    }
}

/// A whole number within bounds.
pub struct Size(pub(super) RangeInclusive<u64>);
/// A finite number within bounds.
pub struct Number(pub(super) RangeInclusive<f64>);
/// True or false.
pub struct Flag;
/// A flag that must be off: what it stands for is not computed here.
pub struct Off;
/// A flag that must be on: without what it stands for nothing is computed here.
pub struct On;
/// A whole number that must be this one: others ask for something that is not computed here.
pub struct Only(pub(super) u64);
/// Any text.
pub struct Text;
/// One of several texts.
pub struct OneOf(pub(super) &'static [&'static str]);
/// A list of texts, each one of several.
pub struct ListOf(pub(super) &'static [&'static str]);
/// For each layer whether it has a part of its own (`F`, "full") or another's (`S`, "shared"): letters, or a list of
/// the words.
pub struct Owners;
/// The number of a layer up to this one, or -1 for the last.
pub struct Last(pub(super) u64);
/// A list of whole numbers within bounds.
pub struct Sizes(pub(super) RangeInclusive<u64>);
/// A list without entries: what it could name is not computed here.
pub struct Empty;
/// No value: what one could ask for is not computed here.
pub struct Nothing;
/// A token id, or a list of them.
pub struct Tokens;
/// One of several whole numbers.
pub struct AnyOf(pub(super) &'static [u64]);
/// An object, whose own keys are read by themselves.
pub struct Object;

impl Kind for Size {
    type Read<'a> = usize;

    fn read(&self, value: &Value) -> Option<usize> {
        value.as_u64().filter(|number| self.0.contains(number))?.try_into().ok()
    }

    fn expected(&self) -> Cow<'static, str> {
        match (self.0.start(), self.0.end()) {
            (1, high) => format!("a positive whole number up to {high}").into(),
            (low, high) => format!("a whole number from {low} to {high}").into(),
        }
    }

    fn limit(&self) -> Option<u64> {
        Some(*self.0.end())
    }
}

impl Kind for Number {
    type Read<'a> = f64;

    fn read(&self, value: &Value) -> Option<f64> {
        value.as_f64().filter(|number| self.0.contains(number))
    }

    fn expected(&self) -> Cow<'static, str> {
        format!("a number from {:?} to {:?}", self.0.start(), self.0.end()).into()
    }
}

impl Kind for Flag {
    type Read<'a> = bool;

    fn read(&self, value: &Value) -> Option<bool> {
        value.as_bool()
    }

    fn expected(&self) -> Cow<'static, str> {
        "true or false".into()
    }
}

impl Kind for Off {
    type Read<'a> = ();

    fn read(&self, value: &Value) -> Option<()> {
        (value.as_bool() == Some(false)).then_some(())
    }

    fn expected(&self) -> Cow<'static, str> {
        "false, and only that is supported".into()
    }
}

impl Kind for On {
    type Read<'a> = ();

    fn read(&self, value: &Value) -> Option<()> {
        (value.as_bool() == Some(true)).then_some(())
    }

    fn expected(&self) -> Cow<'static, str> {
        "true, and only that is supported".into()
    }
}

impl Kind for Only {
    type Read<'a> = ();

    fn read(&self, value: &Value) -> Option<()> {
        (value.as_u64() == Some(self.0)).then_some(())
    }

    fn expected(&self) -> Cow<'static, str> {
        format!("{}, and only that is supported", self.0).into()
    }
}

impl Kind for Text {
    type Read<'a> = &'a str;

    fn read<'a>(&self, value: &'a Value) -> Option<&'a str> {
        value.as_str()
    }

    fn expected(&self) -> Cow<'static, str> {
        "a text".into()
    }
}

impl Kind for OneOf {
    type Read<'a> = &'static str;

    fn read(&self, value: &Value) -> Option<&'static str> {
        let text = value.as_str()?;
        self.0.iter().copied().find(|&known| known == text)
    }

    fn expected(&self) -> Cow<'static, str> {
        format!("{}, and only that is supported", self.0.join(" or ")).into()
    }
}

impl Kind for ListOf {
    type Read<'a> = Vec<&'static str>;

    fn read(&self, value: &Value) -> Option<Vec<&'static str>> {
        value.as_array()?.iter().map(|entry| OneOf(self.0).read(entry)).collect()
    }

    fn expected(&self) -> Cow<'static, str> {
        format!("a list of {}", self.0.join(" and ")).into()
    }

    fn has_entries(&self) -> bool {
        true
    }
}

impl Kind for Sizes {
    type Read<'a> = Vec<usize>;

    fn read(&self, value: &Value) -> Option<Vec<usize>> {
        value.as_array()?.iter().map(|entry| Size(self.0.clone()).read(entry)).collect()
    }

    fn expected(&self) -> Cow<'static, str> {
        format!("a list of whole numbers from {} to {}", self.0.start(), self.0.end()).into()
    }

    fn has_entries(&self) -> bool {
        true
    }
}

impl Kind for Owners {
    type Read<'a> = Vec<bool>;

    fn read(&self, value: &Value) -> Option<Vec<bool>> {
        if let Some(letters) = value.as_str() {
            let letter = |letter: char| match letter {
                'F' => Some(true),
                'S' => Some(false),
                _ => None,
            };
            return letters.chars().map(letter).collect();
        }
        let words = ListOf(&["full", "shared"]).read(value)?;
        Some(words.into_iter().map(|word| word == "full").collect())
    }

    fn expected(&self) -> Cow<'static, str> {
        "letters F and S, or a list of full and shared".into()
    }

    fn has_entries(&self) -> bool {
        true
    }
}

impl Kind for Last {
    type Read<'a> = Option<usize>;

    fn read(&self, value: &Value) -> Option<Option<usize>> {
        match value.as_i64()? {
            -1 => Some(None),
            layer => Size(0..=self.0).read(&layer.into()).map(Some),
        }
    }

    fn expected(&self) -> Cow<'static, str> {
        format!("a layer up to {}, or -1", self.0).into()
    }

    fn limit(&self) -> Option<u64> {
        Some(self.0)
    }
}

impl Kind for Empty {
    type Read<'a> = ();

    fn read(&self, value: &Value) -> Option<()> {
        value.as_array()?.is_empty().then_some(())
    }

    fn expected(&self) -> Cow<'static, str> {
        "an empty list, and only that is supported".into()
    }
}

impl Kind for Nothing {
    type Read<'a> = ();

    fn read(&self, _: &Value) -> Option<()> {
        None
    }

    fn expected(&self) -> Cow<'static, str> {
        "null, and only that is supported".into()
    }
}

impl Kind for Tokens {
    type Read<'a> = Vec<u32>;

    fn read(&self, value: &Value) -> Option<Vec<u32>> {
        let one = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        match value {
            // An empty list says nothing; null is how files say that.
            Value::Array(ids) if ids.is_empty() => None,
            Value::Array(ids) => ids.iter().map(one).collect(),
            single => one(single).map(|id| vec![id]),
        }
    }

    fn expected(&self) -> Cow<'static, str> {
        "a token id or a list of them".into()
    }

    fn has_entries(&self) -> bool {
        true
    }
}

impl Kind for AnyOf {
    type Read<'a> = u64;

    fn read(&self, value: &Value) -> Option<u64> {
        value.as_u64().filter(|number| self.0.contains(number))
    }

    fn expected(&self) -> Cow<'static, str> {
        let numbers: Vec<String> = self.0.iter().map(u64::to_string).collect();
        format!("one of {}", numbers.join(", ")).into()
    }
}

impl Kind for Object {
    type Read<'a> = &'a Map<String, Value>;

    fn read<'a>(&self, value: &'a Value) -> Option<&'a Map<String, Value>> {
        value.as_object()
    }

    fn expected(&self) -> Cow<'static, str> {
        "an object".into()
    }
}
