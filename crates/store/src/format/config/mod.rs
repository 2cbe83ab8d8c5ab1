//! A model's configuration, read by one reader for every part of the program.
//!
//! Layouts, packer and engine ask a [`Configuration`] by the keys of [`keys`]; the JSON itself is not handed out.
//! Every key that the table knows is checked for type and range when the configuration is made, whether this model
//! asks for it or not: a value of a wrong type is never taken as absent. Two readers of one key cannot disagree,
//! because there is only this one.

mod dimensions;
mod family;
pub mod keys;
pub mod kind;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::error::{DOWNLOAD_AGAIN, FormatError};
use crate::shown::quoted;
use keys::{AnyKey, Key, Place};
use kind::Kind;

pub(crate) use dimensions::Dimensions;
pub use family::Family;

/// What to do about a wrong value.
const REMEDY: &str = "use the model's own config.json";

/// A configuration whose known keys have the right types, and the file to blame.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Configuration {
    file: PathBuf,
    json: Value,
    /// Where the entries come from keys of another name, that name by ours.
    names: Vec<(&'static str, String)>,
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
        let this = Self { file: file.to_owned(), json, names };
        if !this.json.is_object() {
            return Err(FormatError::invalid(file, "config", "not a JSON object", REMEDY));
        }
        // The text model's part decides where the others are looked for.
        this.get(&keys::TEXT_CONFIG)?;
        if this.family()?.is_some() {
            for key in keys::all() {
                this.check(key.as_ref())?;
            }
            this.check_rotation()?;
            this.check_end_tokens(&this.file, this.get(&keys::EOS_TOKEN_ID)?)?;
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

    /// The value of a key; `None` where it is absent.
    ///
    /// # Errors
    /// The file, the key, and the value of a wrong type or range.
    pub fn get<K: Kind>(&self, key: &Key<K>) -> Result<Option<K::Read<'_>>, FormatError> {
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
        match self.supported_family()? {
            Family::GptOss | Family::MinimaxM2 => self.required(&keys::NUM_LOCAL_EXPERTS),
            Family::DeepseekV3
            | Family::DeepseekV4
            | Family::KimiK2
            | Family::Glm4Moe
            | Family::Glm4MoeLite => self.required(&keys::N_ROUTED_EXPERTS),
            _ => self.required(&keys::NUM_EXPERTS),
        }
    }

    /// Inner width of a routed expert.
    ///
    /// # Errors
    /// As [`Configuration::required`].
    pub fn expert_width(&self) -> Result<usize, FormatError> {
        match self.supported_family()? {
            Family::GptOss | Family::MinimaxM2 => self.required(&keys::INTERMEDIATE_SIZE),
            _ => self.required(&keys::MOE_INTERMEDIATE_SIZE),
        }
    }

    /// Base of the rotation's frequencies; `None` where the configuration is silent.
    ///
    /// # Errors
    /// As [`Configuration::get`].
    pub fn rope_theta(&self) -> Result<Option<f64>, FormatError> {
        Ok(self.get(&keys::INNER_ROPE_THETA)?.or(self.get(&keys::ROPE_THETA)?))
    }

    /// Part of a head that is rotated; `None` where the configuration is silent.
    ///
    /// # Errors
    /// As [`Configuration::get`].
    pub fn rotary_factor(&self) -> Result<Option<f64>, FormatError> {
        Ok(self.get(&keys::INNER_ROTARY_FACTOR)?.or(self.get(&keys::ROTARY_FACTOR)?))
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
            Place::Quantization => {
                let names = [keys::QUANTIZATION.name(), keys::QUANTIZATION_CONFIG.name()];
                let mut found = self.inside(Place::TextElseRoot, &names);
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

    /// The rotation may be told in several places, but only once.
    fn check_rotation(&self) -> Result<(), FormatError> {
        let objects = self.places(Place::Rope);
        if objects.windows(2).any(|pair| pair[0].1 != pair[1].1) {
            let found = "differs from rope_parameters";
            return Err(self.invalid(&keys::ROPE_SCALING, found));
        }
        let inner = self.get(&keys::INNER_ROPE_THETA)?;
        if let (Some(inner), Some(outer)) = (inner, self.get(&keys::ROPE_THETA)?)
            && inner != outer
        {
            let found = format!("{outer} here, {inner} in rope_parameters");
            return Err(self.invalid(&keys::ROPE_THETA, found));
        }
        let inner = self.get(&keys::INNER_ROTARY_FACTOR)?;
        if let (Some(inner), Some(outer)) = (inner, self.get(&keys::ROTARY_FACTOR)?)
            && inner != outer
        {
            let found = format!("{outer} here, {inner} in rope_parameters");
            return Err(self.invalid(&keys::ROTARY_FACTOR, found));
        }
        Ok(())
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
