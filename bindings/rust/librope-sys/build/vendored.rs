//! Builds the C++ sources in `vendor` as an archive.

use std::path::{Path, PathBuf};

/// The directory of the header; the archive is on the link line.
pub fn build() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("vendor");
    for part in ["CMakeLists.txt", "cmake", "include", "pkgconfig", "src"] {
        println!("cargo::rerun-if-changed={}", source.join(part).display());
    }
    let prefix = cmake::Config::new(&source)
        .define("BUILD_SHARED_LIBS", "OFF")
        .define("ROPE_BUILD_TESTS", "OFF")
        // An archive with kernels would leave the CUDA runtime for every program to link.
        .define("ROPE_CUDA", "OFF")
        .define("CMAKE_INSTALL_LIBDIR", "lib")
        .profile("Release") // a debug build of the program still wants fast kernels
        .build();
    println!("cargo::rustc-link-search=native={}", prefix.join("lib").display());
    println!("cargo::rustc-link-lib=static=rope");
    prefix.join("include")
}
