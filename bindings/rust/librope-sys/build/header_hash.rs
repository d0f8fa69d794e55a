//! A number for what a compiler sees of `rope.h`, recorded in `src/bindings.rs`. It tells that the
//! header has changed on machines without libclang, too.

/// Stands before the number in `src/bindings.rs`.
pub const MARK: &str = "rope.h without comments and spacing has FNV-1a ";

/// FNV-1a, 64 bits, over the text without comments, runs of white space as one space.
pub fn of(header: &str) -> u64 {
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
