//! Goal: a download ends with the right bytes under the hub's own names whatever the network does, asks for no byte
//! twice, and gives no secret away. Method: a hub on this machine with faults on order.

use crate::support;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use hub::{Cache, Found, Hub, HubError, Limits, ModelName, Pulled, Selection, Settings};
use support::{COMMIT, Fault, NAME, TestHub, hexadecimal};

const SEGMENT: u64 = 4096;

fn noise(length: usize, seed: u32) -> Vec<u8> {
    let mut state = seed | 1;
    let mut byte = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..length).map(|_| byte()).collect()
}

pub(crate) fn files() -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    files.insert("config.json".to_owned(), b"{}".to_vec());
    files.insert("README.md".to_owned(), b"not wanted".to_vec());
    files.insert("tokenizer.json".to_owned(), noise(600, 1));
    files.insert("model-00001-of-00002.safetensors".to_owned(), noise(100_000, 2));
    files.insert("model-00002-of-00002.safetensors".to_owned(), noise(50_001, 3));
    files
}

pub(crate) fn settings(test: &TestHub, cache: &Path) -> Settings {
    let limits = Limits {
        segment_bytes: SEGMENT,
        connections: 3,
        attempts: 4,
        backoff: Duration::from_millis(5),
        patience: Duration::from_secs(5),
        retry_after: Duration::from_secs(2),
        ..Limits::default()
    };
    let endpoint = test.endpoint.clone();
    let cache = cache.to_owned();
    Settings { endpoint, cache, token: None, offline: false, certificates: None, limits }
}

pub(crate) fn name() -> ModelName {
    NAME.parse().unwrap()
}

pub(crate) fn pull(settings: Settings) -> Result<Pulled, HubError> {
    let stop = AtomicBool::new(false);
    let hub = Hub::new(settings)?;
    let repository = hub.describe(&name(), &stop)?;
    let selection = Selection::choose(&name(), &repository)?;
    hub.pull(&name(), &selection, &stop, &mut |_| {})
}

pub(crate) fn assert_whole(test: &TestHub, cache: &Path, pulled: &Pulled) {
    for (path, bytes) in test.state.files.iter().filter(|(path, _)| *path != "README.md") {
        assert_eq!(&std::fs::read(pulled.snapshot.join(path)).unwrap(), bytes, "{path}");
    }
    assert!(!pulled.snapshot.join("README.md").exists());
    let repository = cache.join("models--acme--tiny");
    assert_eq!(pulled.snapshot, repository.join("snapshots").join(COMMIT));
    assert_eq!(std::fs::read_to_string(repository.join("refs/main")).unwrap(), COMMIT);
    let names = std::fs::read_dir(repository.join("blobs")).unwrap();
    let names: Vec<_> = names.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(names.len(), 4, "{names:?}");
    assert!(names.iter().all(|name| [40, 64].contains(&name.len())), "{names:?}");
    assert_eq!(Cache::new(cache).find(&name()), Found::Whole(pulled.snapshot.clone()));
}

#[test]
fn every_byte_is_fetched_once_into_the_hubs_own_layout() {
    let test = TestHub::start(files());
    let folder = tempfile::tempdir().unwrap();
    let pulled = pull(settings(&test, folder.path())).unwrap();
    assert_whole(&test, folder.path(), &pulled);
    let wanted = test.bytes() - "not wanted".len() as u64;
    assert_eq!((test.sent(), pulled.fetched), (wanted, wanted));
    // Large files lie under their SHA-256, as a relative link.
    let link = std::fs::read_link(pulled.snapshot.join("tokenizer.json")).unwrap();
    use sha2::Digest;
    let sha256 = hexadecimal(&sha2::Sha256::digest(&test.state.files["tokenizer.json"]));
    assert_eq!(link, Path::new("../../blobs").join(sha256));
    // And again: nothing.
    let again = pull(settings(&test, folder.path())).unwrap();
    assert_eq!((test.sent(), again.fetched), (wanted, 0));
}

#[test]
fn what_goes_wrong_on_the_way_is_mended() {
    let test = TestHub::start(files());
    let folder = tempfile::tempdir().unwrap();
    test.order([
        Fault::Status(503, None),
        Fault::Cut(1),
        Fault::Status(429, Some("1")),
        Fault::Cut(100),
        // A signature that has expired.
        Fault::Status(403, None),
        Fault::Cut(0),
        Fault::Status(500, None),
        Fault::Cut(2000),
    ]);
    let pulled = pull(settings(&test, folder.path())).unwrap();
    assert_whole(&test, folder.path(), &pulled);
    assert_eq!(test.sent(), test.bytes() - 10, "what had arrived is not fetched again");
}

