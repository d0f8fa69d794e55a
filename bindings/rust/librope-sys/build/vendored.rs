//! Builds the C++ sources in `vendor` as an archive.

use std::env;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const NEEDS: &str = "The feature `vendored` needs CMake 3.25, a C++17 compiler, and the headers of \
                     Highway and nlohmann/json (Debian: apt install cmake g++ libhwy-dev \
                     nlohmann-json3-dev); LIBROPE_HIGHWAY_INCLUDE and LIBROPE_JSON_INCLUDE name \
                     their folders where CMake does not find them";

/// The directory of the header; the archive is on the link line. Or what is missing.
pub fn build() -> Result<PathBuf, String> {
    let mut cmake = Command::new(env::var_os("CMAKE").unwrap_or_else(|| "cmake".into()));
    let cmake = cmake.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    if !cmake.status().is_ok_and(|status| status.success()) {
        return Err(format!("there is no cmake. {NEEDS}"));
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("vendor");
    for part in ["CMakeLists.txt", "cmake", "include", "pkgconfig", "src"] {
        println!("cargo::rerun-if-changed={}", source.join(part).display());
    }
    let mut config = cmake::Config::new(&source);
    config
        .define("BUILD_SHARED_LIBS", "OFF")
        .define("ROPE_BUILD_TESTS", "OFF")
        // An archive with kernels would leave the CUDA runtime for every program to link.
        .define("ROPE_CUDA", "OFF")
        .define("CMAKE_INSTALL_LIBDIR", "lib")
        .profile("Release"); // a debug build of the program still wants fast kernels
    for folder in ["ROPE_HIGHWAY_INCLUDE", "ROPE_JSON_INCLUDE"] {
        let variable = format!("LIB{folder}");
        println!("cargo::rerun-if-env-changed={variable}");
        if let Some(path) = env::var_os(&variable) {
            config.define(folder, path);
        }
    }
    // It panics on failure; what CMake printed stands before, and says which header is missing.
    let prefix = panic::catch_unwind(AssertUnwindSafe(|| config.build()))
        .map_err(|_| format!("librope did not build. {NEEDS}"))?;
    println!("cargo::rustc-link-search=native={}", prefix.join("lib").display());
    println!("cargo::rustc-link-lib=static=rope");
    Ok(prefix.join("include"))
}
