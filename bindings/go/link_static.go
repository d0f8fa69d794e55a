//go:build librope_static

package rope

// The archive is named, so that a librope.so in the same folder is not taken.

/*
#cgo linux LDFLAGS: -l:librope.a -Wl,--as-needed
#cgo pkg-config: --static librope
*/
import "C"