#[test]
fn a_download_goes_on_where_another_stopped() {
    let test = TestHub::start(files());
    let folder = tempfile::tempdir().unwrap();
    let large = &test.state.files["model-00001-of-00002.safetensors"];
    use sha2::Digest;
    let sha256 = hexadecimal(&sha2::Sha256::digest(large));
    let blobs = folder.path().join("models--acme--tiny/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::write(blobs.join(format!("{sha256}.incomplete")), &large[..70_000]).unwrap();
    let pulled = pull(settings(&test, folder.path())).unwrap();
    assert_whole(&test, folder.path(), &pulled);
    assert_eq!(test.sent(), test.bytes() - 10 - 70_000);
}

#[test]
fn damaged_bytes_are_removed_and_never_linked() {
    let test = TestHub::start(files());
    let folder = tempfile::tempdir().unwrap();
    test.order([Fault::Corrupt]);
    let error = pull(settings(&test, folder.path())).unwrap_err();
    assert!(matches!(error, HubError::Checksum { .. }), "{error}");
    assert!(matches!(Cache::new(folder.path()).find(&name()), Found::Part(_)));
    let pulled = pull(settings(&test, folder.path())).unwrap();
    assert_whole(&test, folder.path(), &pulled);
}

#[test]
fn answers_that_contradict_the_listing_are_refused() {
    for (fault, word) in [
        (Fault::Size(99), "listed with"),
        (Fault::Redirect("file:///etc/passwd"), "redirect"),
        (Fault::Status(418, None), "418"),
        (Fault::Status(503, Some("86400")), "86400 s"),
    ] {
        let test = TestHub::start(files());
        let folder = tempfile::tempdir().unwrap();
        test.order([fault.clone(), fault]);
        let told = pull(settings(&test, folder.path())).unwrap_err().to_string();
        assert!(told.contains(word) && !told.contains("secret"), "{told}");
    }
    // A server without ranges serves files of one segment, and no others.
    let test = TestHub::start(files());
    let folder = tempfile::tempdir().unwrap();
    test.order(vec![Fault::NoRanges; 50]);
    let told = pull(settings(&test, folder.path())).unwrap_err().to_string();
    assert!(told.contains("ranges"), "{told}");
}

#[test]
fn a_download_is_given_up_after_its_attempts() {
    let test = TestHub::start(files());
    let folder = tempfile::tempdir().unwrap();
    test.order(vec![Fault::Status(503, None); 50]);
    let error = pull(settings(&test, folder.path())).unwrap_err();
    assert!(matches!(error, HubError::Status { status: 503, attempts: 4, .. }), "{error}");
}

#[test]
fn a_hub_that_dawdles_is_not_waited_for() {
    let test = TestHub::start(files());
    let folder = tempfile::tempdir().unwrap();
    test.order(vec![Fault::Slow; 50]);
    let mut settings = settings(&test, folder.path());
    settings.limits.patience = Duration::from_millis(300);
    settings.limits.attempts = 1;
    settings.limits.slowest = 1 << 20;
    let told = pull(settings).unwrap_err().to_string();
    assert!(told.contains("too slow"), "{told}");
}

#[test]
fn one_new_byte_an_attempt_is_no_progress() {
    let test = TestHub::start(files());
    let folder = tempfile::tempdir().unwrap();
    test.order(vec![Fault::Cut(1); 2000]);
    let mut settings = settings(&test, folder.path());
    settings.limits.slowest = 1 << 20;
    let error = pull(settings).unwrap_err();
    assert!(matches!(error, HubError::Network { .. }), "{error}");
    assert!(test.asked().len() < 100, "{} requests", test.asked().len());
}

#[test]
fn the_token_goes_to_the_hub_and_nowhere_else() {
    let test = TestHub::start(files());
    *test.state.token.lock().unwrap() = Some("hf_secret".to_owned());
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(&test, folder.path());
    let told = pull(settings.clone()).unwrap_err();
    assert!(matches!(told, HubError::TokenMissing { .. }), "{told}");
    settings.token = Some(("hf_wrong".to_owned(), "HF_TOKEN".to_owned()));
    let told = pull(settings.clone()).unwrap_err();
    assert!(matches!(told, HubError::TokenRefused { .. }), "{told}");
    assert!(!told.to_string().contains("hf_wrong"));
    settings.token = Some(("hf_secret".to_owned(), "HF_TOKEN".to_owned()));
    pull(settings).unwrap();
    let elsewhere: Vec<_> = test.asked().into_iter().filter(|asked| !asked.at_hub).collect();
    assert!(!elsewhere.is_empty());
    assert!(elsewhere.iter().all(|asked| asked.authorization.is_none()));
}

#[test]
fn refusals_say_what_to_do() {
    for (code, word) in [(403, "accept the model's terms"), (404, "no such model")] {
        let test = TestHub::start(files());
        *test.state.listing.lock().unwrap() = Some((code, String::new()));
        let folder = tempfile::tempdir().unwrap();
        let told = pull(settings(&test, folder.path())).unwrap_err().to_string();
        assert!(told.contains(word) && told.contains(NAME), "{told}");
    }
    let test = TestHub::start(files());
    let folder = tempfile::tempdir().unwrap();
    let mut offline = settings(&test, folder.path());
    offline.offline = true;
    let told = pull(offline).unwrap_err().to_string();
    assert!(told.contains("HF_HUB_OFFLINE") && test.asked().is_empty(), "{told}");
}

#[test]
fn listings_of_a_hostile_hub_are_bounded_and_refused() {
    let entry = |name: &str| format!(r#"{{"rfilename":"{name}","size":1,"blobId":"{COMMIT}"}}"#);
    let wrap = |entries: &str| format!(r#"{{"sha":"{COMMIT}","siblings":[{entries}]}}"#);
    let many: Vec<String> = (0..20_001).map(|index| entry(&format!("{index}.json"))).collect();
    for body in [
        wrap(&entry("../../x.json")),
        wrap(&entry("/etc/passwd")),
        wrap(&many.join(",")),
        wrap("").replace(COMMIT, "../../../x"),
        "[".repeat(100_000),
        " ".repeat(33 << 20),
        wrap(r#"{"rfilename":"a.safetensors","size":1}"#),
    ] {
        let test = TestHub::start(files());
        *test.state.listing.lock().unwrap() = Some((200, body));
        let folder = tempfile::tempdir().unwrap();
        let told = pull(settings(&test, folder.path())).unwrap_err().to_string();
        assert!(told.contains("refused") && told.len() < 700, "{told}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
    let test = TestHub::start(files());
    let huge = format!(
        r#"{{"rfilename":"m.safetensors","lfs":{{"sha256":"{}","size":{}}}}}"#,
        "a".repeat(64),
        1_u64 << 43
    );
    *test.state.listing.lock().unwrap() = Some((200, wrap(&huge)));
    let folder = tempfile::tempdir().unwrap();
    let error = pull(settings(&test, folder.path())).unwrap_err();
    assert!(matches!(error, HubError::Disk { needed, .. } if needed == 1 << 43), "{error}");
}

#[cfg(unix)]
#[test]
fn a_link_in_the_place_of_a_blob_is_not_written_through() {
    let test = TestHub::start(files());
    let folder = tempfile::tempdir().unwrap();
    let victim = folder.path().join("victim");
    std::fs::write(&victim, "").unwrap();
    use sha2::Digest;
    let sha256 = hexadecimal(&sha2::Sha256::digest(&test.state.files["tokenizer.json"]));
    let blobs = folder.path().join("models--acme--tiny/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    std::os::unix::fs::symlink(&victim, blobs.join(format!("{sha256}.incomplete"))).unwrap();
    assert!(pull(settings(&test, folder.path())).is_err());
    assert_eq!(std::fs::read(&victim).unwrap(), b"");
}

#[test]
fn two_programs_fetch_each_byte_once_between_them() {
    let test = TestHub::start(files());
    let folder = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        let both = [(), ()].map(|()| scope.spawn(|| pull(settings(&test, folder.path()))));
        for one in both {
            let pulled = one.join().unwrap().unwrap();
            assert_whole(&test, folder.path(), &pulled);
        }
    });
    assert_eq!(test.sent(), test.bytes() - 10);
}

#[test]
fn headers_come_without_the_weights() {
    let mut files = files();
    let header = br#"{"w":{"dtype":"U8","shape":[500000],"data_offsets":[0,500000]}}"#;
    let mut shard = (header.len() as u64).to_le_bytes().to_vec();
    shard.extend(header);
    shard.extend(noise(500_000, 7));
    files.insert("model-00001-of-00002.safetensors".to_owned(), shard.clone());
    let test = TestHub::start(files);
    let (cache, sparse) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let hub = Hub::new(settings(&test, cache.path())).unwrap();
    let stop = AtomicBool::new(false);
    let repository = hub.describe(&name(), &stop).unwrap();
    let mut selection = Selection::choose(&name(), &repository).unwrap();
    selection.files.retain(|file| !file.path.ends_with("00002-of-00002.safetensors"));
    let fetched = hub.headers(&name(), &selection, sparse.path(), &stop).unwrap();
    assert_eq!(fetched, 2 + (256 << 10));
    let copy = std::fs::read(sparse.path().join("model-00001-of-00002.safetensors")).unwrap();
    assert_eq!(copy.len(), shard.len());
    assert_eq!(copy[..8 + header.len()], shard[..8 + header.len()]);
    let tokenizer = sparse.path().join("tokenizer.json").metadata().unwrap();
    assert_eq!(tokenizer.len(), 600);
}
