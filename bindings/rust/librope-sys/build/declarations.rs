//! The bindgen call behind `src/bindings.rs`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

#[path = "headers.rs"]
mod headers;

/// Writes `$OUT_DIR/bindings.rs` from the headers of `include/librope`.
pub fn generate(include: &Path) {
    // Always anew: installing keeps the time stamp of the source, so an installed header may have
    // changed and still be older than the last build. This file never exists.
    println!("cargo::rerun-if-changed=always");
    let text = headers::read(include);

    let bindings = headers::PATHS
        .iter()
        .map(|path| include.join(path))
        .fold(bindgen::Builder::default(), |builder, header| {
            builder.header(header.to_str().expect("the path of the headers is UTF-8"))
        })
        .clang_arg(format!("-I{}", include.display()))
        .allowlist_item("rope_.*|ROPE_.*")
        // Left over from the header's own plumbing.
        .blocklist_item("ROPE_API|ROPE_MUST_CHECK")
        .clang_args(["-DROPE_API=", "-DROPE_MUST_CHECK=", "-fparse-all-comments"])
        .parse_callbacks(Box::new(Comments))
        .default_macro_constant_type(bindgen::MacroTypeVariation::Signed)
        .default_enum_style(bindgen::EnumVariation::Consts)
        // The library checks struct_size; the assertions of bindgen hold for one target.
        .layout_tests(false)
        .derive_default(false)
        .use_core()
        .rust_target(bindgen::RustTarget::stable(85, 0).expect("bindgen knows Rust 1.85"))
        .rust_edition(bindgen::RustEdition::Edition2024)
        .formatter(bindgen::Formatter::Prettyplease)
        .raw_line("// Made from the headers of include/librope by `regenerate`; do not edit.")
        .raw_line(format!("// {}{:016x}", headers::MARK, headers::hash_of(&text)))
        .generate()
        .expect("bindgen reads the headers");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("bindings.rs"), with_typed_constants(&bindings.to_string()))
        .expect("OUT_DIR is writable");
}

/// The header's enums have no names, because its fields are int32_t. bindgen numbers them and, where
/// no member is negative, takes them as unsigned: here the constants get the type of the fields.
fn with_typed_constants(text: &str) -> String {
    let mut typed = String::new();
    for line in text.lines().filter(|line| !line.starts_with("pub type _bindgen_ty_")) {
        match (line.find(": _bindgen_ty_"), line.find(" = ")) {
            (Some(colon), Some(equals)) => {
                typed += &format!("{}: i32{}\n", &line[..colon], &line[equals..]);
            }
            _ => typed += &format!("{line}\n"),
        }
    }
    typed
}

/// The header's comments as documentation.
#[derive(Debug)]
struct Comments;

impl bindgen::callbacks::ParseCallbacks for Comments {
    fn process_comment(&self, comment: &str) -> Option<String> {
        let mut markdown: Vec<String> = Vec::new();
        let mut program = false;
        for line in comment.lines() {
            // Programs and formulas are indented.
            if line.starts_with("     ") != program {
                program = !program;
                markdown.push(if program { " ```text" } else { " ```" }.into());
            }
            let text = if program { line.into() } else { escaped(line.trim()) };
            markdown.push(format!(" {text}").trim_end().into());
        }
        if program {
            markdown.push(" ```".into());
        }
        Some(markdown.join("\n"))
    }
}

/// Prose whose brackets and stars mean themselves.
fn escaped(line: &str) -> String {
    let mut text = String::new();
    for letter in line.chars() {
        if "\\`*[]<".contains(letter) {
            text.push('\\');
        }
        text.push(letter);
    }
    text
}
