//! Goal: no value of a configuration is misread in silence. Method: every key that the reader's table knows, and
//! every other one that a committed model has, is given every type and range, wherever it can stand, in every
//! committed model, and in one of each family that has no committed model.
//! Each value must be refused in one line that names file and key, or leave the model exactly what it was, or be one
//! that the key's declaration says to be another model: in range where nothing else decides the same, null or absent
//! where that is declared, as what it is declared to mean.
//!
//! What a model computes follows from its shapes and from the description of its tensors; both are compared, so
//! no forward pass is needed. The table is the only way to the configuration's keys, so a new key is met here.
//!
//! The ordinary run tries a part of the values, another part for each key, `FLASHMOE_LONG_TESTS=1` a greater part;
//! `FLASHMOE_CAMPAIGN=1` tries all and says how many there were.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use engine::model::Model;
use engine::model::config::ModelConfig;
use engine::model::mixture::expert_shapes;
use engine::weights::Catalog;
use serde_json::{Value, json};
use store::format::config::keys::{self, Absent, AnyKey, Effect, Null, Place};
use store::format::{Checkpoint, Extent, Family, open};

use crate::config_families;
use crate::long::{is_campaign, is_long};

/// Longest line of a refusal, bytes.
pub(crate) const LINE_BYTES_MAX: usize = 900;

/// Those that are committed, and those of other families, which are written below `folder`.
fn models(folder: &Path) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let golden = [
        "qwen3-calm-hf",
        "qwen3next-calm-hf",
        "flash-next-calm-hf",
        "gptoss-calm-mxfp4",
        "dsv4-calm-hf",
        "gemma4-calm-hf",
        "deepseek-calm-hf",
        "dsv32-calm-hf",
        "glm5-calm-hf",
        "kimi-linear-calm-hf",
        "glm-next-calm-hf",
        "ling-calm-hf",
        "glm-flash-calm-mlxlm-4bit",
        "qwen35-calm-hf",
        "qwen35-calm-mlx-mixed",
        "qwen35-calm-mlxlm-4bit",
        "qwen35-hf",
    ];
    let golden = golden.map(|name| root.join("tests/golden").join(name).join("model"));
    let others = config_families::write_all(folder);
    golden.into_iter().chain([root.join("models/demo")]).chain(others).collect()
}

/// A folder with the same files; the small ones may be written.
pub(crate) fn copy(model: &Path) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(model).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    folder
}

/// Everything that an answer depends on.
pub(crate) fn meaning(folder: &Path) -> Result<String, String> {
    let checkpoint = open(folder).map_err(|error| error.to_string())?;
    let config = ModelConfig::read(&checkpoint.config).map_err(|error| error.to_string())?;
    let mut catalog = Catalog::new(&checkpoint);
    Model::declare(&config, &mut catalog).map_err(|error| error.to_string())?;
    expert_shapes(&checkpoint, &config).map_err(|error| error.to_string())?;
    let ends = checkpoint.end_tokens().map_err(|error| error.to_string())?;
    let Checkpoint { tensors, experts, row_tables, norms_are_zero_centred, .. } = &checkpoint;
    // Where tensors begin follows from the length of what is before them.
    let begin = tensors.values().map(|tensor| tensor.weight.offset).min().unwrap_or(0);
    let place = |extent: Extent| (extent.file, extent.offset.abs_diff(begin), extent.length);
    let tensors = tensors.iter().map(|(name, tensor)| {
        let parts: Vec<_> = tensor.parts().map(place).collect();
        (name, &tensor.shape, tensor.element, parts)
    });
    let layers = experts.iter().map(|layer| {
        let layer = layer.as_ref()?;
        let weights: Vec<_> = layer.experts.iter().map(|it| it.weight.map(place)).collect();
        Some((layer.shapes, weights))
    });
    let (tensors, layers): (Vec<_>, Vec<_>) = (tensors.collect(), layers.collect());
    let rows: Vec<_> = row_tables.values().map(|it| (it.rows, it.columns, it.encoding)).collect();
    Ok(format!("{config:?} {ends:?} {norms_are_zero_centred} {tensors:?} {layers:?} {rows:?}"))
}

