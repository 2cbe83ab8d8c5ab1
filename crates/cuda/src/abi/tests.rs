//! Writes the headers of the kernels, compares them with the committed ones, and shows that the lists are complete.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use super::{CODES, CONSTANTS, Field, Layout};
use crate::launch::{self, Kernel, Unit};
use crate::matrix;

fn layouts() -> impl Iterator<Item = &'static Layout> {
    matrix::LAYOUTS.iter().chain(launch::layouts())
}

/// `kernels/abi.cuh`.
fn codes() -> String {
    let mut text = String::from(
        "// Constants and codes that both sides use. Generated from src/abi.rs, which says how: edit that.\n\
         #pragma once\n#include <cstdint>\n\n",
    );
    for constant in CONSTANTS {
        let suffix = if constant.kind == "uint64_t" { "ull" } else { "u" };
        let value = match constant.value {
            value if value < 1 << 16 => value.to_string(),
            value => format!("{value:#x}{suffix}"),
        };
        comment(&mut text, constant.doc);
        writeln!(text, "constexpr {} {} = {value};", constant.kind, constant.name).unwrap();
    }
    for codes in CODES {
        let names: Vec<_> =
            codes.names.iter().zip(0..).map(|(name, code)| format!("{name} = {code}")).collect();
        text.push('\n');
        comment(&mut text, codes.doc);
        let line = format!("enum {} : uint32_t {{ {} }};", codes.name, names.join(", "));
        match line.len() <= 120 {
            true => writeln!(text, "{line}").unwrap(),
            false => {
                let lines = names.chunks(4).map(|names| format!("    {},\n", names.join(", ")));
                let lines = lines.collect::<String>();
                writeln!(text, "enum {} : uint32_t {{\n{lines}}};", codes.name).unwrap();
            }
        }
    }
    text
}

/// Appends a statement to the last line, or begins another where it does not fit.
fn add_to_line(text: &mut String, statement: &str) {
    let line = text.len() - text.rfind('\n').map_or(0, |at| at + 1);
    match line {
        0 => {}
        _ if line + 1 + statement.len() > 120 => text.push('\n'),
        _ => text.push(' '),
    }
    text.push_str(statement);
}

/// A comment of the text of a doc comment, without its links.
fn comment(text: &mut String, doc: &str) {
    writeln!(text, "//{}", doc.replace("[`crate::launch::", "`").replace("`]", "`")).unwrap();
}

/// `kernels/layouts.cuh`.
fn assertions() -> String {
    let mut text = String::from(
        "// Every structure of arguments is laid out as the host writes it, and every kernel takes the one that it is\n\
         // launched with. Generated from the lists in src (see src/abi.rs): edit those. Included after all kernels.\n\
         #pragma once\n\
         #include <cstddef>\n\
         #include <type_traits>\n\n\
         namespace layouts {\n\
         // A word of 64 bits of the host: an address here, or an integer.\n\
         struct Word {};\n\
         template <typename Host, typename Device>\n\
         constexpr bool same = std::is_same_v<Host, Device>;\n\
         template <typename Device>\n\
         constexpr bool same<Word, Device> = sizeof(Device) == 8 && (std::is_pointer_v<Device> || \
         std::is_unsigned_v<Device>);\n\
         } // namespace layouts\n\n\
         #define STRUCTURE(structure, bytes) static_assert(sizeof(structure) == bytes, \"src: \" #structure)\n\
         #define FIELD(structure, field, type, at)                                          \\\n    \
             static_assert(offsetof(structure, field) == at, \"src: \" #structure \".\" #field); \\\n    \
             static_assert(layouts::same<type, decltype(structure::field)>, \"src: \" #structure \".\" #field)\n\
         #define KERNEL(kernel, structure) \\\n    \
             static_assert(std::is_same_v<decltype(&kernel), void (*)(structure)>, \"src: \" #kernel)\n",
    );
    for layout in layouts() {
        writeln!(text, "\nSTRUCTURE({}, {});", layout.name, layout.bytes).unwrap();
        for Field { name, element, count, offset, .. } in layout.fields {
            let element = if *element == "Word" { "layouts::Word" } else { element };
            let array = if *count > 0 { format!("[{count}]") } else { String::new() };
            let field = format!("FIELD({}, {name}, {element}{array}, {offset});", layout.name);
            add_to_line(&mut text, &field);
        }
        text.push('\n');
        for kernel in layout.kernels {
            add_to_line(&mut text, &format!("KERNEL({}, {});", kernel.name(), layout.name));
        }
        if !layout.kernels.is_empty() {
            text.push('\n');
        }
    }
    text.push_str("\n#undef STRUCTURE\n#undef FIELD\n#undef KERNEL\n");
    text
}

