//go:build !cgo

package rope

// The compiler prints this name, because it is not declared: package rope calls a C library. Set
// CGO_ENABLED=1 and, when cross compiling, CC to a C compiler for the target.
var _ = package_rope_needs_cgo__set_CGO_ENABLED_1_and_CC_to_a_C_compiler_of_the_target
