//! What is declared of a key: its place, its type, what null and absence mean, and what its value decides.

use serde_json::Value;

use super::Family;
use super::kind::Kind;
use crate::shown::shown;

/// Which object of a model's files holds a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The top of config.json.
    Root,
    /// The text model's part: `text_config`, or the top where there is none.
    Text,
    /// The text model's part, or else the top.
    TextElseRoot,
    /// `rope_parameters` or `rope_scaling`.
    Rope,
    /// `full_attention` in that, where kinds of layers have rotations of their own.
    FullRope,
    /// `sliding_attention` in that.
    WindowRope,
    /// `linear_attn_config`.
    Linear,
    /// `quantization` or `quantization_config`, and their overrides by module.
    Quantization,
    /// generation_config.json.
    Generation,
}

/// What null means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Null {
    /// It is refused: it would be taken for a default that the model was not made for.
    Refused,
    /// As if the key were absent: the reference writes that.
    Absent,
    /// The reference writes it where nothing reads the key; a family that does refuses it.
    Unread,
}

/// What it means that a key is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// A family that reads the key refuses the file.
    Refused,
    /// As this value, in JSON.
    Is(&'static str),
    /// As these values in these families; others that read the key refuse the file, or do what its description says.
    In(&'static [(&'static [Family], &'static str)]),
    /// What this says.
    Means(&'static str),
}

/// What a value decides beside what is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// What the tensors say as well: a value that they contradict is refused, so that another one changes nothing.
    Tensors,
    /// What nothing else says: each value in range is another model.
    Answer,
}

/// A key that is read.
pub struct Key<K> {
    pub(super) name: &'static str,
    pub(super) place: Place,
    pub(super) null: Null,
    pub(super) absent: Absent,
    pub(super) effect: Effect,
    pub(super) kind: K,
}

/// A key without its type, for what concerns all keys.
pub trait AnyKey: Sync {
    /// Its name.
    fn name(&self) -> &'static str;
    /// Its place.
    fn place(&self) -> Place;
    /// What null means.
    fn null(&self) -> Null;
    /// What absence means.
    fn absent(&self) -> Absent;
    /// What a value decides.
    fn effect(&self) -> Effect;
    /// What is wrong with a value; `None` for one that can be read.
    fn complaint(&self, value: &Value) -> Option<String>;
}

impl Absent {
    /// The value that a family computes with where the key is absent, in JSON; `None` where there is none.
    pub fn value(self, family: Family) -> Option<&'static str> {
        match self {
            Self::Is(value) => Some(value),
            Self::In(rows) => {
                let row = rows.iter().find(|(families, _)| families.contains(&family));
                row.map(|(_, value)| *value)
            }
            Self::Refused | Self::Means(_) => None,
        }
    }
}

impl<K> Key<K> {
    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its place.
    pub fn place(&self) -> Place {
        self.place
    }
}

impl<K: Kind> Key<K> {
    /// Reads a value; `None` for a null that is as good as absent.
    pub(crate) fn read<'a>(&self, value: &'a Value) -> Result<Option<K::Read<'a>>, String> {
        if self.null == Null::Absent && value.is_null() {
            return Ok(None);
        }
        if value.is_null() {
            return Err(format!("null, as if missing, is not {}", self.kind.expected()));
        }
        self.kind.read(value).map(Some).ok_or_else(|| self.wrong(value))
    }

    fn wrong(&self, value: &Value) -> String {
        let beyond = value.as_u64().zip(self.kind.limit()).filter(|(found, limit)| found > limit);
        if let Some((_, limit)) = beyond {
            return format!("{} exceeds the limit of {limit}", shown(value));
        }
        // The first entry to blame says more than a long list does.
        let blamed =
            |entry: &&Value| self.kind.read(&Value::Array(vec![(*entry).clone()])).is_none();
        let entries = value.as_array().filter(|_| self.kind.has_entries());
        let entry = entries.and_then(|entries| entries.iter().find(blamed));
        format!("{} is not {}", shown(entry.unwrap_or(value)), self.kind.expected())
    }
}

impl<K: Kind + Sync> AnyKey for Key<K> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn place(&self) -> Place {
        self.place
    }

    fn null(&self) -> Null {
        self.null
    }

    fn absent(&self) -> Absent {
        self.absent
    }

    fn effect(&self) -> Effect {
        self.effect
    }

    fn complaint(&self, value: &Value) -> Option<String> {
        let unread = self.null == Null::Unread && value.is_null();
        if unread { None } else { self.read(value).err() }
    }
}