#[test]
fn the_kernels_are_held_to_these_declarations() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    for (name, now) in [("abi.cuh", codes()), ("layouts.cuh", assertions())] {
        let path = folder.join(name);
        if std::env::var_os("UPDATE_ABI").is_some() {
            std::fs::write(&path, now).unwrap();
        } else {
            let committed = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(
                committed == now,
                "{name} is not what src declares: run UPDATE_ABI=1 cargo test -p flashmoe-cuda abi, then \
                 kernels/build.sh"
            );
        }
    }
    let all = std::fs::read_to_string(folder.join("all.cu")).unwrap();
    let last = all.trim_end().lines().last();
    assert_eq!(last, Some("#include \"layouts.cuh\""), "checks come after all structures");
}

/// The kernels that the host asks a unit's image for are those that its sources define (`kernels/build.sh` lists them),
/// and the assertions see every unit.
#[test]
fn every_unit_has_its_kernels() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let all = std::fs::read_to_string(folder.join("all.cu")).unwrap();
    for unit in Unit::ALL {
        let file = unit.file();
        assert!(all.contains(&format!("#include \"units/{file}.cu\"")), "all.cu includes {file}");
        let list = folder.join(format!("prebuilt/{file}.kernels"));
        let list = std::fs::read_to_string(list).expect("a list of kernels: run kernels/build.sh");
        let defined: BTreeSet<&str> = list.lines().collect();
        let asked =
            Kernel::ALL.iter().filter(|kernel| kernel.unit() == *unit).map(|kernel| kernel.name());
        assert_eq!(asked.collect::<BTreeSet<_>>(), defined, "kernels of {file}");
    }
}

#[test]
fn every_kernel_takes_one_structure() {
    for kernel in Kernel::ALL {
        let takers = layouts().filter(|layout| layout.kernels.contains(kernel));
        assert_eq!(takers.count(), 1, "structures that {} takes", kernel.name());
    }
}

/// A structure that mirrors one of the device is launched, and so listed, or is part of one that is.
#[test]
fn every_structure_of_this_layout_is_listed() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut folders, mut declared) = (vec![source], 0);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let text = std::fs::read_to_string(&path).unwrap();
                declared += text.lines().filter(|line| line.trim() == "#[repr(C)]").count();
            }
        }
    }
    assert_eq!(layouts().count(), declared, "structures declared with the layout of C");
}

#[test]
fn gaps_and_other_orders_are_found() {
    const fn at(offset: usize, bytes: usize) -> Field {
        Field { name: "field", element: "uint32_t", count: 0, offset, bytes }
    }
    let holds = |fields, bytes| Layout { name: "", bytes, fields, kernels: &[] }.has_no_gaps();
    assert!(holds(&const { [at(0, 8), at(8, 4), at(12, 4)] }, 16));
    assert!(!holds(&const { [at(0, 8), at(8, 4)] }, 16), "padding at the end");
    assert!(!holds(&const { [at(0, 4), at(8, 8)] }, 16), "padding between");
    assert!(!holds(&const { [at(8, 8), at(0, 8)] }, 16), "another order");
}