/// Values of every type, and numbers at and beyond the ends of every range.
fn values() -> Vec<Value> {
    let text = "x".repeat(100_000);
    vec![
        Value::Null,
        json!(true),
        json!(false),
        json!(0),
        json!(1),
        json!(2),
        json!(3),
        json!(4),
        json!(5),
        json!(7),
        json!(8),
        json!(16),
        json!(33),
        json!(-1),
        json!(0.5),
        json!(1.0),
        json!(2.5),
        json!(-0.0),
        json!(1e-13),
        json!(1e-45),
        json!(1e300),
        json!(1e15),
        json!(1_u64 << 53),
        json!(u64::MAX),
        json!(""),
        json!("4"),
        json!("default"),
        json!("yarn"),
        json!("deepseek_v3"),
        json!("full_attention"),
        json!("a\nb\u{1b}[31m\u{9b}"),
        json!(text),
        json!([]),
        json!([null]),
        json!([[1]]),
        json!(["x"]),
        json!([0, 0, 0, 0]),
        json!([4, 4, 4, 4]),
        json!(["full_attention", "full_attention", "full_attention", "full_attention"]),
        json!(["sparse", "sparse", "sparse", "sparse"]),
        json!({}),
        json!({"x": 1}),
        json!({"factor": 40}),
        json!({"rope_type": "yarn", "type": "default", "factor": 4}),
        json!({"bits": 4, "group_size": 64}),
        json!(i64::MIN),
        json!(1_u64 << 63),
        json!(-1e300),
        json!(1e-320),
        json!("null"),
        json!(" 4"),
        json!("\0"),
        json!([0, -1]),
        json!([{}]),
        json!([1e300]),
        json!([[], {}]),
        json!({"4": [4]}),
    ]
}

/// Of how many values one is tried, but in a campaign.
fn part() -> usize {
    if is_long() { 6 } else { 24 }
}

/// The files that hold keys of a place, and the objects in them (JSON pointers).
fn objects(checkpoint: &Checkpoint, place: Place) -> (&'static str, Vec<String>) {
    if place == Place::Generation {
        return ("generation_config.json", vec![String::new()]);
    }
    let places = checkpoint.config.places(place);
    ("config.json", places.into_iter().map(|(path, _)| path).collect())
}

pub(crate) fn read(path: &Path) -> Value {
    fs::read(path).map_or(json!({}), |bytes| serde_json::from_slice(&bytes).unwrap())
}

/// `json` with `key` of the object at `pointer` set, or removed.
pub(crate) fn with(json: &Value, pointer: &str, key: &str, value: Option<&Value>) -> Value {
    let mut changed = json.clone();
    let object = changed.pointer_mut(pointer).unwrap().as_object_mut().unwrap();
    match value {
        Some(value) => drop(object.insert(key.to_owned(), value.clone())),
        None => drop(object.shift_remove(key)),
    }
    changed
}

/// What came of a value.
enum Outcome {
    Refused,
    Unchanged,
    /// Another model, as the key's declaration says.
    Declared,
    Wrong(String),
}

/// A place of a key in a model, and what the declaration says of the key; `None` for keys that nothing reads.
struct Spot<'a> {
    key: Option<&'a dyn AnyKey>,
    name: &'a str,
    family: Family,
    right: &'a str,
}

impl Spot<'_> {
    /// Judges what a value, or absence, was taken for. `of` gives the meaning of another value.
    fn judge(
        &self,
        value: Option<&Value>,
        found: Result<String, String>,
        of: &dyn Fn(Option<&Value>) -> Result<String, String>,
    ) -> Outcome {
        let meaning = match found {
            Ok(meaning) if meaning == self.right => return Outcome::Unchanged,
            Ok(meaning) => meaning,
            Err(line) => {
                let named = line.contains(self.name) || value.is_none_or(Value::is_null);
                let fits = line.len() < LINE_BYTES_MAX && !line.chars().any(char::is_control);
                let named = named
                    || self
                        .key
                        .is_none_or(|key| key.complaint(value.unwrap_or(&Value::Null)).is_none());
                if named && fits {
                    return Outcome::Refused;
                }
                let shown = line.chars().take(300).collect::<String>();
                return Outcome::Wrong(format!("refused in {} bytes: {shown}", line.len()));
            }
        };
        let Some(key) = self.key else {
            return Outcome::Wrong("nothing reads it, and the model changed".to_owned());
        };
        let absent = || match (key.absent(), key.absent().value(self.family)) {
            (_, Some(default)) => {
                let default = serde_json::from_str(default).unwrap();
                of(Some(&default)).is_ok_and(|it| it == meaning)
            }
            (Absent::Means(_), None) => true,
            _ => false,
        };
        let declared = match value {
            None => absent(),
            Some(Value::Null) => {
                key.null() == Null::Absent && of(None).is_ok_and(|it| it == meaning)
            }
            Some(value) => key.effect() == Effect::Answer && key.complaint(value).is_none(),
        };
        match declared {
            true => Outcome::Declared,
            false => Outcome::Wrong("accepted, and means something else".to_owned()),
        }
    }
}

/// What was tried of a model's keys.
#[derive(Default)]
struct Tried {
    family: String,
    refused: usize,
    unchanged: usize,
    declared: usize,
    wrong: Vec<String>,
}

