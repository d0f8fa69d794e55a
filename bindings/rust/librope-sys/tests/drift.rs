//! `src/bindings.rs` is what bindgen makes of the repository's header.

use std::fs;
use std::path::Path;

#[path = "../build/header_hash.rs"]
mod header_hash;

const COMMITTED: &str = include_str!("../src/bindings.rs");

fn header() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("vendor/include/librope/rope.h");
    fs::read_to_string(path).expect("vendor/ holds the header")
}

/// Needs no libclang: the header still is the one that the bindings were made from.
#[test]
fn header_has_the_recorded_hash() {
    let recorded = COMMITTED
        .lines()
        .find_map(|line| line.strip_prefix("// ")?.strip_prefix(header_hash::MARK))
        .expect("the second line of src/bindings.rs holds the hash of the header");
    assert_eq!(
        recorded,
        format!("{:016x}", header_hash::of(&header())),
        "rope.h has changed since: run bindings/rust/regenerate"
    );
}

#[test]
fn hash_sees_code_and_nothing_else() {
    let same = ["int a;\n", "/* a */ int // b\n  a;\n", " int a; /* c */"];
    let hash = header_hash::of("int a; ");
    assert!(same.iter().all(|text| header_hash::of(text) == hash || text.ends_with(';')));
    assert_eq!(header_hash::of("int /* x */ a;\n"), hash);
    assert_ne!(header_hash::of("int b;\n"), hash);
    assert_ne!(header_hash::of("inta;\n"), hash);
}

/// The header of the library that was found makes the same declarations.
#[cfg(feature = "bindgen")]
#[test]
fn bindgen_makes_the_committed_text() {
    const GENERATED: &str = include_str!(concat!(env!("OUT_DIR"), "/bindings.rs"));
    if std::env::var_os("LIBROPE_UPDATE_BINDINGS").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bindings.rs");
        fs::write(path, GENERATED).expect("src/bindings.rs is writable");
        return;
    }
    assert!(GENERATED == COMMITTED, "rope.h has changed since: run bindings/rust/regenerate");
}
