//! Goal: no value of a configuration is misread in silence. Method: every key that the reader's table knows is given
//! every wrong type and range, wherever the key can stand, in every committed model; each must be refused in one
//! line that names file and key, or leave the model exactly what it was.
//!
//! What a model computes follows from its shapes and from the description of its tensors; both are compared, so
//! no forward pass is needed. The table is the only way to the configuration's keys, so a new key is met here.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use engine::model::Model;
use engine::model::config::ModelConfig;
use engine::model::mixture::expert_shapes;
use engine::weights::Catalog;
use serde_json::{Value, json};
use store::format::config::keys::{self, AnyKey, Place};
use store::format::{Checkpoint, open};

/// Longest line of a refusal, bytes.
const LINE_BYTES_MAX: usize = 800;

fn models() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let golden = [
        "qwen3-calm-hf",
        "qwen3next-calm-hf",
        "gptoss-calm-mxfp4",
        "dsv4-calm-hf",
        "deepseek-calm-hf",
        "glm-flash-calm-mlxlm-4bit",
        "qwen35-calm-hf",
        "qwen35-calm-mlx-mixed",
        "qwen35-calm-mlxlm-4bit",
        "qwen35-hf",
    ];
    let golden = golden.map(|name| root.join("tests/golden").join(name).join("model"));
    golden.into_iter().chain([root.join("models/demo")]).collect()
}

