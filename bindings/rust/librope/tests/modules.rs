//! The order of the source files: each uses those before it alone, so that there is no circle.

use std::fs;
use std::path::Path;

const ORDER: [&str; 35] = [
    "enums",
    "messages",
    "error",
    "element",
    "size",
    "scaling",
    "config",
    "positions",
    "info",
    "rows",
    "strides",
    "scale",
    "tensor",
    "runner",
    "slots",
    "shard",
    "norm",
    "step",
    "slot_runner",
    "shard_ids",
    "context",
    "fill",
    "cache",
    "byte_part",
    "gradient",
    "call",
    "append",
    "prepared",
    "prepared_append",
    "prepared_call",
    "model",
    "latent",
    "prompt",
    "cuda",
    "ndarray",
];

fn place(module: &str) -> Option<usize> {
    ORDER.iter().position(|&name| name == module)
}

/// The modules of this crate that a file names, its tests and comments left out.
fn used(text: &str) -> Vec<String> {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let paths = lines.flat_map(|line| line.split("crate::").skip(1));
    let names = paths.map(|path| {
        path.chars().take_while(|&c| c.is_ascii_lowercase() || c == '_').collect::<String>()
    });
    names.filter(|name| !name.is_empty()).collect()
}

#[test]
fn files_use_earlier_ones_alone() {
    let mut found = 0;
    for folder in ["src", "src/config"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        for entry in fs::read_dir(&folder).expect("the sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() || path.ends_with("lib.rs") {
                continue;
            }
            let stem = path.file_stem().expect("a name").to_string_lossy().into_owned();
            let module = if folder.ends_with("config") { "config" } else { &stem };
            let own = place(module).unwrap_or_else(|| panic!("{module} has no place in ORDER"));
            for name in used(&fs::read_to_string(&path).expect("text")) {
                let other = place(&name).unwrap_or_else(|| panic!("{module} uses {name}"));
                assert!(other < own, "{module} uses {name}, which stands behind it");
                found += 1;
            }
        }
    }
    assert!(found > 30, "{found} uses: what this test reads has changed its form");
}