impl Tried {
    fn all(&self) -> usize {
        self.refused + self.unchanged + self.declared + self.wrong.len()
    }
}

/// A key at a place of a model's files.
struct Tryout {
    key: Option<Box<dyn AnyKey>>,
    file: &'static str,
    pointer: String,
    name: String,
}

/// Every key of the table at every place, and every other key that a file has there.
fn tryouts(checkpoint: &Checkpoint) -> Vec<Tryout> {
    let mut all = Vec::new();
    for number in 0..keys::all().len() {
        let key = || keys::all().swap_remove(number);
        let (file, pointers) = objects(checkpoint, key().place());
        all.extend(pointers.into_iter().map(|pointer| {
            let (key, name) = (key(), key().name().to_owned());
            Tryout { key: Some(key), file, pointer, name }
        }));
    }
    let at = |it: &Tryout| (it.file, it.pointer.clone(), it.name.clone());
    let mut known: HashSet<_> = all.iter().map(at).collect();
    for place in [Place::Root, Place::Text, Place::Rope] {
        for (pointer, object) in checkpoint.config.places(place) {
            for name in object.keys() {
                let (file, pointer, name) = ("config.json", pointer.clone(), name.clone());
                if known.insert((file, pointer.clone(), name.clone())) {
                    all.push(Tryout { key: None, file, pointer, name });
                }
            }
        }
    }
    all
}

fn try_every_value(model: &Path) -> Tried {
    let folder = copy(model);
    let checkpoint = open(folder.path()).unwrap();
    let right = meaning(folder.path()).unwrap();
    let family = checkpoint.config.supported_family().unwrap();
    let mut tried = Tried { family: format!("{family:?}"), ..Tried::default() };
    for (number, tryout) in tryouts(&checkpoint).into_iter().enumerate() {
        let Tryout { key, file, pointer, name } = tryout;
        let path = folder.path().join(file);
        let (existed, json) = (path.exists(), read(&path));
        let of = |value: Option<&Value>| {
            let changed = with(&json, &pointer, &name, value);
            fs::write(&path, changed.to_string()).unwrap();
            meaning(folder.path())
        };
        let spot = Spot { key: key.as_deref(), name: &name, family, right: &right };
        let all = values().into_iter().map(Some).chain([None]).enumerate();
        let is_tried = |index: usize| is_campaign() || index % part() == number % part();
        for (_, value) in all.filter(|(index, value)| value.is_none() || is_tried(*index)) {
            let found = of(value.as_ref());
            match spot.judge(value.as_ref(), found, &of) {
                Outcome::Refused => tried.refused += 1,
                Outcome::Unchanged => tried.unchanged += 1,
                Outcome::Declared => tried.declared += 1,
                Outcome::Wrong(verdict) => {
                    let shown = value.map_or("absent".to_owned(), |value| value.to_string());
                    let shown: String = shown.chars().take(60).collect();
                    let place = format!("{}: {file}{pointer}/{name}", model.display());
                    tried.wrong.push(format!("{place} = {shown}: {verdict}"));
                }
            }
        }
        if existed {
            fs::write(&path, json.to_string()).unwrap();
        } else {
            let _ = fs::remove_file(&path);
        }
    }
    assert_eq!(meaning(folder.path()).unwrap(), right, "{}: put back", model.display());
    tried
}

#[test]
fn no_value_is_taken_for_something_else() {
    let folder = tempfile::tempdir().unwrap();
    let models = models(folder.path());
    let found: Vec<Tried> = std::thread::scope(|scope| {
        let each = |model| scope.spawn(move || try_every_value(model));
        let running: Vec<_> = models.iter().map(|model: &PathBuf| each(model.as_path())).collect();
        running.into_iter().map(|running| running.join().unwrap()).collect()
    });
    let mut families = BTreeMap::new();
    for tried in &found {
        *families.entry(&tried.family).or_insert(0) += tried.all();
    }
    let sum = |part: fn(&Tried) -> usize| found.iter().map(part).sum::<usize>();
    let counts = format!(
        "{} values in {} models: {} refused, {} without effect, {} declared, {} wrong",
        sum(Tried::all),
        models.len(),
        sum(|it| it.refused),
        sum(|it| it.unchanged),
        sum(|it| it.declared),
        sum(|it| it.wrong.len())
    );
    if is_campaign() {
        std::io::Write::write_all(&mut std::io::stderr(), format!("{counts}\n").as_bytes())
            .unwrap();
    }
    let wrong: Vec<&str> = found.iter().flat_map(|it| &it.wrong).map(String::as_str).collect();
    assert!(wrong.is_empty(), "{counts}\n{}", wrong.join("\n"));
    let least = if is_long() { 700 } else { 250 };
    assert!(families.values().all(|&tried| tried >= least), "too few were tried: {families:?}");
    assert_eq!(families.len(), Family::ALL.len(), "every family that is read: {families:?}");
}

