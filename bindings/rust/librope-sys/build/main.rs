//! Finds librope: `LIBROPE_LIB_DIR` and `LIBROPE_INCLUDE_DIR`, else pkg-config, else (feature
//! `vendored`) builds it. With feature `bindgen`, makes the declarations from its header.

use std::env;
use std::path::{Path, PathBuf};

#[cfg(feature = "bindgen")]
mod declarations;
#[cfg(feature = "vendored")]
mod vendored;

fn main() {
    for name in ["LIBROPE_LIB_DIR", "LIBROPE_INCLUDE_DIR", "LIBROPE_STATIC"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    // docs.rs has no librope; declarations document themselves.
    if env::var_os("DOCS_RS").is_some() {
        return;
    }
    let include = from_environment().or_else(from_pkg_config).or_else(from_sources);
    let Some(include) = include else {
        // As an error of this script, so that it is the last thing that cargo prints.
        println!(
            "cargo::error=librope was not found. Install it so that `pkg-config --modversion \
             librope` answers (PKG_CONFIG_PATH), or set LIBROPE_LIB_DIR and LIBROPE_INCLUDE_DIR, \
             or enable the feature `vendored` to build it from source (CMake, a C++17 compiler, \
             Highway)."
        );
        return;
    };
    // Build scripts of crates that depend on this one read it as DEP_ROPE_INCLUDE.
    println!("cargo::metadata=include={}", include.display());
    #[cfg(feature = "bindgen")]
    declarations::generate(&include);
}

fn from_environment() -> Option<PathBuf> {
    let lib = PathBuf::from(env::var_os("LIBROPE_LIB_DIR")?);
    let kind = if is_static(&lib) { "static=" } else { "" };
    println!("cargo::rustc-link-search=native={}", lib.display());
    println!("cargo::rustc-link-lib={kind}rope");
    if !kind.is_empty() {
        link_dependencies_of_archive();
    }
    let include = env::var_os("LIBROPE_INCLUDE_DIR").map(PathBuf::from);
    Some(include.unwrap_or_else(|| lib.join("../include")))
}

/// Whether the directory has only the archive, or the user asks for it.
fn is_static(lib: &Path) -> bool {
    let wanted = env::var_os("LIBROPE_STATIC").is_some_and(|v| v != "0");
    lib.join("librope.a").exists() && (wanted || !lib.join("librope.so").exists())
}

/// What librope.so would have brought along.
fn link_dependencies_of_archive() {
    if pkg_config::Config::new().probe("libhwy").is_err() {
        println!("cargo::rustc-link-lib=hwy");
    }
    let apple = env::var("CARGO_CFG_TARGET_VENDOR").is_ok_and(|v| v == "apple");
    println!("cargo::rustc-link-lib={}", if apple { "c++" } else { "stdc++" });
}

fn from_pkg_config() -> Option<PathBuf> {
    let library = pkg_config::Config::new()
        .atleast_version(env!("CARGO_PKG_VERSION"))
        .probe("librope")
        .ok()?;
    // A prefix that the compiler searches anyway is left out of the flags.
    Some(library.include_paths.first().cloned().unwrap_or_else(|| "/usr/include".into()))
}

#[cfg(feature = "vendored")]
fn from_sources() -> Option<PathBuf> {
    let include = vendored::build();
    link_dependencies_of_archive();
    Some(include)
}

#[cfg(not(feature = "vendored"))]
fn from_sources() -> Option<PathBuf> {
    None
}