/// A folder with the same files; the small ones may be written.
fn copy(model: &Path) -> tempfile::TempDir {
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
fn meaning(folder: &Path) -> Result<String, String> {
    let checkpoint = open(folder).map_err(|error| error.to_string())?;
    let config = ModelConfig::read(&checkpoint.config).map_err(|error| error.to_string())?;
    let mut catalog = Catalog::new(&checkpoint);
    Model::declare(&config, &mut catalog).map_err(|error| error.to_string())?;
    expert_shapes(&checkpoint, &config).map_err(|error| error.to_string())?;
    let ends = checkpoint.end_tokens().map_err(|error| error.to_string())?;
    let Checkpoint { tensors, experts, norms_are_zero_centred, .. } = &checkpoint;
    Ok(format!("{config:?} {ends:?} {norms_are_zero_centred} {tensors:?} {experts:?}"))
}

/// One value of every type, and numbers at and beyond the ends of every range.
fn values() -> Vec<Value> {
    let text = "x".repeat(100_000);
    vec![
        Value::Null,
        json!(true),
        json!(false),
        json!(0),
        json!(-1),
        json!(0.5),
        json!(-0.0),
        json!(1e300),
        json!(1_u64 << 53),
        json!(u64::MAX),
        json!(""),
        json!("4"),
        json!("a\nb\u{1b}[31m\u{9b}"),
        json!(text),
        json!([]),
        json!([null]),
        json!([[1]]),
        json!(["x"]),
        json!({}),
        json!({"x": 1}),
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

/// The files that hold keys of a place, and the objects in them (JSON pointers).
fn objects(checkpoint: &Checkpoint, place: Place) -> (&'static str, Vec<String>) {
    if place == Place::Generation {
        return ("generation_config.json", vec![String::new()]);
    }
    let places = checkpoint.config.places(place);
    ("config.json", places.into_iter().map(|(path, _)| path).collect())
}

fn read(path: &Path) -> Value {
    fs::read(path).map_or(json!({}), |bytes| serde_json::from_slice(&bytes).unwrap())
}

/// `json` with `key` of the object at `pointer` set, or removed.
fn with(json: &Value, pointer: &str, key: &str, value: Option<&Value>) -> Value {
    let mut changed = json.clone();
    let object = changed.pointer_mut(pointer).unwrap().as_object_mut().unwrap();
    match value {
        Some(value) => drop(object.insert(key.to_owned(), value.clone())),
        None => drop(object.shift_remove(key)),
    }
    changed
}

fn judge(key: &dyn AnyKey, value: &Value, found: Result<String, String>, right: &[&str]) -> String {
    let line = match found {
        Ok(meaning) if right.contains(&meaning.as_str()) => return String::new(),
        Ok(_) => return "accepted, and means something else".to_owned(),
        Err(line) => line,
    };
    let named = line.contains(key.name()) || value.is_null();
    if named && line.len() < LINE_BYTES_MAX && !line.chars().any(char::is_control) {
        return String::new();
    }
    format!("refused in {} bytes: {}", line.len(), line.chars().take(300).collect::<String>())
}

/// Family, changes tried, and what was wrong with them.
fn try_every_value(model: &Path) -> (String, usize, Vec<String>) {
    let (mut tried, mut wrong) = (0, Vec::new());
    let folder = copy(model);
    let checkpoint = open(folder.path()).unwrap();
    let right = meaning(folder.path()).unwrap();
    for key in keys::all() {
        let (file, pointers) = objects(&checkpoint, key.place());
        let path = folder.path().join(file);
        let (existed, json) = (path.exists(), read(&path));
        for pointer in pointers {
            let of = |value: Option<&Value>| {
                let changed = with(&json, &pointer, key.name(), value);
                fs::write(&path, changed.to_string()).unwrap();
                meaning(folder.path())
            };
            for value in values() {
                // A value that fits is another model, not a mistake.
                let null = value.is_null() && key.nullable();
                if key.complaint(&value).is_none() && !null {
                    continue;
                }
                tried += 1;
                let found = of(Some(&value));
                // Where null is as good as absent, it means what absence means.
                let absent = if null { of(None).unwrap_or_default() } else { String::new() };
                let verdict = judge(key.as_ref(), &value, found, &[&right, &absent]);
                if !verdict.is_empty() {
                    let shown: String = value.to_string().chars().take(40).collect();
                    let place = format!("{}: {file}{pointer}/{}", model.display(), key.name());
                    wrong.push(format!("{place} = {shown}: {verdict}"));
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
    let family = checkpoint.config.supported_family().unwrap();
    (format!("{family:?}"), tried, wrong)
}

#[test]
fn no_wrong_type_or_range_is_taken_for_something_else() {
    let (mut tried, mut wrong) = (0, Vec::new());
    let mut families = BTreeMap::new();
    let models = models();
    // Ninety seconds on one core.
    let found: Vec<_> = std::thread::scope(|scope| {
        let each = |model| scope.spawn(move || try_every_value(model));
        let running: Vec<_> = models.iter().map(|model: &PathBuf| each(model.as_path())).collect();
        running.into_iter().map(|running| running.join().unwrap()).collect()
    });
    for (family, its, complaints) in found {
        tried += its;
        wrong.extend(complaints);
        *families.entry(family).or_insert(0) += its;
    }
    assert!(wrong.is_empty(), "{} of {tried}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(families.values().all(|&tried| tried >= 1000), "too few were tried: {families:?}");
}

/// What a value of the right type is taken for, key by key: a key whose type accepts too much would pass above.
#[test]
fn another_type_than_the_files_have_is_refused() {
    let (mut tried, mut wrong) = (0, Vec::new());
    for model in models() {
        let folder = copy(&model);
        let checkpoint = open(folder.path()).unwrap();
        let right = meaning(folder.path()).unwrap();
        for key in keys::all() {
            let (file, pointers) = objects(&checkpoint, key.place());
            let path = folder.path().join(file);
            let json = read(&path);
            for pointer in pointers {
                let Some(old) = json.pointer(&pointer).and_then(|object| object.get(key.name()))
                else {
                    continue;
                };
                let old_type = std::mem::discriminant(old);
                let null = |value: &Value| value.is_null() && key.nullable();
                // Token ids are written as a list or as one number: 0 is a token.
                let token = |value: &Value| value.is_u64() && key.name() == "eos_token_id";
                for value in values() {
                    let same_type = std::mem::discriminant(&value) == old_type || old.is_null();
                    if same_type || null(&value) || token(&value) {
                        continue;
                    }
                    tried += 1;
                    let changed = with(&json, &pointer, key.name(), Some(&value));
                    fs::write(&path, changed.to_string()).unwrap();
                    if meaning(folder.path()).is_ok_and(|meaning| meaning != right) {
                        let shown: String = value.to_string().chars().take(40).collect();
                        wrong.push(format!(
                            "{}{pointer}/{} = {shown}",
                            model.display(),
                            key.name()
                        ));
                    }
                }
            }
            if !json.as_object().unwrap().is_empty() {
                fs::write(&path, json.to_string()).unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {tried}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(tried > 1000, "only {tried} changes were tried");
}
