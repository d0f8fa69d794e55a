//! Finds librope: `LIBROPE_LIB_DIR` and `LIBROPE_INCLUDE_DIR`, else pkg-config; with feature `vendored`
//! it is built instead of asked for. With feature `bindgen`, makes the declarations from its header.

use std::env;
use std::path::{Path, PathBuf};

#[cfg(feature = "bindgen")]
mod declarations;
#[cfg(feature = "vendored")]
mod vendored;

/// What a step found: the directory of the header, or why it cannot be used.
type Found = Result<PathBuf, String>;

fn main() {
    for name in ["LIBROPE_LIB_DIR", "LIBROPE_INCLUDE_DIR", "LIBROPE_STATIC"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    // docs.rs has no librope; declarations document themselves.
    if env::var_os("DOCS_RS").is_some() {
        return;
    }
    let include = match from_environment().unwrap_or_else(without_directories) {
        Ok(include) => include,
        Err(reason) => {
            // As an error of this script, so that it is the last thing that cargo prints.
            println!("cargo::error={}", reason.replace('\n', " "));
            return;
        }
    };
    // Build scripts of crates that depend on this one read it as DEP_ROPE_INCLUDE.
    println!("cargo::metadata=include={}", include.display());
    #[cfg(feature = "bindgen")]
    declarations::generate(&include);
}

/// What cargo builds for may not be what cargo runs on.
fn targets(os: &str) -> bool {
    env::var("CARGO_CFG_TARGET_OS").is_ok_and(|target| target == os)
}

/// The names that a linker would look for.
fn shared_name() -> &'static str {
    if targets("macos") { "librope.dylib" } else { "librope.so" }
}

/// Whether to link the archive: it is alone there, or the user asks for it.
fn wants_archive(lib: &Path) -> bool {
    let wanted = env::var_os("LIBROPE_STATIC").is_some_and(|v| v != "0");
    lib.join("librope.a").exists() && (wanted || !lib.join(shared_name()).exists())
}

fn from_environment() -> Option<Found> {
    let lib = PathBuf::from(env::var_os("LIBROPE_LIB_DIR")?);
    if !lib.join("librope.a").exists() && !lib.join(shared_name()).exists() {
        return Some(Err(format!(
            "LIBROPE_LIB_DIR ({}) holds neither {} nor librope.a",
            lib.display(),
            shared_name()
        )));
    }
    let include = env::var_os("LIBROPE_INCLUDE_DIR");
    let include = include.map_or_else(|| lib.join("../include"), PathBuf::from);
    if wants_archive(&lib) {
        link_archive(&lib);
        link_cxx_runtime();
    } else {
        println!("cargo::rustc-link-search=native={}", lib.display());
        println!("cargo::rustc-link-lib=rope");
    }
    Some(Ok(include))
}

/// The archive becomes a part of this crate's library, which is old when another takes its place.
fn link_archive(lib: &Path) {
    println!("cargo::rustc-link-search=native={}", lib.display());
    println!("cargo::rustc-link-lib=static=rope");
    println!("cargo::rerun-if-changed={}", lib.join("librope.a").display());
}

/// What librope.so would have brought along.
fn link_cxx_runtime() {
    println!("cargo::rustc-link-lib={}", if targets("macos") { "c++" } else { "stdc++" });
}

/// Before 1.0 another minor version is another ABI. Whether the archive is linked is for `wants_archive` to
/// say: by itself the crate takes any `LIBROPE_STATIC`, also 0, and `PKG_CONFIG_ALL_STATIC` for a yes.
#[cfg(not(feature = "vendored"))]
fn probe() -> pkg_config::Config {
    let number = |part: &str| -> u32 {
        env::var(format!("CARGO_PKG_VERSION_{part}")).map_or(0, |n| n.parse().unwrap_or(0))
    };
    let (major, minor) = (number("MAJOR"), number("MINOR"));
    let next = if major == 0 { format!("0.{}", minor + 1) } else { format!("{}", major + 1) };
    let mut config = pkg_config::Config::new();
    config.range_version(env!("CARGO_PKG_VERSION")..next.as_str()).statik(false);
    config
}

/// Asks pkg-config.
#[cfg(not(feature = "vendored"))]
fn without_directories() -> Found {
    let library = probe().cargo_metadata(false).probe("librope").map_err(|error| {
        format!(
            "librope {} was not found. Install it so that `pkg-config --modversion librope` answers \
             (PKG_CONFIG_PATH), or set LIBROPE_LIB_DIR and LIBROPE_INCLUDE_DIR, or enable the feature \
             `vendored` to build it from source. pkg-config says: {error}",
            env!("CARGO_PKG_VERSION")
        )
    })?;
    let variable = |name| pkg_config::get_variable("librope", name).map(PathBuf::from);
    let file = variable("pcfiledir").map(|folder| folder.join("librope.pc"));
    // Another version is asked for anew; for a file that is not there (librope-uninstalled.pc is), always.
    if let Some(file) = file.ok().filter(|file| file.exists()) {
        println!("cargo::rerun-if-changed={}", file.display());
    }
    // A directory that the linker searches anyway is left out of the flags.
    let lib = variable("libdir").unwrap_or_default();
    if wants_archive(&lib) {
        // By itself: below /usr the crate pkg-config links no archive.
        link_archive(&lib);
        let all = probe().statik(true).cargo_metadata(false).probe("librope");
        link_beside_archive(all.as_ref().unwrap_or(&library));
    } else {
        probe().probe("librope").map_err(|error| error.to_string())?;
    }
    Ok(library.include_paths.first().cloned().unwrap_or_else(|| "/usr/include".into()))
}

/// What pkg-config names beside the archive: the C++ runtime, and that of CUDA by its path.
#[cfg(not(feature = "vendored"))]
fn link_beside_archive(library: &pkg_config::Library) {
    for folder in &library.link_paths {
        println!("cargo::rustc-link-search=native={}", folder.display());
    }
    for name in library.libs.iter().filter(|&name| name != "rope") {
        println!("cargo::rustc-link-lib={name}");
    }
    for file in &library.link_files {
        let name = file.file_stem().and_then(|name| name.to_str()?.strip_prefix("lib"));
        if let (Some(folder), Some(name)) = (file.parent(), name) {
            println!("cargo::rustc-link-search=native={}", folder.display());
            println!("cargo::rustc-link-lib={name}");
        }
    }
}

/// Builds the sources, whatever is installed: the program is the same on every machine.
#[cfg(feature = "vendored")]
fn without_directories() -> Found {
    let include = vendored::build()?;
    link_cxx_runtime();
    Ok(include)
}
