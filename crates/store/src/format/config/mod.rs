//! A model's configuration, read by one reader for every part of the program.
//!
//! Layouts, packer and engine ask a [`Configuration`] by the keys of [`keys`]; the JSON itself is not handed out.
//! Every key that the table knows is checked for type and range when the configuration is made, whether this model
//! asks for it or not: a value of a wrong type is never taken as absent. Two readers of one key cannot disagree,
//! because there is only this one.

mod dimensions;
mod family;
mod groups;
mod key;
pub mod keys;
pub mod kind;
mod shared_defaults;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::error::{DOWNLOAD_AGAIN, FormatError};
use crate::shown::{quoted, shown};
use keys::{AnyKey, Key, Place};
use kind::Kind;

pub(crate) use dimensions::Dimensions;
pub use family::{ExpertKeys, Family};

/// What to do about a wrong value.
const REMEDY: &str = "use the model's own config.json";

/// A configuration whose known keys have the right types, and the file to blame.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Configuration {
    file: PathBuf,
    json: Value,
    /// Where the entries come from keys of another name, that name by ours.
    names: Vec<(&'static str, String)>,
    /// What the family computes with where a key is absent, by place and name.
    defaults: Vec<(Place, &'static str, Value)>,
}

impl Configuration {
    /// Takes the configuration that `file` holds.
    ///
    /// # Errors
    /// The first key whose value has a wrong type or range, or contradicts another.
    pub fn new(file: &Path, json: Value) -> Result<Self, FormatError> {
        Self::from_keys(file, json, Vec::new())
    }

    /// Takes a configuration that was put together from keys of other names; errors name those.
    ///
    /// # Errors
    /// As [`Configuration::new`].
    pub(crate) fn from_keys(
        file: &Path,
        json: Value,
        names: Vec<(&'static str, String)>,
    ) -> Result<Self, FormatError> {
        let mut this = Self { file: file.to_owned(), json, names, defaults: Vec::new() };
        if !this.json.is_object() {
            return Err(FormatError::invalid(file, "config", "not a JSON object", REMEDY));
        }
        // The text model's part decides where the others are looked for.
        this.get(&keys::TEXT_CONFIG)?;
        if let Some(family) = this.family()? {
            for key in keys::all() {
                this.check(key.as_ref())?;
            }
            this.check_twins()?;
            this.check_rotation()?;
            this.check_end_tokens(&this.file, this.stated(&keys::EOS_TOKEN_ID)?)?;
            this.defaults = defaults(family);
        }
        Ok(this)
    }

    /// The file that the configuration was read from.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The JSON, for copying and for its checksum.
    pub(crate) fn json(&self) -> &Value {
        &self.json
    }

    /// The value of a key: what the file says, or else what the key's declaration says of the family; `None` where
    /// neither does.
    ///
    /// # Errors
    /// The file, the key, and the value of a wrong type or range.
    pub fn get<K: Kind>(&self, key: &Key<K>) -> Result<Option<K::Read<'_>>, FormatError> {
        if let Some(stated) = self.stated(key)? {
            return Ok(Some(stated));
        }
        let of_key =
            |(place, name, _): &&(Place, &str, Value)| (*place, *name) == (key.place(), key.name());
        let found = self.defaults.iter().find(of_key);
        Ok(found.and_then(|(.., value)| key.read(value).ok().flatten()))
    }

    /// The value of a key in the file; `None` where it is absent.
    ///
    /// # Errors
    /// As [`Configuration::get`].
    pub fn stated<K: Kind>(&self, key: &Key<K>) -> Result<Option<K::Read<'_>>, FormatError> {
        for (path, object) in self.places(key.place()) {
            let Some(value) = object.get(key.name()) else { continue };
            let read = key.read(value).map_err(|found| self.wrong(&path, key.name(), found))?;
            if read.is_some() {
                return Ok(read);
            }
        }
        Ok(None)
    }

    /// The value of a key that must be there.
    ///
    /// # Errors
    /// As [`Configuration::get`], and an absent key.
    pub fn required<K: Kind>(&self, key: &Key<K>) -> Result<K::Read<'_>, FormatError> {
        self.get(key)?.ok_or_else(|| self.invalid(key, "missing"))
    }

    /// An error about a key's value.
    pub fn invalid<K>(&self, key: &Key<K>, found: impl AsRef<str>) -> FormatError {
        FormatError::invalid(&self.file, self.written(key.name()), found, self.remedy())
    }

    /// Keys of another name that entries come from: our name, and that of the file.
    pub fn names(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.names.iter().map(|(ours, theirs)| (*ours, theirs.as_str()))
    }

    /// A key's name in the file.
    fn written<'a>(&'a self, name: &'a str) -> &'a str {
        self.names.iter().find(|(ours, _)| *ours == name).map_or(name, |(_, theirs)| theirs)
    }

    fn remedy(&self) -> &'static str {
        if self.names.is_empty() { REMEDY } else { DOWNLOAD_AGAIN }
    }

    /// The family; `None` for one that is not supported.
    ///
    /// # Errors
    /// A `model_type` that is no text, or two that name different families.
    pub fn family(&self) -> Result<Option<Family>, FormatError> {
        self.check(&keys::MODEL_TYPE)?;
        let names = self
            .places(Place::TextElseRoot)
            .into_iter()
            .filter_map(|(_, object)| object.get(keys::MODEL_TYPE.name()).and_then(Value::as_str));
        let names: Vec<&str> = names.collect();
        let families: Vec<Family> = names.iter().filter_map(|name| Family::of(name)).collect();
        if families.windows(2).any(|pair| pair[0] != pair[1]) {
            let found =
                format!("{} and {} are different families", quoted(names[0]), quoted(names[1]));
            return Err(self.invalid(&keys::MODEL_TYPE, found));
        }
        Ok(names.first().and_then(|name| Family::of(name)))
    }

    /// As [`Configuration::family`], refusing what is not supported.
    ///
    /// # Errors
    /// The `model_type` found.
    pub fn supported_family(&self) -> Result<Family, FormatError> {
        self.family()?.ok_or_else(|| {
            let found = self.get(&keys::MODEL_TYPE).ok().flatten();
            let found = match found.map(|name| (name, family::other(name))) {
                None => "none".to_owned(),
                Some((name, None)) => quoted(name).to_string(),
                Some((name, Some(known))) => format!("{} ({known})", quoted(name)),
            };
            let field = keys::MODEL_TYPE.name();
            FormatError::unsupported(&self.file, field, found, family::SUPPORTED)
        })
    }

    /// Routed experts of a layer.
    ///
    /// # Errors
    /// As [`Configuration::required`].
    pub fn routed_experts(&self) -> Result<usize, FormatError> {
        self.required(self.supported_family()?.expert_keys().routed)
    }

    /// Experts that a token uses.
    ///
    /// # Errors
    /// As [`Configuration::required`].
    pub fn experts_per_token(&self) -> Result<usize, FormatError> {
        self.required(self.supported_family()?.expert_keys().per_token)
    }

    /// Inner width of a routed expert.
    ///
    /// # Errors
    /// As [`Configuration::required`].
    pub fn expert_width(&self) -> Result<usize, FormatError> {
        self.required(self.supported_family()?.expert_keys().width)
    }

    /// Inner width of the shared expert, in families that count it in widths of a routed one; `None` where there is
    /// none.
    ///
    /// # Errors
    /// As [`Configuration::required`].
    pub fn shared_width(&self) -> Result<Option<usize>, FormatError> {
        let count = self.required(self.supported_family()?.expert_keys().shared)?;
        Ok(Some(count * self.expert_width()?).filter(|&width| width > 0))
    }

    /// Base of the rotation's frequencies.
    ///
    /// # Errors
    /// As [`Configuration::required`].
    pub fn rope_theta(&self) -> Result<f64, FormatError> {
        match self.get(&keys::INNER_ROPE_THETA)? {
            Some(theta) => Ok(theta),
            None => self.required(&keys::ROPE_THETA),
        }
    }

    /// Part of a head that is rotated.
    ///
    /// # Errors
    /// As [`Configuration::required`].
    pub fn rotary_factor(&self) -> Result<f64, FormatError> {
        match self.get(&keys::INNER_ROTARY_FACTOR)? {
            Some(factor) => Ok(factor),
            None => self.required(&keys::ROTARY_FACTOR),
        }
    }

    /// Tokens that end an answer by the generation_config.json `file` with the value `json`.
    ///
    /// # Errors
    /// The file and a value that is no token of the model.
    pub fn generation_end_tokens(
        &self,
        file: &Path,
        json: &Value,
    ) -> Result<Option<Vec<u32>>, FormatError> {
        let key = &keys::GENERATION_EOS_TOKEN_ID;
        let Some(value) = json.get(key.name()) else { return Ok(None) };
        let remedy = "use the model's own generation_config.json";
        let read = key.read(value);
        let tokens = read.map_err(|found| FormatError::invalid(file, key.name(), found, remedy))?;
        self.check_end_tokens(file, tokens.clone())?;
        Ok(tokens)
    }

    /// The objects in which keys of a place are looked for, in order, with their paths (JSON pointers).
    pub fn places(&self, place: Place) -> Vec<(String, &Map<String, Value>)> {
        let root = self.json.as_object().map(|object| (String::new(), object));
        let inner = self.json.get(keys::TEXT_CONFIG.name()).and_then(Value::as_object);
        let inner = inner.map(|object| (format!("/{}", keys::TEXT_CONFIG.name()), object));
        match place {
            Place::Root => root.into_iter().collect(),
            Place::Text => inner.or(root).into_iter().collect(),
            Place::TextElseRoot => inner.into_iter().chain(root).collect(),
            Place::Rope => {
                let names = [keys::ROPE_PARAMETERS.name(), keys::ROPE_SCALING.name()];
                self.inside(Place::Text, &names)
            }
            Place::FullRope => self.inside(Place::Rope, &["full_attention"]),
            Place::WindowRope => self.inside(Place::Rope, &["sliding_attention"]),
            Place::Linear => self.inside(Place::Text, &[keys::LINEAR_ATTN_CONFIG.name()]),
            Place::Quantization => {
                let names = [keys::QUANTIZATION.name(), keys::QUANTIZATION_CONFIG.name()];
                let mut found = self.inside(Place::TextElseRoot, &names);
                // Tools of publishers, which name themselves, have other keys by these names.
                found.retain(|(_, object)| !object.contains_key("quant_method"));
                let overrides = found.clone().into_iter().flat_map(|(path, object)| {
                    object.iter().filter_map(move |(name, value)| {
                        let name = name.replace('~', "~0").replace('/', "~1");
                        Some((format!("{path}/{name}"), value.as_object()?))
                    })
                });
                found.extend(overrides.collect::<Vec<_>>());
                found
            }
            Place::Generation => Vec::new(),
        }
    }

    /// The objects that keys of a place lead to.
    fn inside(&self, place: Place, names: &[&str]) -> Vec<(String, &Map<String, Value>)> {
        let outer = self.places(place).into_iter();
        let inner = outer.flat_map(|(path, object)| {
            let named = names.iter().filter_map(move |&name| Some((name, object.get(name)?)));
            named.filter_map(move |(name, value)| {
                Some((format!("{path}/{name}"), value.as_object()?))
            })
        });
        inner.collect()
    }

    /// Checks a key wherever it occurs.
    fn check(&self, key: &dyn AnyKey) -> Result<(), FormatError> {
        for (path, object) in self.places(key.place()) {
            if let Some(found) = object.get(key.name()).and_then(|value| key.complaint(value)) {
                return Err(self.wrong(&path, key.name(), found));
            }
        }
        Ok(())
    }

    fn wrong(&self, path: &str, name: &str, found: String) -> FormatError {
        // "text_config" is where everything is; naming it each time says nothing.
        let path = path.trim_start_matches(&format!("/{}", keys::TEXT_CONFIG.name()));
        let path = path.trim_start_matches('/').replace('/', ".");
        let name = self.written(name);
        let field = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        FormatError::invalid(&self.file, field, found, self.remedy())
    }

    /// Keys of one meaning must have one value, in whatever objects they are.
    fn check_twins(&self) -> Result<(), FormatError> {
        for pair in keys::twins() {
            let [first, second] = pair.each_ref().map(|key| self.values(key.as_ref()));
            for (here, there) in first.iter().flat_map(|a| second.iter().map(move |b| (a, b))) {
                let same = match (here.as_f64(), there.as_f64()) {
                    (Some(here), Some(there)) => here == there,
                    _ => here == there,
                };
                if !same {
                    let [ours, theirs] = pair.each_ref().map(|key| self.written(key.name()));
                    let found = format!("{} here, {} as {theirs}", shown(here), shown(there));
                    return Err(FormatError::invalid(&self.file, ours, found, self.remedy()));
                }
            }
        }
        Ok(())
    }

    /// The values of a key wherever it occurs, but for null.
    fn values(&self, key: &dyn AnyKey) -> Vec<&Value> {
        let found = self.places(key.place()).into_iter();
        let found = found.filter_map(|(_, object)| object.get(key.name()));
        found.filter(|value| !value.is_null()).collect()
    }

    /// The rotation may be told in several places, but only once; and what stretches it has no meaning without a kind.
    fn check_rotation(&self) -> Result<(), FormatError> {
        let objects = self.places(Place::Rope);
        if objects.windows(2).any(|pair| pair[0].1 != pair[1].1) {
            let found = "differs from rope_parameters";
            return Err(self.invalid(&keys::ROPE_SCALING, found));
        }
        let kind = self.stated(&keys::ROPE_TYPE)?.or(self.stated(&keys::ROPE_KIND)?);
        if kind.is_none() && self.stated(&keys::ROPE_SCALING)?.is_some() {
            let found = "has no type (rope_type), so that it does not say what it means";
            return Err(self.invalid(&keys::ROPE_SCALING, found));
        }
        let bases = [self.stated(&keys::INNER_ROPE_THETA)?, self.stated(&keys::ROPE_THETA)?];
        let by_kind = self.family()? == Some(Family::Gemma4);
        if self.stated(&keys::ROPE_PARAMETERS)?.is_some() && bases == [None, None] && !by_kind {
            let found = "has no rope_theta, so that it does not say what it means";
            return Err(self.invalid(&keys::ROPE_PARAMETERS, found));
        }
        let stretches =
            groups::stretching().into_iter().find(|key| !self.values(&**key).is_empty());
        match (kind, stretches) {
            (None | Some("default"), Some(key)) => {
                let found = "means nothing where the rotation has no type that stretches it";
                Err(FormatError::invalid(&self.file, key.name(), found, self.remedy()))
            }
            _ => Ok(()),
        }
    }

    /// A token that the model cannot produce would never end an answer.
    fn check_end_tokens(&self, file: &Path, tokens: Option<Vec<u32>>) -> Result<(), FormatError> {
        let Some(vocabulary) = self.get(&keys::VOCAB_SIZE)? else { return Ok(()) };
        match tokens.into_iter().flatten().find(|&token| token as usize >= vocabulary) {
            Some(token) => Err(FormatError::invalid(
                file,
                keys::EOS_TOKEN_ID.name(),
                format!("{token} is beyond the vocabulary of {vocabulary} tokens"),
                "use the model's own file",
            )),
            None => Ok(()),
        }
    }
}

/// What a family computes with where keys are absent.
fn defaults(family: Family) -> Vec<(Place, &'static str, Value)> {
    let default = |key: Box<dyn AnyKey>| {
        let value = key.absent().value(family)?;
        let value = serde_json::from_str(value).expect("declared values are JSON");
        Some((key.place(), key.name(), value))
    };
    keys::all().into_iter().filter_map(default).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A default that its own key would refuse would be taken as none.
    #[test]
    fn declared_defaults_are_values_of_their_keys() {
        for family in Family::ALL {
            for key in keys::all() {
                let Some(value) = key.absent().value(family) else { continue };
                let value = serde_json::from_str(value).expect("JSON");
                let complaint = key.complaint(&value);
                assert_eq!(complaint, None, "{} of {family:?}", key.name());
            }
        }
    }
}
