//! Malformed safetensors headers: lengths, JSON, entries, offsets.

use super::refused;
use crate::common::{Folder, TINY, file_of};

const FILE: &str = "model.safetensors";

fn with_file(bytes: Vec<u8>) -> Folder {
    let folder = Folder::new();
    folder.write("config.json", TINY.config().to_string());
    folder.write(FILE, bytes);
    folder
}

/// One tensor `norm.weight` with these members, and four bytes of data.
fn entry(members: &str) -> String {
    format!(r#"{{"norm.weight":{{{members}}}}}"#)
}

fn shaped(shape: &str, offsets: &str) -> String {
    entry(&format!(r#""dtype":"BF16","shape":{shape},"data_offsets":{offsets}"#))
}

#[test]
fn headers_that_are_no_headers() {
    let good = shaped("[2]", "[0,4]");
    let one = &good[1..good.len() - 1];
    let long_name = good.replace("norm.weight", &"n".repeat(600));
    let cases: &[(&str, String, &[&str])] = &[
        ("empty header", String::new(), &["header"]),
        ("not JSON", "hello".into(), &["header"]),
        ("a list", "[]".into(), &["header"]),
        ("a number", "7".into(), &["header"]),
        ("null", "null".into(), &["header"]),
        ("cut off", good[..good.len() - 2].into(), &["header"]),
        ("trailing text", format!("{good} x"), &["header"]),
        ("NUL after the object", format!("{good}\0"), &["header"]),
        ("nesting of lists", "[".repeat(100_000), &["header"]),
        ("nesting of objects", r#"{"a":"#.repeat(100_000), &["header"]),
        (
            "nesting inside metadata",
            format!(r#"{{"__metadata__":{}"#, "[".repeat(9000)),
            &["header"],
        ),
        (
            "metadata twice",
            format!(r#"{{"__metadata__":{{}},"__metadata__":{{}},{one}}}"#),
            &["twice"],
        ),
        ("metadata a list", format!(r#"{{"__metadata__":[],{one}}}"#), &["__metadata__"]),
        (
            "metadata format a number",
            format!(r#"{{"__metadata__":{{"format":3}},{one}}}"#),
            &["header"],
        ),
        ("name twice", format!("{{{one},{one}}}"), &["norm.weight", "twice"]),
        ("empty name", good.replace("norm.weight", ""), &["tensor name", "1 to 512"]),
        ("name of 600 bytes", long_name, &["tensor name", "600 bytes"]),
        (
            "name with a line break",
            good.replace("norm.weight", "a\\nb").replace("BF16", "Q9"),
            &["dtype"],
        ),
        ("lone surrogate in a name", good.replace("norm", "\\ud800"), &["header"]),
        ("entry a list", r#"{"norm.weight":[]}"#.into(), &["norm.weight"]),
        ("entry null", r#"{"norm.weight":null}"#.into(), &["norm.weight"]),
        ("dtype missing", entry(r#""shape":[2],"data_offsets":[0,4]"#), &["norm.weight", "dtype"]),
        (
            "shape missing",
            entry(r#""dtype":"BF16","data_offsets":[0,4]"#),
            &["norm.weight", "shape"],
        ),
        (
            "offsets missing",
            entry(r#""dtype":"BF16","shape":[2]"#),
            &["norm.weight", "data_offsets"],
        ),
        (
            "dtype twice",
            entry(r#""dtype":"BF16","dtype":"F32","shape":[2],"data_offsets":[0,4]"#),
            &["norm.weight"],
        ),
        ("unknown dtype", good.replace("BF16", "Q9"), &["norm.weight: dtype", "Q9"]),
        (
            "dtype a number",
            entry(r#""dtype":3,"shape":[2],"data_offsets":[0,4]"#),
            &["norm.weight"],
        ),
        ("shape a number", shaped("2", "[0,4]"), &["norm.weight"]),
        ("negative size", shaped("[-1]", "[0,4]"), &["norm.weight"]),
        ("fractional size", shaped("[2.5]", "[0,4]"), &["norm.weight"]),
        ("size beyond 64 bits", shaped("[36893488147419103232]", "[0,4]"), &["norm.weight"]),
        (
            "shape that overflows",
            shaped("[4294967296,4294967296]", "[0,4]"),
            &["norm.weight", "overflows"],
        ),
        ("nine dimensions", shaped("[1,1,1,1,1,1,1,1,2]", "[0,4]"), &["norm.weight: dimensions"]),
        ("no size left", shaped("[0]", "[0,4]"), &["norm.weight", "span 4"]),
        ("offsets backwards", shaped("[2]", "[4,0]"), &["norm.weight", "backwards"]),
        ("offsets of three", shaped("[2]", "[0,4,8]"), &["norm.weight"]),
        ("offsets of one", shaped("[2]", "[0]"), &["norm.weight"]),
        ("negative offset", shaped("[2]", "[-4,0]"), &["norm.weight"]),
        ("past the end", shaped("[4]", "[0,8]"), &["norm.weight", "needs a file"]),
        ("one byte past the end", shaped("[2]", "[1,5]"), &["norm.weight", "needs a file"]),
        (
            "offset near 2^64",
            shaped("[2]", "[18446744073709551611,18446744073709551615]"),
            &["norm.weight"],
        ),
        ("span and shape differ", shaped("[1]", "[0,4]"), &["norm.weight", "span 4"]),
        ("a hole in front", shaped("[1]", "[2,4]"), &["norm.weight", "hole"]),
        ("bytes left over", shaped("[1]", "[0,2]"), &["end of the last tensor"]),
        ("no tensors but data", "{}".into(), &["end of the last tensor"]),
    ];
    for (name, header, words) in cases {
        refused(name, with_file(file_of(header, &[0; 4])).path(), FILE, words);
    }
}

#[test]
fn two_tensors_on_the_same_bytes() {
    let header = |first: &str, second: &str| {
        let entry = |name: &str, offsets: &str| {
            format!(r#""{name}":{{"dtype":"BF16","shape":[2],"data_offsets":{offsets}}}"#)
        };
        format!("{{{},{}}}", entry("a", first), entry("b", second))
    };
    let cases = [
        ("the same bytes", header("[0,4]", "[0,4]"), "overlaps"),
        ("half of the bytes", header("[0,4]", "[2,6]"), "overlaps"),
        ("a hole between", header("[0,4]", "[6,10]"), "hole"),
    ];
    for (name, header, word) in cases {
        refused(name, with_file(file_of(&header, &[0; 10])).path(), FILE, &["b", word]);
    }
}

#[test]
fn lengths_that_lie() {
    let good = file_of(&shaped("[2]", "[0,4]"), &[0; 4]);
    let with_length = |length: u64| {
        let mut file = good.clone();
        file[..8].copy_from_slice(&length.to_le_bytes());
        file
    };
    let actual = u64::from_le_bytes(good[..8].try_into().unwrap());
    let cases: &[(&str, Vec<u8>, &[&str])] = &[
        ("no file at all", Vec::new(), &["header length", "8 bytes"]),
        ("seven bytes", vec![0; 7], &["header length", "8 bytes"]),
        ("only a length", actual.to_le_bytes().to_vec(), &["header", "needs a file"]),
        ("length 2^64 - 1", with_length(u64::MAX), &["header length", "limit"]),
        ("length 2^63", with_length(1 << 63), &["header length", "limit"]),
        ("length of 100 MB and one", with_length(100_000_001), &["header length", "limit"]),
        ("length of the whole file", with_length(good.len() as u64), &["header", "needs a file"]),
        ("length into the data", with_length(actual + 2), &["header"]),
        ("length short by one", with_length(actual - 1), &["header"]),
        ("length zero", with_length(0), &["header"]),
        ("length byte-swapped", with_length(actual.swap_bytes()), &["header length", "limit"]),
        ("data cut by a byte", good[..good.len() - 1].to_vec(), &["norm.weight", "needs a file"]),
        ("a byte too many", [&good[..], &[0]].concat(), &["end of the last tensor"]),
        (
            "a web page",
            b"<!DOCTYPE html><html><body>404</body></html>".to_vec(),
            &["header length"],
        ),
        (
            "a large-file pointer",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0".to_vec(),
            &["header length"],
        ),
    ];
    for (name, bytes, words) in cases {
        refused(name, with_file(bytes.clone()).path(), FILE, words);
    }
}

#[test]
fn a_cut_file_is_told_the_size_of_the_whole() {
    let folder = Folder::mlx();
    let path = folder.path().join(FILE);
    let whole = std::fs::metadata(&path).unwrap().len();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    for at in [whole - 1, whole / 2, whole / 4] {
        file.set_len(at).unwrap();
        let size = format!("needs a file of {whole} bytes, found {at}");
        let message = store::format::open(folder.path()).unwrap_err().to_string();
        assert!(message.contains(&size), "{message}");
    }
}
