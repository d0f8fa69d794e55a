//! The library's headers, and a number for what a compiler sees of them, which is recorded in
//! `src/bindings.rs`: it tells that they have changed on machines without libclang, too.

use std::fs;
use std::path::Path;

/// Below the folder that compilers search, each after those that it includes.
pub const PATHS: [&str; 2] = ["librope/rope.h", "librope/model.h"];

/// Stands before the number in `src/bindings.rs`.
pub const MARK: &str = "Without comments and spacing they have FNV-1a ";

/// All of them as one text.
pub fn read(include: &Path) -> String {
    let text = |path: &Path| {
        fs::read_to_string(path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()))
    };
    PATHS.iter().map(|path| text(&include.join(path))).collect()
}

/// FNV-1a, 64 bits, over the text without comments, runs of white space as one space.
pub fn hash_of(header: &str) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    let mut add = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let mut spaced = true; // nothing before the first word
    let mut rest = header;
    while let Some(first) = rest.chars().next() {
        if rest.starts_with("/*") {
            rest = rest.find("*/").map_or("", |end| &rest[end + 2..]);
        } else if rest.starts_with("//") {
            rest = rest.find('\n').map_or("", |end| &rest[end..]);
        } else if first.is_whitespace() {
            rest = rest.trim_start();
        } else {
            rest = &rest[first.len_utf8()..];
            for byte in first.to_string().bytes() {
                add(byte);
            }
            spaced = false;
            continue;
        }
        if !spaced {
            add(b' ');
            spaced = true;
        }
    }
    hash
}
