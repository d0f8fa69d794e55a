//! `src/bindings.rs` is what bindgen makes of the repository's headers.

use std::path::{Path, PathBuf};

#[path = "../build/headers.rs"]
mod headers;

const COMMITTED: &str = include_str!("../src/bindings.rs");

fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("vendor/include")
}

/// Needs no libclang: the headers still are those that the bindings were made from.
#[test]
fn headers_have_the_recorded_hash() {
    let recorded = COMMITTED
        .lines()
        .find_map(|line| line.strip_prefix("// ")?.strip_prefix(headers::MARK))
        .expect("the second line of src/bindings.rs holds the hash of the headers");
    assert_eq!(
        recorded,
        format!("{:016x}", headers::hash_of(&headers::read(&include()))),
        "the headers have changed since: run bindings/rust/regenerate"
    );
}

/// No header of C is forgotten.
#[test]
fn all_headers_are_read() {
    let folder = std::fs::read_dir(include().join("librope")).expect("vendor/ holds the headers");
    let mut found: Vec<String> = folder
        .map(|entry| format!("librope/{}", entry.unwrap().file_name().into_string().unwrap()))
        .filter(|path| path.ends_with(".h"))
        .collect();
    found.sort();
    let mut paths = headers::PATHS;
    paths.sort_unstable();
    assert_eq!(found, paths);
}

/// And no struct that says its size.
#[test]
fn structs_with_a_size_can_be_started() {
    let (_, list) =
        include_str!("../src/lib.rs").split_once("\ninit!(").expect("it lists the structs");
    let mut started: Vec<&str> =
        list.split_once(");").expect("it ends").0.split_whitespace().collect();
    let sized = COMMITTED.split("pub struct ").skip(1).filter_map(|text| {
        let (name, fields) = text.split_once(" {")?;
        fields.trim_start().starts_with("pub struct_size: ").then_some(name)
    });
    let mut sized: Vec<&str> = sized.collect();
    started.sort_unstable();
    sized.sort_unstable();
    assert_eq!(started, sized);
}

#[test]
fn hash_sees_code_and_nothing_else() {
    let same = ["int a;\n", "/* a */ int // b\n  a;\n", " int a; /* c */"];
    let hash = headers::hash_of("int a; ");
    assert!(same.iter().all(|text| headers::hash_of(text) == hash || text.ends_with(';')));
    assert_eq!(headers::hash_of("int /* x */ a;\n"), hash);
    assert_ne!(headers::hash_of("int b;\n"), hash);
    assert_ne!(headers::hash_of("inta;\n"), hash);
}

/// The headers of the library that was found make the same declarations.
#[cfg(feature = "bindgen")]
#[test]
fn bindgen_makes_the_committed_text() {
    const GENERATED: &str = include_str!(concat!(env!("OUT_DIR"), "/bindings.rs"));
    if std::env::var_os("LIBROPE_UPDATE_BINDINGS").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bindings.rs");
        std::fs::write(path, GENERATED).expect("src/bindings.rs is writable");
        return;
    }
    assert!(GENERATED == COMMITTED, "the headers have changed since: run bindings/rust/regenerate");
}