/// Two values for one thing are refused, whichever is the reader's.
#[test]
fn twins_that_contradict_each_other_are_refused() {
    let mut met = 0;
    let written = tempfile::tempdir().unwrap();
    for model in models(written.path()) {
        let folder = copy(&model);
        let checkpoint = open(folder.path()).unwrap();
        let path = folder.path().join("config.json");
        let json = read(&path);
        for pair in keys::twins() {
            for (one, other) in [(&pair[0], &pair[1]), (&pair[1], &pair[0])] {
                let (_, from) = objects(&checkpoint, one.place());
                let (_, to) = objects(&checkpoint, other.place());
                let value = from.iter().find_map(|it| json.pointer(it)?.get(one.name()));
                let (Some(value), Some(place)) = (value, to.first()) else { continue };
                let changed = match value {
                    Value::String(text) if text == "yarn" => json!("default"),
                    Value::String(_) => json!("yarn"),
                    number => json!(number.as_f64().unwrap() / 2.0),
                };
                let changed = match value.as_u64() {
                    Some(count) => json!(count + 1),
                    None => changed,
                };
                fs::write(&path, with(&json, place, other.name(), Some(&changed)).to_string())
                    .unwrap();
                let line = meaning(folder.path()).unwrap_err();
                assert!(line.contains(one.name()) && line.contains(other.name()), "{line}");
                fs::write(&path, with(&json, place, other.name(), Some(value)).to_string())
                    .unwrap();
                if other.complaint(value).is_none() {
                    meaning(folder.path()).unwrap();
                }
                met += 1;
            }
        }
    }
    assert!(met >= 20, "{met} pairs");
}

/// Models that an attack found to be taken for others.
#[test]
fn what_was_misread_is_refused() {
    let cases: &[(&str, &str, &str, Value, &str)] = &[
        ("deepseek-calm-hf", "", "rope_scaling", json!({}), "no type"),
        ("deepseek-calm-hf", "", "rope_scaling", json!({"factor": 40}), "no type"),
        ("dsv4-calm-hf", "", "rope_scaling", json!({"factor": 16}), "no type"),
        ("gptoss-calm-mxfp4", "", "rope_scaling", json!({"factor": 32}), "no type"),
        (
            "gptoss-calm-mxfp4",
            "",
            "rope_scaling",
            json!({"rope_type": "default", "type": "yarn", "factor": 4}),
            "rope_type",
        ),
        (
            "gptoss-calm-mxfp4",
            "",
            "rope_scaling",
            json!({"rope_type": "default", "factor": 4}),
            "factor",
        ),
        ("gptoss-calm-mxfp4", "", "sliding_window", Value::Null, "sliding_window"),
        ("gptoss-calm-mxfp4", "", "swiglu_limit", Value::Null, "swiglu_limit"),
        ("gptoss-calm-mxfp4", "", "experts_per_token", json!(1), "experts_per_token"),
        ("dsv4-calm-hf", "", "swiglu_limit", Value::Null, "swiglu_limit"),
        ("deepseek-calm-hf", "", "topk_group", Value::Null, "topk_group"),
        ("deepseek-calm-hf", "/rope_scaling", "mscale", Value::Null, "mscale"),
        ("deepseek-calm-hf", "/rope_scaling", "beta_fast", Value::Null, "beta_fast"),
        ("dsv4-calm-hf", "", "num_hidden_layers", json!(3), "num_hidden_layers"),
        ("deepseek-calm-hf", "", "num_hidden_layers", json!(2), "num_hidden_layers"),
        ("glm-flash-calm-mlxlm-4bit", "", "num_hidden_layers", json!(2), "num_hidden_layers"),
        ("deepseek-calm-hf", "", "num_nextn_predict_layers", json!(0), "layers."),
        ("qwen3-calm-hf", "", "rms_norm_eps", json!(0), "rms_norm_eps"),
        ("qwen3-calm-hf", "", "rms_norm_eps", json!(1e-300), "rms_norm_eps"),
    ];
    for (case, pointer, key, value, named) in cases {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(case);
        let folder = copy(&model.join("model"));
        let path = folder.path().join("config.json");
        let changed = with(&read(&path), pointer, key, Some(value));
        fs::write(&path, changed.to_string()).unwrap();
        match meaning(folder.path()) {
            Err(line) => assert!(line.contains(named), "{case} {key}: {line}"),
            Ok(_) => panic!("{case}: {pointer}/{key} = {value} is accepted"),
        }
    }
}
