//go:build !librope_static

package rope

// #cgo pkg-config: librope
import "C"
